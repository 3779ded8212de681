package engine

import (
	"context"
	"errors"
	"math"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/escache/escache-csi/api/escache"
	"github.com/escache/escache-csi/internal/escached/cache"
	"github.com/escache/escache-csi/internal/escached/drbd"
	"github.com/escache/escache-csi/internal/escached/host"
	"github.com/escache/escache-csi/internal/escached/krbd"
	"github.com/escache/escache-csi/internal/escached/problem"
	"github.com/escache/escache-csi/internal/escached/volume"
)

var (
	ref    = escache.VolumeRef{Pool: "rbd", Image: "v1"}
	putReq = escache.ReplicaRequest{
		VolumeRef: ref, ImageID: "10ab", SizeBytes: 64 << 20, CacheBytes: 32 << 20, Port: 7800, Minor: 100,
		Nodes: []escache.ReplicaNode{{Name: "n1", Address: "10.0.0.1"}, {Name: "n2", Address: "10.0.0.2"}},
	}
)

func code(err error) escache.Code {
	if err == nil {
		return ""
	}
	return problem.Of(err).Code
}

// cut is a replica whose peer is gone, and whose own disk is like this.
func cut(disk escache.DiskState) drbd.Status {
	return drbd.Status{Connection: "WFConnection", Role: drbd.Secondary, PeerRole: "Unknown", Disk: disk, PeerDisk: "DUnknown"}
}

// linked is a Secondary beside a Secondary that is current.
func linked(connection escache.LinkState, disk escache.DiskState) drbd.Status {
	return drbd.Status{Connection: connection, Role: drbd.Secondary, PeerRole: drbd.Secondary, Disk: disk, PeerDisk: drbd.UpToDate}
}

func connectWith(e *Engine, epoch int64) (escache.ConnectResponse, error) {
	return e.DevConnect(context.Background(), escache.ConnectRequest{VolumeRef: ref, ImageID: "10ab", Epoch: epoch})
}

// dieAt runs a verb that is killed on its way and reports whether it was.
func dieAt(do func() error) (died bool, err error) {
	defer func() {
		if r := recover(); r != nil {
			if _, ok := r.(killed); !ok {
				panic(r)
			}
			died = true
		}
	}()
	return false, do()
}

func TestEveryVerbSucceedsWhenRepeatedAfterAFailureOrAKillAtEveryStep(t *testing.T) {
	for _, how := range []string{"failed", "failed late", "killed"} {
		for n := 1; ; n++ {
			w := newWorld(t)
			w.late = how == "failed late"
			e := w.engine()
			hit := false
			for _, verb := range lifeWithALoss(w) {
				if verb.name == "flush" && how == "killed" {
					continue // it runs in a goroutine of its own; a kill of it leaves nothing but what was dirty
				}
				before := len(w.steps)
				if verb.name == "flush" {
					w.setDirty(8192)
				}
				w.failAt, w.killAt = 0, 0
				// The n-th step of this verb, for every verb of this life.
				if how == "killed" {
					w.killAt = before + n
				} else {
					w.failAt = before + n
				}
				died, err := dieAt(func() error { return verb.do(e) })
				broke := died || errors.Is(err, errInjected)
				hit = hit || broke
				if err != nil && !broke {
					t.Fatalf("%s: %v", verb.name, err)
				}
				at := ""
				if broke {
					at = w.steps[before+n-1]
				}
				if died {
					e = w.restarted()
				}
				w.failAt, w.killAt = 0, 0
				if err := verb.do(e); err != nil {
					t.Fatalf("%s, %s at step %d (%s), repeated: %v", verb.name, how, n, at, err)
				}
			}
			if left := w.left(); len(left) > 0 {
				t.Fatalf("%s at step %d of each verb: left behind %q", how, n, left)
			}
			if !hit {
				break // no verb has that many steps
			}
		}
	}
}

