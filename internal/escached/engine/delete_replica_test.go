package engine

import (
	"context"
	"errors"
	"slices"
	"strings"
	"testing"
	"testing/synctest"

	"github.com/escache/escache-csi/api/escache"
	"github.com/escache/escache-csi/internal/escached"
	"github.com/escache/escache-csi/internal/escached/cache"
	"github.com/escache/escache-csi/internal/escached/drbd"
	"github.com/escache/escache-csi/internal/escached/faileddisk"
	"github.com/escache/escache-csi/internal/escached/volume"
)

// Whoever makes a logical volume at the same place finds neither a cache nor a replica there.
func TestARemovedReplicaLeavesNoCacheOnTheDisk(t *testing.T) {
	w := newWorld(t)
	e := w.engine()
	if err := e.PutReplica(t.Context(), putReq); err != nil {
		t.Fatal(err)
	}
	if _, err := connectWith(e, 2); err != nil {
		t.Fatal(err)
	}
	if err := e.Stop(t.Context(), escache.StopRequest{VolumeRef: ref}); err != nil {
		t.Fatal(err)
	}
	v, _ := e.Volumes.Get(volume.NameOf(ref))
	disk := w.caches.Raw(e.LocalDisk(v).Path)
	if cache.Blank(disk[:cache.BlockBytes]) {
		t.Fatal("nothing was written, so this test proves nothing")
	}
	if err := e.FailedDisks.Set(v.Name(), faileddisk.Recorded); err != nil {
		t.Fatal(err)
	}
	if err := e.DeleteReplica(t.Context(), ref, nil); err != nil {
		t.Fatal(err)
	}
	if !cache.Blank(disk[:cache.BlockBytes]) {
		t.Error("the cache's header is still there")
	}
	if w.md[v.Name()] {
		t.Error("DRBD's metadata is still there")
	}
	if got := e.FailedDisks.Get(v.Name()); got != faileddisk.Sound {
		t.Errorf("the mark is still there: %s", got)
	}
}

// large is a replica that is erased in three pieces.
func large() escache.ReplicaRequest {
	req := putReq
	req.CacheBytes = 600 << 20
	return req
}

func erasing(w *world) *Engine {
	e := w.engine()
	e.Config.Wipe = escached.WipeFull
	return e
}

func erased(w *world) (pieces []string) {
	for _, step := range w.steps {
		if strings.HasPrefix(step, "erase ") {
			pieces = append(pieces, step)
		}
	}
	return pieces
}

func TestARemovedReplicaIsErasedIfThatIsWanted(t *testing.T) {
	w := newWorld(t)
	e := erasing(w)
	if err := e.PutReplica(t.Context(), large()); err != nil {
		t.Fatal(err)
	}
	if got := erased(w); len(got) > 0 {
		t.Errorf("erased before anything was written: %q", got)
	}
	v, _ := e.Volumes.Get(volume.NameOf(ref))
	disk := w.caches.Raw(e.LocalDisk(v).Path)
	copy(disk[len(disk)/2:], "secret")
	if err := e.DeleteReplica(t.Context(), ref, new(int64(9))); err != nil {
		t.Fatal(err)
	}
	want := []string{"erase 0+268435456", "erase 268435456+268435456", "erase 536870912+0"}
	if got := erased(w); !slices.Equal(got, want) || !cache.Blank(disk) || w.md[v.Name()] || len(w.left()) > 0 {
		t.Errorf("%q; something is left: %q", got, w.left())
	}
}

// stoppedErasing is a host whose disk was too slow for the first call: one piece of three is erased.
func stoppedErasing(t *testing.T) (*world, *Engine) {
	t.Helper()
	w := newWorld(t)
	e := erasing(w)
	if err := e.PutReplica(t.Context(), large()); err != nil {
		t.Fatal(err)
	}
	w.eraseHangsAt = 256 << 20
	if err := e.DeleteReplica(t.Context(), ref, new(int64(9))); !errors.Is(err, context.DeadlineExceeded) || len(w.lvs) != 1 {
		t.Fatalf("error %v, left %q", err, w.left())
	}
	w.eraseHangsAt, w.steps = 0, nil
	return w, e
}

func TestErasingGoesOnWhereTheLastCallHasStopped(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w, e := stoppedErasing(t)
		if err := e.DeleteReplica(t.Context(), ref, new(int64(9))); err != nil || len(w.left()) > 0 {
			t.Fatalf("error %v, left %q", err, w.left())
		}
		if got := erased(w); len(got) != 2 || got[0] != "erase 268435456+268435456" {
			t.Errorf("the second call: %q", got)
		}
	})
}

// TestErasingInPartHasTheSameTextEachTime: Kubernetes makes an Event of each different text.
func TestErasingInPartHasTheSameTextEachTime(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w, e := stoppedErasing(t)
		var texts []string
		for _, at := range []int64{256 << 20, 512 << 20} {
			w.eraseHangsAt = at
			err := e.DeleteReplica(t.Context(), ref, new(int64(9)))
			if !errors.Is(err, context.DeadlineExceeded) {
				t.Fatal(err)
			}
			texts = append(texts, err.Error())
		}
		if texts[0] != texts[1] {
			t.Errorf("first %q, then %q", texts[0], texts[1])
		}
	})
}

