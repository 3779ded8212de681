package snapshots_test

import (
	"testing"

	"google.golang.org/grpc/codes"

	"github.com/escache/escache-csi/api/escache"
	"github.com/escache/escache-csi/api/v1alpha1"
	"github.com/escache/escache-csi/internal/controller/volumes"
	"github.com/escache/escache-csi/test/csitest"
)

// cloneMachine puts another machine in a node's place, which has the volume's replica too. Nobody reaches the first
// one any more.
func (w *world) cloneMachine(v *v1alpha1.CacheVolume, node string) {
	w.T.Helper()
	w.Host(node).Replace()
	csitest.Must(w.T, w.Host(node).Lay(escache.ReplicaRequest{
		VolumeRef: csitest.Ref(v), ImageID: v.Status.ImageID, SizeBytes: v.Spec.SizeBytes, CacheBytes: v.Spec.CacheBytes,
		Port: int(v.Spec.Port), Minor: int(v.Spec.Minor),
	}))
}

// TestASnapshotIsNotTakenOnTheWordOfAnotherMachine: that it has suspended its I/O says nothing of what the pod
// has written on the machine on record.
func TestASnapshotIsNotTakenOnTheWordOfAnotherMachine(t *testing.T) {
	w := newWorld(t)
	v, node := w.Connected("a")
	w.cloneMachine(v, node)
	w.Host(node).Stage(csitest.Ref(v), "192.0.2.9:0/1", v.Status.Epoch, escache.ModeWriteback)
	w.Host(node).Write(csitest.Ref(v), 0)
	if _, err := w.Snap("s", "a"); volumes.Code(err) != codes.Unavailable || len(w.Images.Taken) > 0 {
		t.Errorf("%v, taken are %v", err, w.Images.Taken)
	}
}

// TestAWriteBackConnectsNoOtherMachine: both copies of the volume could be written back when their hosts were
// asked. Just before the call comes, another machine takes the host's place.
func TestAWriteBackConnectsNoOtherMachine(t *testing.T) {
	w := newWorld(t)
	w.DirtyDetached("a")
	v := w.Volume("a")
	for _, node := range v.Spec.Replicas {
		w.Host(node).Before("POST "+escache.PathDevConnect, func() { w.cloneMachine(v, node) })
	}
	if _, err := w.Snap("s", "a"); err == nil || len(w.Images.Taken) > 0 {
		t.Errorf("%v, taken are %v", err, w.Images.Taken)
	}
	for _, node := range v.Spec.Replicas {
		if s := w.Host(node).Status(csitest.Ref(v)); s.Device != "" || s.Epoch > 0 {
			t.Errorf("the other machine has the volume: %+v", s)
		}
	}
}

// TestALateHoldIsNotCarriedOut: when the call comes, the host has the volume in a later attachment.
func TestALateHoldIsNotCarriedOut(t *testing.T) {
	w := newWorld(t)
	v, node := w.Connected("a")
	w.Host(node).Before("POST "+escache.PathHold, func() {
		w.Host(node).Change(csitest.Ref(v), func(s *escache.VolumeStatus) { s.Epoch++ })
	})
	_, err := w.Snap("s", "a")
	csitest.Wants(t, err, codes.FailedPrecondition, "stale_epoch")
	if s := w.Host(node).Status(csitest.Ref(v)); s.HeldUntil != nil || len(w.Images.Taken) > 0 {
		t.Errorf("held until %v, taken %v", s.HeldUntil, w.Images.Taken)
	}
}
