package engine

import (
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"github.com/escache/escache-csi/api/escache"
	"github.com/escache/escache-csi/internal/escached/drbd"
	"github.com/escache/escache-csi/internal/escached/volume"
)

// failsLate runs a verb whose first change of tags fails, and is made all the same.
func failsLate(t *testing.T, w *world, verb func() error) {
	t.Helper()
	w.late = true
	for n := 1; ; n++ {
		w.failAt = len(w.steps) + n
		err := verb()
		if !errors.Is(err, errInjected) {
			t.Fatalf("no change of tags failed: %v", err)
		}
		if w.steps[len(w.steps)-1] == "retag" {
			break
		}
	}
	w.failAt = 0
}

// TestARemovalThatFailedIsNotFinishedAtTheNextStart: the replica was used again since.
func TestARemovalThatFailedIsNotFinishedAtTheNextStart(t *testing.T) {
	w := newWorld(t)
	e := w.engine()
	check := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	check(e.PutReplica(t.Context(), putReq))
	_, err := connectWith(e, 2)
	check(err)
	check(e.Stop(t.Context(), escache.StopRequest{VolumeRef: ref}))
	failsLate(t, w, func() error { return e.DeleteReplica(t.Context(), ref, nil) })
	again := putReq
	again.MustExist = true
	check(e.PutReplica(t.Context(), again))
	_, err = connectWith(e, 3)
	check(err)
	w.setDirty(8192)

	w.caches.Reboot()
	w.minors = map[int]drbd.Status{} // the host lost its power
	w.restarted()
	if _, there := w.lvs[volume.NameOf(ref)]; !there {
		t.Error("the replica was removed, and with it what was dirty")
	}
}

// TestTagsAreMadeSureOfWithoutAVerb: until then a start of the host would go by them.
func TestTagsAreMadeSureOfWithoutAVerb(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		e := w.engine()
		if err := e.PutReplica(t.Context(), putReq); err != nil {
			t.Fatal(err)
		}
		failsLate(t, w, func() error { return e.DeleteReplica(t.Context(), ref, nil) })
		if got := w.lvs[volume.NameOf(ref)].Tags["phase"]; got != string(volume.Deleting) {
			t.Fatalf("phase %q, so this test proves nothing", got)
		}
		go e.watcher.Tags(t.Context())
		time.Sleep(time.Minute)
		synctest.Wait()
		if got := w.lvs[volume.NameOf(ref)].Tags["phase"]; got != string(volume.Ready) {
			t.Errorf("phase %q", got)
		}
	})
}
