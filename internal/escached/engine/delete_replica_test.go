package engine

import (
	"testing"

	"github.com/escache/escache-csi/api/escache"
	"github.com/escache/escache-csi/internal/escached"
	"github.com/escache/escache-csi/internal/escached/cache"
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

// A disk that takes no writes is no reason to keep its replica for ever.
func TestAReplicaOnABrokenDiskCanBeRemoved(t *testing.T) {
	for n := 1; ; n++ {
		w := newWorld(t)
		e := w.engine()
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
		case "lvactivate", "wipe-md", "wipe " + volume.NameOf(ref):
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
