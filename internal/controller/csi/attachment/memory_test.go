package attachment_test

import (
	"context"
	"testing"

	"google.golang.org/grpc/codes"

	"github.com/escache/escache-csi/api/v1alpha1"
	"github.com/escache/escache-csi/test/csitest"
)

func TestANodeWithoutMemoryForTheCacheIsRefusedBeforeAnythingChanges(t *testing.T) {
	w := newWorld(t)
	v := w.Create("pvc-1")
	full, partner := v.Spec.Replicas[0], v.Spec.Replicas[1]
	w.Host(full).SetConnectable(v.Spec.CacheBytes - 1)
	w.Host(partner).SetConnectable(v.Spec.CacheBytes)
	w.Poll()
	before := w.Volume("pvc-1")
	_, err := w.Publish("pvc-1", full)
	csitest.Wants(t, err, codes.ResourceExhausted, full, "memory", "docs/sizing.md", "another node of group g1")
	if now := w.Volume("pvc-1"); now.ResourceVersion != before.ResourceVersion || len(w.Fleet.On(csitest.Ref(v))) != 0 {
		t.Errorf("the refusal changed the record to %+v, replicas on %v", now.Status, w.Fleet.On(csitest.Ref(v)))
	}
	out, err := w.Publish("pvc-1", partner)
	csitest.Must(t, err)
	w.Host(partner).Connect(csitest.Ref(v), "10.0.0.1:0/1")
	w.Poll()
	again, err := w.Publish("pvc-1", partner) // its own cache has taken all there was
	csitest.Must(t, err)
	if again[v1alpha1.PublishContextEpoch] != out[v1alpha1.PublishContextEpoch] {
		t.Errorf("the repeated call made epoch %v of %v", again, out)
	}
	_, err = w.Publish("pvc-1", full)
	csitest.Wants(t, err, codes.FailedPrecondition, "attached to node "+partner) // memory is not the first thing to be said
	w.Host(partner).Release(csitest.Ref(v))
	csitest.Must(t, w.Unpublish("pvc-1", partner))
	w.Host(full).SetConnectable(v.Spec.CacheBytes)
	w.Poll()
	_, err = w.Publish("pvc-1", full)
	csitest.Must(t, err)
}

// TestATakeOverByANodeWithoutMemoryChangesNothing: what is dirty stays on the hosts, and is there at the next try.
func TestATakeOverByANodeWithoutMemoryChangesNothing(t *testing.T) {
	w := newWorld(t)
	v := w.Create("pvc-1")
	dead, partner := v.Spec.Replicas[0], v.Spec.Replicas[1]
	_, err := w.Publish("pvc-1", dead)
	csitest.Must(t, err)
	w.Host(dead).Connect(csitest.Ref(v), "10.0.0.1:0/1")
	for _, n := range v.Spec.Replicas {
		w.Host(n).Write(csitest.Ref(v), 4096)
	}
	w.Host(dead).Stop()
	w.Taint(dead)
	csitest.Must(t, w.Unpublish("pvc-1", dead))
	w.Host(partner).SetConnectable(1)
	w.Poll()
	before := w.Volume("pvc-1").Status
	_, err = w.Publish("pvc-1", partner)
	csitest.Wants(t, err, codes.ResourceExhausted, partner, "memory")
	if now := w.Volume("pvc-1").Status; now.AttachedNode != "" || now.Epoch != before.Epoch || now.Authority != v1alpha1.AuthorityCache {
		t.Errorf("the refusal made %+v of %+v", now, before)
	}
	w.Host(partner).SetConnectable(100 * csitest.GiB)
	w.Poll()
	_, err = w.Publish("pvc-1", partner)
	csitest.Must(t, err)
}

// TestAVolumeThatIsUnstagedDirtyGoesToTheOtherHost: the holder was booted, has no memory for the cache any more, and has unstaged it.
func TestAVolumeThatIsUnstagedDirtyGoesToTheOtherHost(t *testing.T) {
	w := newWorld(t)
	v := w.Create("pvc-1")
	holder, partner := v.Spec.Replicas[0], v.Spec.Replicas[1]
	_, err := w.Publish("pvc-1", holder)
	csitest.Must(t, err)
	for _, n := range v.Spec.Replicas {
		w.Host(n).Write(csitest.Ref(v), csitest.DirtyBytes)
	}
	w.Host(holder).SetConnectable(1)
	w.Poll()
	csitest.Must(t, w.Unpublish("pvc-1", holder))
	if s := w.Volume("pvc-1").Status; s.AttachedNode != "" || s.Authority != v1alpha1.AuthorityCache || len(s.Outdated) > 0 {
		t.Errorf("detached as %+v", s)
	}
	_, err = w.Publish("pvc-1", partner)
	csitest.Must(t, err)
	if s := w.Volume("pvc-1").Status; s.AttachedNode != partner || s.Authority != v1alpha1.AuthorityCache || len(s.Outdated) > 0 {
		t.Errorf("attached as %+v", s)
	}
	for _, n := range v.Spec.Replicas {
		if left := w.Host(n).Status(csitest.Ref(v)).DirtyBytes; left == nil || *left != csitest.DirtyBytes {
			t.Errorf("on %s %v bytes are dirty", n, left)
		}
	}
}

func TestNewVolumesGoToHostsThatHaveMemoryForAllOfTheirs(t *testing.T) {
	w := newWorld(t)
	size := w.Create("pvc-1").Spec.CacheBytes
	for _, n := range []string{"n1", "n2", "n3"} {
		w.Host(n).SetConnectable(size)
	}
	w.Poll()
	_, err := w.Service.CreateVolume(context.Background(), csitest.CreateRequest("pvc-2"))
	csitest.Wants(t, err, codes.ResourceExhausted, "without memory for more connected caches")
	for _, n := range []string{"n1", "n2", "n3"} {
		w.Host(n).SetConnectable(2 * size)
	}
	w.Poll()
	w.Create("pvc-2")
}

func TestDirtIsWrittenBackByTheHostThatHasMemoryForIt(t *testing.T) {
	w := newWorld(t)
	v := w.Create("pvc-1")
	holder, partner := v.Spec.Replicas[0], v.Spec.Replicas[1]
	_, err := w.Publish("pvc-1", holder)
	csitest.Must(t, err)
	w.Host(holder).Connect(csitest.Ref(v), "10.0.0.1:0/1")
	for _, n := range v.Spec.Replicas {
		w.Host(n).Write(csitest.Ref(v), 4096)
	}
	w.Host(holder).Release(csitest.Ref(v))
	csitest.Must(t, w.Unpublish("pvc-1", holder))
	for _, n := range v.Spec.Replicas {
		w.Host(n).SetConnectable(1)
	}
	csitest.Wants(t, w.Delete("pvc-1"), codes.ResourceExhausted, holder, partner, "memory")
	if s := w.Volume("pvc-1").Status; s.AttachedNode != "" || s.Authority != v1alpha1.AuthorityCache {
		t.Errorf("status %+v", s)
	}
	w.Host(partner).SetConnectable(0)
	csitest.Must(t, w.Delete("pvc-1"))
	w.Empty()
}