func TestOneReplicaIsErasedAtATime(t *testing.T) {
	w := newWorld(t)
	e := erasing(w)
	if err := e.PutReplica(t.Context(), large()); err != nil {
		t.Fatal(err)
	}
	e.erasing.Lock() // another replica is erased
	if err := e.DeleteReplica(t.Context(), ref, new(int64(9))); code(err) != escache.CodeBusy || len(w.lvs) != 1 || len(erased(w)) > 0 {
		t.Errorf("error %v, erased %q, left %q", err, erased(w), w.left())
	}
	e.erasing.Unlock()
	if err := e.DeleteReplica(t.Context(), ref, new(int64(9))); err != nil || len(w.left()) > 0 {
		t.Errorf("error %v, left %q", err, w.left())
	}
}

// A start must not take as long as erasing disks: nobody is answered before.
func TestAStartLeavesErasingToTheNextCall(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w, _ := stoppedErasing(t)
		e := erasing(w)
		if err := e.Recover(t.Context()); err != nil {
			t.Fatal(err)
		}
		if got := erased(w); len(got) > 0 || len(w.lvs) != 1 {
			t.Errorf("the start erased %q, left %q", got, w.left())
		}
		if err := e.DeleteReplica(t.Context(), ref, nil); err != nil || len(w.left()) > 0 || len(erased(w)) != 3 {
			t.Errorf("error %v, erased %q, left %q", err, erased(w), w.left())
		}
	})
}

// A replica that could not be laid held nothing.
func TestWhatCouldNotBeLaidIsNotErased(t *testing.T) {
	w := newWorld(t)
	e := erasing(w)
	w.failAt = 3
	if err := e.PutReplica(t.Context(), large()); err == nil {
		t.Fatal("nothing failed")
	}
	if got := erased(w); len(got) > 0 || len(w.left()) > 0 {
		t.Errorf("erased %q, left %q", got, w.left())
	}
}

// A disk that takes no writes is no reason to keep its replica for ever.
func TestAReplicaOnABrokenDiskCanBeRemoved(t *testing.T) {
	for _, wipe := range []escached.Wipe{escached.WipeHeader, escached.WipeFull} {
		t.Run(string(wipe), func(t *testing.T) { removedFromBrokenDisk(t, wipe) })
	}
}

func removedFromBrokenDisk(t *testing.T, wipe escached.Wipe) {
	t.Helper()
	for n := 1; ; n++ {
		w := newWorld(t)
		e := w.engine()
		e.Config.Wipe = wipe
		if err := e.PutReplica(t.Context(), putReq); err != nil {
			t.Fatal(err)
		}
		steps := len(w.steps)
		w.failAt = steps + n
		err := e.DeleteReplica(t.Context(), ref, nil)
		if len(w.steps) < w.failAt {
			return
		}
		switch step := w.steps[w.failAt-1]; step {
		case "lvactivate", "wipe-md", "wipe " + volume.NameOf(ref), "erase 0+0":
			if err != nil || len(w.left()) > 0 {
				t.Errorf("%s failed: %v; left %v", step, err, w.left())
			}
		default:
			if err == nil {
				t.Errorf("%s failed, and the removal succeeded", step)
			}
		}
	}
}

// The operator wants no write to a disk for what is removed. What is laid there later is blank all the
// same.
// TestAMinorWithoutDiskAndLinkIsRemoved: the disk has died, and the peer has refused the link. A minor that stays in the
// kernel keeps the next volume with its number from that host.
func TestAMinorWithoutDiskAndLinkIsRemoved(t *testing.T) {
	w := newWorld(t)
	e := w.engine()
	if err := e.PutReplica(t.Context(), putReq); err != nil {
		t.Fatal(err)
	}
	w.minors[putReq.Minor] = drbd.Status{Connection: drbd.StandAlone, Role: drbd.Secondary, Disk: drbd.Diskless}
	if err := e.DeleteReplica(t.Context(), ref, &putReq.Epoch); err != nil {
		t.Fatal(err)
	}
	if left := w.left(); len(left) > 0 {
		t.Errorf("left: %q", left)
	}
}

func TestARemovedReplicaStaysOnTheDiskIfNothingIsToBeWiped(t *testing.T) {
	w := newWorld(t)
	e := w.engine()
	e.Config.Wipe = escached.WipeNone
	if err := e.PutReplica(t.Context(), putReq); err != nil {
		t.Fatal(err)
	}
	if _, err := connectWith(e, 2); err != nil {
		t.Fatal(err)
	}
	if err := e.Stop(t.Context(), escache.StopRequest{VolumeRef: ref}); err != nil {
		t.Fatal(err)
	}
	v, _ := e.Volumes.Get(volume.NameOf(ref))
	disk := w.caches.Raw(e.LocalDisk(v).Path)
	if err := e.DeleteReplica(t.Context(), ref, nil); err != nil {
		t.Fatal(err)
	}
	if cache.Blank(disk[:cache.BlockBytes]) || !w.md[v.Name()] || len(w.lvs) > 0 {
		t.Errorf("something was wiped, or is left: %q", w.left())
	}
	if err := e.PutReplica(t.Context(), putReq); err != nil {
		t.Fatal(err)
	}
	if !cache.Blank(w.caches.Raw(e.LocalDisk(v).Path)[:cache.BlockBytes]) {
		t.Error("the new replica begins with an old cache's header")
	}
}
