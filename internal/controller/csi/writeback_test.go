package csi_test

import (
	"context"
	"slices"
	"testing"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/grpc/codes"

	"github.com/escache/escache-csi/api/v1alpha1"
)

const dirtyBytes = 64 << 20

// powerLoss leaves a volume as the power loss of its host does: dirty, with one current copy that
// answers.
func (w *world) powerLoss(id string) (v *v1alpha1.CacheVolume, dead, survivor, third string) {
	w.t.Helper()
	v = w.create(id)
	dead, survivor, third = v.Spec.Replicas[0], v.Spec.Replicas[1], other(v)
	_, err := w.publish(id, dead)
	must(w.t, err)
	for _, n := range v.Spec.Replicas {
		w.host(n).Write(ref(v), dirtyBytes)
	}
	w.host(dead).Stop()
	w.taint(dead)
	w.poll()
	must(w.t, w.unpublish(id, dead))
	return w.volume(id), dead, survivor, third
}

func TestDirtyVolumeIsWrittenBackForANodeWithoutACopy(t *testing.T) {
	w := newWorld(t)
	v, dead, survivor, third := w.powerLoss("pvc-1")
	out, err := w.publish("pvc-1", third)
	must(t, err)
	if out[v1alpha1.PublishContextEpoch] != "3" { // the pod's, the flush's, the pod's
		t.Errorf("publish context %v", out)
	}
	now := w.volume("pvc-1")
	if s := now.Status; s.AttachedNode != third || s.FlushAttached() || s.Authority != v1alpha1.AuthorityCache {
		t.Errorf("status %+v", s)
	}
	if on := now.Spec.Replicas; !slices.Contains(on, third) || slices.Contains(on, dead) {
		t.Errorf("replicas on %v", on)
	}
	if _, connected := w.host(survivor).Connected(ref(v)); connected {
		t.Errorf("%s still has the device", survivor)
	}
}

func TestOutdatedReplicaIsNeverGivenTheVolume(t *testing.T) {
	w := newWorld(t)
	v := w.create("pvc-1")
	holder, stale := v.Spec.Replicas[0], v.Spec.Replicas[1]
	_, err := w.publish("pvc-1", holder)
	must(t, err)
	w.host(holder).Write(ref(v), dirtyBytes)
	v = w.volume("pvc-1")
	v.Status.Outdated = []string{stale}
	must(t, w.api.Status().Update(context.Background(), v))
	must(t, w.unpublish("pvc-1", holder))

	w.host(holder).Stop()
	_, err = w.publish("pvc-1", stale)
	wants(t, err, codes.Unavailable, stale+" has no current copy", holder+" does not answer")
	if s := w.volume("pvc-1").Status; s.AttachedNode != "" {
		t.Fatalf("status %+v", s)
	}

	// The current copy is written back, and the stale one laid again.
	w.host(holder).Restart(t)
	_, err = w.publish("pvc-1", stale)
	must(t, err)
	if s := w.volume("pvc-1").Status; len(s.Outdated) > 0 || s.AttachedNode != stale {
		t.Errorf("status %+v", s)
	}
}

func TestAFlushThatTakesLongGoesOnWithTheRepeatedCall(t *testing.T) {
	w := newWorld(t)
	v, dead, survivor, third := w.powerLoss("pvc-1")
	w.host(survivor).FlushAtMost(dirtyBytes / 2)
	_, err := w.publish("pvc-1", third)
	wants(t, err, codes.Aborted, survivor, "writes back volume pvc-1")
	held := w.volume("pvc-1")
	if s := held.Status; !s.FlushAttached() || s.AttachedNode != survivor || s.Epoch != 2 {
		t.Fatalf("status %+v", s)
	}

	// No pod has it, so it is published nowhere, and nothing that Kubernetes says of other nodes
	// ends it.
	list, err := w.service.ListVolumes(context.Background(), &csi.ListVolumesRequest{})
	must(t, err)
	if on := list.GetEntries()[0].GetStatus().GetPublishedNodeIds(); len(on) > 0 {
		t.Errorf("published on %v", on)
	}
	for _, node := range []string{third, survivor, dead, ""} {
		must(t, w.unpublish("pvc-1", node))
	}
	if s := w.volume("pvc-1").Status; !s.FlushAttached() || s.AttachedNode != survivor {
		t.Fatalf("status %+v", s)
	}

	w.restart()
	_, err = w.publish("pvc-1", third)
	must(t, err)
	if s := w.volume("pvc-1").Status; s.AttachedNode != third || s.Epoch != 3 {
		t.Errorf("status %+v", s)
	}
	if epoch, connected := w.host(survivor).Connected(ref(v)); connected {
		t.Errorf("%s still has the device, epoch %d", survivor, epoch)
	}
}

