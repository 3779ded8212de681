package csi_test

import (
	"errors"
	"testing"

	"google.golang.org/grpc/codes"

	"github.com/escache/escache-csi/api/v1alpha1"
	"github.com/escache/escache-csi/internal/authority"
	"github.com/escache/escache-csi/internal/controller/volumes"
	"github.com/escache/escache-csi/test/csitest"
)

// removeImage does what somebody else does with the image of a volume, or with its whole pool.
func removeImage(w *world, v *v1alpha1.CacheVolume) {
	w.T.Helper()
	csitest.Must(w.T, w.Images.Delete(w.T.Context(), volumes.ImageOf(v)))
}

// TestADirtyVolumeWithoutAnImageIsDiscardedAndDeleted: nothing can be written back any more.
func TestADirtyVolumeWithoutAnImageIsDiscardedAndDeleted(t *testing.T) {
	w := newWorld(t)
	w.DirtyDetached("pvc-1")
	v := w.Volume("pvc-1")
	removeImage(w, v)
	csitest.Wants(t, w.Delete("pvc-1"), codes.NotFound, "not in Ceph", "discard-cache pvc-1")
	// The epoch stays: a person decides by it.
	if s := w.Volume("pvc-1").Status; s.AttachedNode != "" || s.Epoch != v.Status.Epoch {
		t.Errorf("status %+v", s)
	}
	loss, err := w.Locked.Discard(t.Context(), w.DiscardRequest("pvc-1", v.Status.Epoch))
	csitest.Must(t, err)
	if len(loss.Nodes) != 2 || loss.BytesAtStake != v.Status.DirtyBytes {
		t.Errorf("loss %+v, and %d bytes are dirty on record", loss, v.Status.DirtyBytes)
	}
	csitest.Must(t, w.Delete("pvc-1"))
	w.Empty()
}

// TestAWriteBackEndsWhoseImageIsGone: it was removed after the attachment of the write-back was recorded.
func TestAWriteBackEndsWhoseImageIsGone(t *testing.T) {
	w := newWorld(t)
	w.DirtyDetached("pvc-1")
	v := w.Volume("pvc-1")
	v.Status.Epoch++
	v.Status.AttachedNode, v.Status.FlushEpoch = v.Spec.Replicas[0], v.Status.Epoch
	csitest.Must(t, w.API.Status().Update(t.Context(), v))
	removeImage(w, v)
	csitest.Wants(t, w.Delete("pvc-1"), codes.NotFound, "not in Ceph", "discard-cache pvc-1")
	if s := w.Volume("pvc-1").Status; s.AttachedNode != "" || s.FlushEpoch != 0 || s.Authority != v1alpha1.AuthorityCache {
		t.Errorf("status %+v", s)
	}
}

// TestAnImageCountsAsGoneOnlyIfCephSaysSo: a cluster that does not answer proves nothing.
func TestAnImageCountsAsGoneOnlyIfCephSaysSo(t *testing.T) {
	w := newWorld(t)
	w.DirtyDetached("pvc-1")
	v := w.Volume("pvc-1")
	refused := func(when string) {
		t.Helper()
		if _, err := w.Locked.Discard(t.Context(), w.DiscardRequest("pvc-1", v.Status.Epoch)); !errors.Is(err, authority.ErrRefused) {
			t.Errorf("discarded %s: %v", when, err)
		}
	}
	refused("while the image is there")
	removeImage(w, v)
	w.Images.Fail = volumes.ErrUnavailable
	refused("while Ceph does not answer")
	w.Images.Fail = nil
	if s := w.Volume("pvc-1").Status; s.Authority != v1alpha1.AuthorityCache || s.Discarded != nil {
		t.Errorf("status %+v", s)
	}
}
