package csi_test

import (
	"context"
	"testing"

	"google.golang.org/grpc/codes"

	"github.com/escache/escache-csi/api/v1alpha1"
)

func TestANodeWithoutMemoryForTheCacheIsRefusedBeforeAnythingChanges(t *testing.T) {
	w := newWorld(t)
	v := w.create("pvc-1")
	full, partner := v.Spec.Replicas[0], v.Spec.Replicas[1]
	w.host(full).SetConnectable(v.Spec.CacheBytes - 1)
	w.host(partner).SetConnectable(v.Spec.CacheBytes)
	w.poll()
	before := w.volume("pvc-1")
	_, err := w.publish("pvc-1", full)
	wants(t, err, codes.ResourceExhausted, full, "memory", "docs/sizing.md", "another node of group g1")
	if now := w.volume("pvc-1"); now.ResourceVersion != before.ResourceVersion || len(w.fleet.On(ref(v))) != 0 {
		t.Errorf("the refusal changed the record to %+v, replicas on %v", now.Status, w.fleet.On(ref(v)))
	}
	out, err := w.publish("pvc-1", partner)
	must(t, err)
	w.host(partner).Connect(ref(v), "10.0.0.1:0/1")
	w.poll()
	again, err := w.publish("pvc-1", partner) // its own cache has taken all there was
	must(t, err)
	if again[v1alpha1.PublishContextEpoch] != out[v1alpha1.PublishContextEpoch] {
		t.Errorf("the repeated call made epoch %v of %v", again, out)
	}
	_, err = w.publish("pvc-1", full)
	wants(t, err, codes.FailedPrecondition, "attached to node "+partner) // memory is not the first thing to be said
	w.host(partner).Release(ref(v))
	must(t, w.unpublish("pvc-1", partner))
	w.host(full).SetConnectable(v.Spec.CacheBytes)
	w.poll()
	_, err = w.publish("pvc-1", full)
	must(t, err)
}

// TestATakeOverByANodeWithoutMemoryChangesNothing: what is dirty stays on the hosts, and is there at the next try.
func TestATakeOverByANodeWithoutMemoryChangesNothing(t *testing.T) {
	w := newWorld(t)
	v := w.create("pvc-1")
	dead, partner := v.Spec.Replicas[0], v.Spec.Replicas[1]
	_, err := w.publish("pvc-1", dead)
	must(t, err)
	w.host(dead).Connect(ref(v), "10.0.0.1:0/1")
	for _, n := range v.Spec.Replicas {
		w.host(n).Write(ref(v), 4096)
	}
	w.host(dead).Stop()
	w.taint(dead)
	must(t, w.unpublish("pvc-1", dead))
	w.host(partner).SetConnectable(1)
	w.poll()
	before := w.volume("pvc-1").Status
	_, err = w.publish("pvc-1", partner)
	wants(t, err, codes.ResourceExhausted, partner, "memory")
	if now := w.volume("pvc-1").Status; now.AttachedNode != "" || now.Epoch != before.Epoch || now.Authority != v1alpha1.AuthorityCache {
		t.Errorf("the refusal made %+v of %+v", now, before)
	}
	w.host(partner).SetConnectable(100 * gib)
	w.poll()
	_, err = w.publish("pvc-1", partner)
	must(t, err)
}

func TestNewVolumesGoToHostsThatHaveMemoryForAllOfTheirs(t *testing.T) {
	w := newWorld(t)
	size := w.create("pvc-1").Spec.CacheBytes
	for _, n := range []string{"n1", "n2", "n3"} {
		w.host(n).SetConnectable(size)
	}
	w.poll()
	_, err := w.service.CreateVolume(context.Background(), createRequest("pvc-2"))
	wants(t, err, codes.ResourceExhausted, "without memory for more connected caches")
	for _, n := range []string{"n1", "n2", "n3"} {
		w.host(n).SetConnectable(2 * size)
	}
	w.poll()
	w.create("pvc-2")
}

func TestDirtIsWrittenBackByTheHostThatHasMemoryForIt(t *testing.T) {
	w := newWorld(t)
	v := w.create("pvc-1")
	holder, partner := v.Spec.Replicas[0], v.Spec.Replicas[1]
	_, err := w.publish("pvc-1", holder)
	must(t, err)
	w.host(holder).Connect(ref(v), "10.0.0.1:0/1")
	for _, n := range v.Spec.Replicas {
		w.host(n).Write(ref(v), 4096)
	}
	w.host(holder).Release(ref(v))
	must(t, w.unpublish("pvc-1", holder))
	for _, n := range v.Spec.Replicas {
		w.host(n).SetConnectable(1)
	}
	wants(t, w.delete("pvc-1"), codes.ResourceExhausted, holder, partner, "memory")
	if s := w.volume("pvc-1").Status; s.AttachedNode != "" || s.Authority != v1alpha1.AuthorityCache {
		t.Errorf("status %+v", s)
	}
	w.host(partner).SetConnectable(0)
	must(t, w.delete("pvc-1"))
	w.empty()
}