func TestAConnectThatFailsLeavesAStandby(t *testing.T) {
	for name, c := range map[string]struct {
		breakIt func(w *world)
		want    escache.Code
	}{
		"image held elsewhere":       {func(w *world) { w.mapErr = krbd.ErrInUse }, escache.CodeImageInUse},
		"no image":                   {func(w *world) { w.mapErr = krbd.ErrNotFound }, escache.CodeImageNotFound},
		"no Ceph":                    {func(w *world) { w.mapErr = krbd.ErrUnavailable }, escache.CodeCephUnavailable},
		"another image of that name": {func(w *world) { w.image.ImageID = "20cd" }, escache.CodeIdentityMismatch},
		"image shrunk":               {func(w *world) { w.image.Bytes = 4096 }, escache.CodeIdentityMismatch},
		"arbiter refuses": {func(w *world) {
			w.promote = drbd.ErrPeerNotFenced
			w.minors[100] = cut(drbd.UpToDate)
		}, escache.CodeFencingRefused},
		"old primary alone": {func(w *world) {
			w.promote = drbd.ErrNoCurrentData
			w.minors[100] = cut(drbd.Consistent)
		}, escache.CodeFencingRefused},
		"outdated": {func(w *world) {
			w.minors[100] = cut(drbd.Outdated)
		}, escache.CodeOutdated},
		"resync running": {func(w *world) {
			w.minors[100] = linked("SyncTarget", drbd.Inconsistent)
		}, escache.CodeOutdated},
		"metadata zeroed":     {func(w *world) { clear(w.blocks("/dev/drbd100")[cache.HeaderBytes:]) }, escache.CodeCacheCorrupt},
		"metadata is garbage": {func(w *world) { w.blocks("/dev/drbd100")[cache.HeaderBytes] = 1 }, escache.CodeCacheCorrupt},
		"header zeroed":       {func(w *world) { clear(w.blocks("/dev/drbd100")[:4096]) }, escache.CodeCacheCorrupt},
		"header damaged":      {func(w *world) { w.blocks("/dev/drbd100")[30] ^= 1 }, escache.CodeCacheCorrupt},
		"cache of another volume": {func(w *world) {
			block, _ := cache.Header{Identity: cache.Identity{Pool: "rbd", Image: "v2", ImageID: "30ef"}, Formatted: true}.Block()
			copy(w.blocks("/dev/drbd100"), block)
		}, escache.CodeIdentityMismatch},
	} {
		w := newWorld(t)
		e := w.engine()
		for _, verb := range verbsOfALife() {
			if verb.name == "delete_replica" {
				break
			}
			if err := verb.do(e); err != nil {
				t.Fatal(name, verb.name, err)
			}
		}
		c.breakIt(w)
		disk := slices.Clone(w.blocks("/dev/drbd100"))
		_, err := connectWith(e, 2)
		if code(err) != c.want {
			t.Errorf("%s: got %v, want %s", name, err, c.want)
		}
		if len(w.maps)+w.connected() != 0 || w.minors[100].Role != drbd.Secondary {
			t.Errorf("%s: half a device is left: %q", name, w.left())
		}
		if !slices.Equal(disk, w.blocks("/dev/drbd100")) {
			t.Errorf("%s: the refused connect wrote to the cache", name)
		}
	}
}

func TestALinkThatBreaksInTheFirstConnectIsWaitedFor(t *testing.T) {
	w := newWorld(t)
	e := w.engine()
	if err := e.PutReplica(t.Context(), putReq); err != nil {
		t.Fatal(err)
	}
	w.linkLost = true
	if _, err := connectWith(e, 1); err != nil || w.linkLost {
		t.Fatalf("%v; the link broke: %v", err, !w.linkLost)
	}
}

func TestEpochsOnlyGrow(t *testing.T) {
	w := newWorld(t)
	e := w.engine()
	if err := e.PutReplica(t.Context(), putReq); err != nil {
		t.Fatal(err)
	}
	first, err := connectWith(e, 5)
	if err != nil {
		t.Fatal(err)
	}
	steps := len(w.steps)
	if again, err := connectWith(e, 5); err != nil || again != first || len(w.steps) != steps {
		t.Fatalf("a repeat must answer the same and change nothing: %+v, %v, %q", again, err, w.steps[steps:])
	}
	if again, err := connectWith(e, 6); err != nil || again != first {
		t.Fatalf("a newer epoch is taken over in place: %+v, %v", again, err)
	}
	for _, e := range []*Engine{e, w.restarted()} {
		if _, err := connectWith(e, 5); code(err) != escache.CodeStaleEpoch {
			t.Fatalf("an older epoch must be refused, also after a restart: %v", err)
		}
	}
}

func TestADirtyVolumeIsNotDropped(t *testing.T) {
	w := newWorld(t)
	e := w.engine()
	if err := e.PutReplica(t.Context(), putReq); err != nil {
		t.Fatal(err)
	}
	if _, err := connectWith(e, 1); err != nil {
		t.Fatal(err)
	}
	if err := e.DeleteReplica(t.Context(), ref, new(int64(math.MaxInt64))); code(err) != escache.CodeConnected {
		t.Errorf("delete while connected, even with discard: %v", err)
	}
	w.setDirty(4096)
	if err := e.Stop(t.Context(), escache.StopRequest{VolumeRef: ref}); code(err) != escache.CodeDirty {
		t.Errorf("stop while dirty: %v", err)
	}
	// The host dies with it; after the boot it is a standby with dirty data.
	w.caches.Reboot()
	w.maps = nil
	w.minors[100] = linked(drbd.Connected, drbd.UpToDate)
	e = w.restarted()
	if err := e.DeleteReplica(t.Context(), ref, nil); code(err) != escache.CodeDirty {
		t.Errorf("delete while dirty: %v", err)
	}
	st := w.minors[100]
	st.Disk = drbd.Diskless
	w.minors[100] = st
	if err := e.DeleteReplica(t.Context(), ref, nil); code(err) != escache.CodeDirtyUnknown {
		t.Errorf("delete without knowing: %v", err)
	}
	if err := e.DeleteReplica(t.Context(), ref, new(int64(math.MaxInt64))); err != nil || len(w.left()) > 0 {
		t.Errorf("discard is a decision: %v, %q", err, w.left())
	}
}

