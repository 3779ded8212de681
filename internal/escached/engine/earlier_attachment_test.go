package engine

import (
	"testing"

	"github.com/escache/escache-csi/api/escache"
	"github.com/escache/escache-csi/internal/escached/volume"
)

// TestADiscardDropsNothingOfALaterAttachment: the caller's record was set back, or the caller was
// paused while others went on.
func TestADiscardDropsNothingOfALaterAttachment(t *testing.T) {
	w := newWorld(t)
	e := w.engine()
	if err := e.PutReplica(t.Context(), putReq); err != nil {
		t.Fatal(err)
	}
	if _, err := connectWith(e, 5); err != nil {
		t.Fatal(err)
	}
	w.setDirty(4096)
	w.caches.Reboot()
	w.maps = nil
	e = w.restarted()
	if err := e.DeleteReplica(t.Context(), ref, new(int64(4))); code(err) != escache.CodeStaleEpoch {
		t.Errorf("what attachment 5 wrote is discarded by who knows of 4: %v", err)
	}
	if _, ok := e.Volumes.Get(volume.NameOf(ref)); !ok {
		t.Error("the replica is gone")
	}
	if err := e.DeleteReplica(t.Context(), ref, new(int64(5))); err != nil {
		t.Error(err)
	}
}

// TestWhatWasGivenUpIsDiscardedUpToTheEpochOfTheRequest: the record may be newer by then.
func TestWhatWasGivenUpIsDiscardedUpToTheEpochOfTheRequest(t *testing.T) {
	w, e := cutOff(t)
	w.record.Epoch = 5
	w.setDirty(4096)
	if err := abandon(e, 3); err != nil {
		t.Fatal(err)
	}
	if err := e.DeleteReplica(t.Context(), ref, new(int64(2))); code(err) != escache.CodeStaleEpoch {
		t.Errorf("discarded up to the attachment before: %v", err)
	}
	if err := e.DeleteReplica(t.Context(), ref, new(int64(3))); err != nil {
		t.Error(err)
	}
}

func TestAStandbyRemembersTheAttachmentItWasConfirmedFor(t *testing.T) {
	w := newWorld(t)
	e := w.engine()
	put := func(e *Engine, epoch int64) error {
		req := putReq
		req.Epoch = epoch
		return e.PutReplica(t.Context(), req)
	}
	for _, epoch := range []int64{3, 4, 4, 0} {
		if err := put(e, epoch); err != nil {
			t.Fatal(err)
		}
	}
	if err := put(w.restarted(), 3); code(err) != escache.CodeStaleEpoch {
		t.Errorf("a request of an earlier attachment: %v", err)
	}
	// A device keeps the epoch of its own attachment: by that it is recognised as superseded.
	if _, err := connectWith(e, 5); err != nil {
		t.Fatal(err)
	}
	if err := put(e, 6); err != nil {
		t.Fatal(err)
	}
	status, err := e.Status(t.Context(), &ref)
	if err != nil || status.Volumes[0].Epoch != 5 {
		t.Errorf("%+v, %v", status, err)
	}
}
