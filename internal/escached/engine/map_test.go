package engine

import (
	"errors"
	"testing"

	"github.com/escache/escache-csi/api/escache"
)

func mapReq(readOnly bool) escache.MapRequest {
	return escache.MapRequest{VolumeRef: ref, ImageID: "10ab", ReadOnly: readOnly}
}

// TestMapAndUnmapAreFinishedByARepeat is over every step at which they can fail or die.
func TestMapAndUnmapAreFinishedByARepeat(t *testing.T) {
	for _, kill := range []bool{false, true} {
		for at := 1; ; at++ {
			w := newWorld(t)
			run := func() (err error) {
				defer func() {
					if died := recover(); died != nil {
						err = errInjected
					}
				}()
				e := w.engine()
				if _, err := e.Map(t.Context(), mapReq(false)); err != nil {
					return err
				}
				return e.Unmap(t.Context(), escache.UnmapRequest{VolumeRef: ref})
			}
			if kill {
				w.killAt = at
			} else {
				w.failAt = at
			}
			reached := run() != nil
			e := w.restarted()
			if mapped, err := e.Map(t.Context(), mapReq(false)); err != nil || mapped.Device != "/dev/rbd7" || len(w.maps) != 1 {
				t.Fatalf("after step %d: %+v, %v, %d maps", at, mapped, err, len(w.maps))
			}
			for range 2 {
				if err := e.Unmap(t.Context(), escache.UnmapRequest{VolumeRef: ref}); err != nil {
					t.Fatalf("after step %d: %v", at, err)
				}
			}
			if left := w.left(); len(left) > 0 {
				t.Fatalf("after step %d: left %q", at, left)
			}
			if !reached {
				break
			}
		}
	}
}

func TestARepeatedMapDoesNothing(t *testing.T) {
	w := newWorld(t)
	for range 2 {
		if mapped, err := w.restarted().Map(t.Context(), mapReq(true)); err != nil || mapped.Device != "/dev/rbd7" {
			t.Fatal(mapped, err)
		}
	}
	if !w.maps[0].ReadOnly || len(w.steps) != 1 {
		t.Errorf("%+v after %q", w.maps, w.steps)
	}
}

// TestAMapOfAnotherImageIsReplaced: the image was deleted and re-created under its name, or is wanted in
// another way.
func TestAMapOfAnotherImageIsReplaced(t *testing.T) {
	w := newWorld(t)
	e := w.engine()
	if _, err := e.Map(t.Context(), mapReq(true)); err != nil {
		t.Fatal(err)
	}
	if _, err := e.Map(t.Context(), mapReq(false)); err != nil || w.maps[0].ReadOnly {
		t.Fatalf("%+v, %v", w.maps, err)
	}
	w.image.ImageID, w.image.ID = "10ac", 8
	next := mapReq(false)
	next.ImageID = "10ac"
	if mapped, err := e.Map(t.Context(), next); err != nil || mapped.Device != "/dev/rbd8" {
		t.Fatalf("%+v, %v", mapped, err)
	}
	if _, err := e.Map(t.Context(), mapReq(false)); code(err) != escache.CodeIdentityMismatch || len(w.maps) > 0 {
		t.Errorf("%v, %+v", err, w.maps)
	}
}

func TestAnImageWithACacheIsNotMappedWithoutIt(t *testing.T) {
	w := newWorld(t)
	e := w.engine()
	if err := e.PutReplica(t.Context(), putReq); err != nil {
		t.Fatal(err)
	}
	if _, err := connectWith(e, 1); err != nil {
		t.Fatal(err)
	}
	_, mapped := e.Map(t.Context(), mapReq(true))
	unmapped := e.Unmap(t.Context(), escache.UnmapRequest{VolumeRef: ref})
	if code(mapped) != escache.CodeReplicaMismatch || code(unmapped) != escache.CodeReplicaMismatch || len(w.maps) != 1 {
		t.Errorf("%v; %v; %d maps", mapped, unmapped, len(w.maps))
	}
}

// TestAMapOfAnAttachedVolumeIsNotTouched: it is ended by stop, which looks whether the device is open.
func TestAMapOfAnAttachedVolumeIsNotTouched(t *testing.T) {
	w := newWorld(t)
	e := w.engine()
	if _, err := e.DevConnect(t.Context(), uncachedOf(1)); err != nil {
		t.Fatal(err)
	}
	_, mapped := e.Map(t.Context(), mapReq(true))
	unmapped := e.Unmap(t.Context(), escache.UnmapRequest{VolumeRef: ref})
	if code(mapped) != escache.CodeReplicaMismatch || code(unmapped) != escache.CodeReplicaMismatch || len(w.maps) != 1 {
		t.Errorf("%v; %v; %d maps", mapped, unmapped, len(w.maps))
	}
}

func TestAnImageWithoutACacheSurvivesTheSearchForLeftovers(t *testing.T) {
	w := newWorld(t)
	e := w.engine()
	if _, err := e.Map(t.Context(), mapReq(false)); err != nil {
		t.Fatal(err)
	}
	if found := w.restarted().watcher.FindLeftovers(t.Context()); len(found) > 0 || len(w.maps) != 1 {
		t.Errorf("%+v, %d maps", found, len(w.maps))
	}
	w.mapErr = errors.New("not asked")
	if _, err := e.Map(t.Context(), mapReq(false)); err != nil {
		t.Error(err)
	}
}