func TestStopRefusesWhatIsInUse(t *testing.T) {
	for want, change := range map[escache.Code]func(*cache.State){
		escache.CodeDeviceOpen:   func(s *cache.State) { s.Open = 1 },
		escache.CodeCacheError:   func(s *cache.State) { s.Failed = true },
		escache.CodeHeld:         func(s *cache.State) { s.Held = true },
		escache.CodeDirtyUnknown: func(s *cache.State) { s.Known = false },
	} {
		w := newWorld(t)
		e := w.engine()
		if err := e.PutReplica(t.Context(), putReq); err != nil {
			t.Fatal(err)
		}
		if _, err := connectWith(e, 1); err != nil {
			t.Fatal(err)
		}
		w.caches.Alter(volume.NameOf(ref), change)
		if err := e.Stop(t.Context(), escache.StopRequest{VolumeRef: ref}); code(err) != want {
			t.Errorf("want %s, got %v", want, err)
		}
	}
}

func TestAnOverdueHoldIsReleasedAlsoAfterARestart(t *testing.T) {
	for _, restart := range []bool{false, true} {
		w, e := inUse(t)
		if _, err := e.Hold(t.Context(), escache.HoldRequest{VolumeRef: ref, MaxSeconds: 1}); err != nil {
			t.Fatal(err)
		}
		if code(e.Stop(t.Context(), escache.StopRequest{VolumeRef: ref})) != escache.CodeHeld {
			t.Error("a held volume must not be stopped")
		}
		if restart {
			e = w.restarted()
			if !w.state().Held {
				t.Fatal("a restart must not end a hold")
			}
		}
		ctx, cancel := context.WithTimeout(t.Context(), 5*time.Second)
		go func() {
			defer cancel()
			for e.Holds.Get(volume.NameOf(ref)) != nil && ctx.Err() == nil {
				time.Sleep(10 * time.Millisecond)
			}
		}()
		e.WatchHolds(ctx)
		if w.state().Held {
			t.Errorf("restart %v: the watchdog did not release", restart)
		}
	}
}

func TestASecondCallLearnsTheRunningVerb(t *testing.T) {
	w := newWorld(t)
	e := w.engine()
	release, err := e.Lock(ref, "dev_connect")
	if err != nil {
		t.Fatal(err)
	}
	if err := e.PutReplica(t.Context(), putReq); code(err) != escache.CodeBusy {
		t.Fatalf("got %v", err)
	}
	release()
	if err := e.PutReplica(t.Context(), putReq); err != nil {
		t.Fatal(err)
	}
}

func TestAVerbWaitsForWorkThatNobodyAskedFor(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const work = 3 * time.Second
		e := newWorld(t).restarted()
		for _, verb := range verbsOfALife() {
			release, err := e.Lock(ref, host.WorkReconnect)
			if err != nil {
				t.Fatal(err)
			}
			go func() { time.Sleep(work); release() }()
			start := time.Now()
			if err := verb.do(e); err != nil || time.Since(start) < work {
				t.Fatalf("%s: after %s: %v", verb.name, time.Since(start), err)
			}
		}
	})
}

func TestAVerbDoesNotWaitForLong(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		e := newWorld(t).restarted()
		if _, err := e.Lock(ref, host.WorkReconnect); err != nil {
			t.Fatal(err)
		}
		if err := e.PutReplica(t.Context(), putReq); code(err) != escache.CodeBusy {
			t.Errorf("the work hangs: %v", err)
		}
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		start := time.Now()
		if err := e.PutReplica(ctx, putReq); code(err) != escache.CodeBusy || time.Since(start) > 2*time.Second {
			t.Errorf("the caller hangs up: after %s: %v", time.Since(start), err)
		}
	})
}

func TestWhatALateMapLeftIsGivenBackAndAConnectedVolumeIsNot(t *testing.T) {
	w, e := inUse(t)
	if found := e.watcher.FindLeftovers(t.Context()); len(found) > 0 {
		t.Fatalf("a connected volume is no leftover: %+v", found)
	}
	w.caches.Reboot() // as if the map had come after the connect was given up
	found := e.watcher.FindLeftovers(t.Context())
	if len(found) != 1 {
		t.Fatalf("got %+v", found)
	}
	e.watcher.CleanUp(t.Context(), found[0])
	if len(w.maps) > 0 || w.minors[100].Role != drbd.Secondary {
		t.Fatalf("left: %q", w.left())
	}
}
