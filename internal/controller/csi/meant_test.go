package csi_test

import (
	"testing"

	"google.golang.org/grpc/codes"

	"github.com/escache/escache-csi/api/escache"
	"github.com/escache/escache-csi/api/v1alpha1"
	"github.com/escache/escache-csi/internal/controller/volumes"
)

// cloneMachine puts another machine in a node's place, which has the volume's replica too. Nobody reaches the first
// one any more.
func (w *world) cloneMachine(v *v1alpha1.CacheVolume, node string) {
	w.t.Helper()
	w.host(node).Replace()
	must(w.t, w.host(node).Lay(escache.ReplicaRequest{
		VolumeRef: ref(v), ImageID: v.Status.ImageID, SizeBytes: v.Spec.SizeBytes, CacheBytes: v.Spec.CacheBytes,
		Port: int(v.Spec.Port), Minor: int(v.Spec.Minor),
	}))
}

// TestASnapshotIsNotTakenOnTheWordOfAnotherMachine: that it has suspended its I/O says nothing of what the pod
// has written on the machine on record.
func TestASnapshotIsNotTakenOnTheWordOfAnotherMachine(t *testing.T) {
	w := newWorld(t)
	v, node := w.connected("a")
	w.cloneMachine(v, node)
	w.host(node).Stage(ref(v), "192.0.2.9:0/1", v.Status.Epoch, escache.ModeWriteback)
	w.host(node).Write(ref(v), 0)
	if _, err := w.snap("s", "a"); volumes.Code(err) != codes.Unavailable || len(w.images.taken) > 0 {
		t.Errorf("%v, taken are %v", err, w.images.taken)
	}
}

// TestAWriteBackConnectsNoOtherMachine: both copies of the volume could be written back when their hosts were
// asked. Just before the call comes, another machine takes the host's place.
func TestAWriteBackConnectsNoOtherMachine(t *testing.T) {
	w := newWorld(t)
	w.dirtyDetached("a")
	v := w.volume("a")
	for _, node := range v.Spec.Replicas {
		w.host(node).Before("POST "+escache.PathDevConnect, func() { w.cloneMachine(v, node) })
	}
	if _, err := w.snap("s", "a"); err == nil || len(w.images.taken) > 0 {
		t.Errorf("%v, taken are %v", err, w.images.taken)
	}
	for _, node := range v.Spec.Replicas {
		if s := w.host(node).Status(ref(v)); s.Device != "" || s.Epoch > 0 {
			t.Errorf("the other machine has the volume: %+v", s)
		}
	}
}

// TestALateHoldIsNotCarriedOut: when the call comes, the host has the volume in a later attachment.
func TestALateHoldIsNotCarriedOut(t *testing.T) {
	w := newWorld(t)
	v, node := w.connected("a")
	w.host(node).Before("POST "+escache.PathHold, func() {
		w.host(node).Change(ref(v), func(s *escache.VolumeStatus) { s.Epoch++ })
	})
	_, err := w.snap("s", "a")
	wants(t, err, codes.FailedPrecondition, "stale_epoch")
	if s := w.host(node).Status(ref(v)); s.HeldUntil != nil || len(w.images.taken) > 0 {
		t.Errorf("held until %v, taken %v", s.HeldUntil, w.images.taken)
	}
}