func TestAPodMayHaveTheVolumeWhereItIsBeingWrittenBack(t *testing.T) {
	w := newWorld(t)
	v, _, survivor, third := w.powerLoss("pvc-1")
	w.host(survivor).FlushAtMost(1)
	_, err := w.publish("pvc-1", third)
	wants(t, err, codes.Aborted)
	out, err := w.publish("pvc-1", survivor)
	must(t, err)
	if s := w.volume("pvc-1").Status; out[v1alpha1.PublishContextEpoch] != "3" || s.AttachedNode != survivor || s.FlushAttached() {
		t.Errorf("publish context %v, status %+v", out, s)
	}
	// Now a pod has it, and nobody else ends that.
	_, err = w.publish("pvc-1", third)
	wants(t, err, codes.FailedPrecondition, "attached to node "+survivor)
	if epoch, connected := w.host(survivor).Connected(ref(v)); !connected || epoch != 2 {
		t.Errorf("connected %v with epoch %d", connected, epoch)
	}
}

func TestTheOtherCopyIsWrittenBackWhereTheFirstCannotBe(t *testing.T) {
	w := newWorld(t)
	v := w.create("pvc-1")
	first, second, third := v.Spec.Replicas[0], v.Spec.Replicas[1], other(v)
	_, err := w.publish("pvc-1", first)
	must(t, err)
	for _, n := range v.Spec.Replicas {
		w.host(n).Write(ref(v), dirtyBytes)
	}
	must(t, w.unpublish("pvc-1", first))
	w.host(first).SetDisk(ref(v), "Consistent") // and nobody confirms that it is current
	w.host(second).SetDisk(ref(v), "Negotiating")
	_, err = w.publish("pvc-1", third)
	must(t, err)
	if epoch, _ := w.host(second).Connected(ref(v)); epoch > 0 {
		t.Errorf("%s is laid anew or gone, and has epoch %d", second, epoch)
	}
	if s := w.volume("pvc-1").Status; s.AttachedNode != third {
		t.Errorf("status %+v", s)
	}
}

func TestAHostThatDiesWhileItWritesBackIsFenced(t *testing.T) {
	w := newWorld(t)
	v := w.create("pvc-1")
	first, second, third := v.Spec.Replicas[0], v.Spec.Replicas[1], other(v)
	_, err := w.publish("pvc-1", first)
	must(t, err)
	for _, n := range v.Spec.Replicas {
		w.host(n).Write(ref(v), dirtyBytes)
		w.host(n).FlushAtMost(dirtyBytes / 2)
	}
	must(t, w.unpublish("pvc-1", first))
	_, err = w.publish("pvc-1", third)
	wants(t, err, codes.Aborted)
	now := w.volume("pvc-1")
	flusher := now.Status.AttachedNode
	now.Status.ClientAddress = "10.0.0.9:0/9" // as csi-node there records it
	must(t, w.api.Status().Update(context.Background(), now))
	w.host(flusher).Stop()
	_, err = w.publish("pvc-1", third)
	wants(t, err, codes.Unavailable, flusher, "out-of-service")
	if len(w.images.fenced) > 0 {
		t.Fatalf("fenced %v, and Kubernetes says that it lives", w.images.fenced)
	}
	w.taint(flusher)
	w.poll()
	survivor := map[string]string{first: second, second: first}[flusher]
	w.host(survivor).FlushAtMost(0)
	for range 2 {
		if _, err = w.publish("pvc-1", third); err == nil {
			break
		}
		wants(t, err, codes.Unavailable)
	}
	must(t, err)
	if !slices.Equal(w.images.fenced, []string{"10.0.0.9:0/9"}) {
		t.Errorf("fenced %v", w.images.fenced)
	}
	if s := w.volume("pvc-1").Status; s.AttachedNode != third || len(s.Fenced) != 1 {
		t.Errorf("status %+v", s)
	}
}

func TestDeletingGoesOnWithTheFlush(t *testing.T) {
	w := newWorld(t)
	v, _, survivor, third := w.powerLoss("pvc-1")
	w.host(survivor).FlushAtMost(dirtyBytes / 2)
	_, err := w.publish("pvc-1", third)
	wants(t, err, codes.Aborted)
	w.host(survivor).FlushAtMost(dirtyBytes / 4)
	wants(t, w.delete("pvc-1"), codes.Aborted, survivor)
	must(t, w.delete("pvc-1"))
	if w.host(survivor).Has(ref(v)) {
		t.Errorf("%s still has its replica", survivor)
	}
}
