package engine

import (
	"context"
	"reflect"
	"testing"
	"testing/synctest"

	"github.com/escache/escache-csi/api/escache"
	"github.com/escache/escache-csi/internal/escached/host"
)

// aboutAttachment are the calls that name the attachment that they are about, in the order of a device's life.
func aboutAttachment(e *Engine, epoch int64) []lifeVerb {
	ctx := context.Background()
	return []lifeVerb{
		{"mode", func(*Engine) error {
			return e.SetMode(ctx, escache.ModeRequest{VolumeRef: ref, Epoch: epoch, Mode: escache.ModeWritethrough})
		}},
		{"resize", func(*Engine) error {
			return e.Resize(ctx, escache.ResizeRequest{VolumeRef: ref, Epoch: epoch, SizeBytes: 64 << 20})
		}},
		{"hold", func(*Engine) error {
			_, err := e.Hold(ctx, escache.HoldRequest{VolumeRef: ref, Epoch: epoch, MaxSeconds: 60})
			return err
		}},
		{"release", func(*Engine) error { return e.Release(ctx, escache.ReleaseRequest{VolumeRef: ref, Epoch: epoch}) }},
		{"flush", func(*Engine) error {
			_, err := e.Flush(ctx, escache.FlushRequest{VolumeRef: ref, Epoch: epoch, TimeoutSeconds: 5})
			return err
		}},
		{"stop", func(*Engine) error { return e.Stop(ctx, escache.StopRequest{VolumeRef: ref, Epoch: epoch}) }},
	}
}

// TestALateCallOfAnEarlierAttachmentChangesNothing: a call was under way for long, and the volume was given
// to this host again since. A late writeback would make data dirty that the record takes to be in Ceph. A late
// stop would take the device from the pod that starts, a late hold or release its snapshot.
func TestALateCallOfAnEarlierAttachmentChangesNothing(t *testing.T) {
	for what, held := range map[string]bool{"": false, "while it is held": true} {
		w := newWorld(t)
		e := w.engine()
		if err := e.PutReplica(t.Context(), putReq); err != nil {
			t.Fatal(err)
		}
		if _, err := connectWith(e, 5); err != nil {
			t.Fatal(err)
		}
		if held {
			if _, err := e.Hold(t.Context(), escache.HoldRequest{VolumeRef: ref, Epoch: 5, MaxSeconds: 600}); err != nil {
				t.Fatal(err)
			}
		} else {
			w.setDirty(4096)
		}
		before := one(t, e)
		for when, e := range map[string]*Engine{"": e, "after a restart": w.restarted()} {
			for _, verb := range aboutAttachment(e, 4) {
				if held && verb.name != "stop" && verb.name != "release" && verb.name != "hold" {
					continue // it is refused for that
				}
				if err := verb.do(e); code(err) != escache.CodeStaleEpoch {
					t.Errorf("%s of attachment 4 %s %s: %v", verb.name, what, when, err)
				}
				if now := one(t, e); !reflect.DeepEqual(now, before) {
					t.Errorf("%s of attachment 4 %s %s:\n%+v, it was\n%+v", verb.name, what, when, now, before)
				}
			}
		}
	}
}

// TestACallIsCarriedOut if it is about the attachment that the host has, or about a later one that the host
// has not heard of yet, and if it does not say, as those of older callers.
func TestACallIsCarriedOut(t *testing.T) {
	for what, epoch := range map[string]int64{"the same attachment": 5, "a later one": 6, "an older caller": 0} {
		w := newWorld(t)
		e := w.engine()
		if err := e.PutReplica(t.Context(), putReq); err != nil {
			t.Fatal(err)
		}
		if _, err := connectWith(e, 5); err != nil {
			t.Fatal(err)
		}
		for _, verb := range aboutAttachment(e, epoch) {
			if err := verb.do(e); err != nil {
				t.Errorf("%s: %s: %v", what, verb.name, err)
			}
		}
		if s := one(t, e); s.State != escache.StateStandby || s.Epoch != 5 {
			t.Errorf("%s: %+v", what, s)
		}
	}
}

func TestALateCallChangesNothingOfAnImageWithoutACache(t *testing.T) {
	w := newWorld(t)
	e := w.restarted()
	if _, err := e.DevConnect(t.Context(), uncachedOf(5)); err != nil {
		t.Fatal(err)
	}
	run := func(what string, e *Engine, epoch int64, want escache.Code) {
		t.Helper()
		for _, verb := range aboutAttachment(e, epoch) {
			if verb.name != "flush" && verb.name != "resize" && verb.name != "stop" {
				continue // there is no cache for it
			}
			if err := verb.do(e); code(err) != want {
				t.Errorf("%s of attachment %d, %s: %v", verb.name, epoch, what, err)
			}
		}
	}
	run("now", e, 4, escache.CodeStaleEpoch)
	run("after a restart", w.restarted(), 4, escache.CodeStaleEpoch)
	if s := one(t, e); s.State != escache.StateConnected || len(w.maps) != 1 {
		t.Errorf("%+v, mapped are %v", s, w.maps)
	}
	run("now", e, 5, "")
}

// TestNoStatusSaysWriteThroughWhileAChangeOfModeRuns: a change goes on after its caller has given it up, and the
// kernel shows the old mode until the device is suspended, which waits for Ceph. Who was told of write-through
// meanwhile would take Ceph for complete, and then data become dirty.
func TestNoStatusSaysWriteThroughWhileAChangeOfModeRuns(t *testing.T) {
	const back, through = escache.ModeWriteback, escache.ModeWritethrough
	for what, test := range map[string]struct {
		from, to, then escache.Mode
		fails          bool
	}{
		"to write-back":                     {from: through, to: back, then: back},
		"to write-back, which fails":        {from: through, to: back, then: through, fails: true},
		"to write-through":                  {from: back, to: through, then: through},
		"to write-through, which is undone": {from: back, to: through, then: back, fails: true},
	} {
		t.Run(what, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				w, e, dm := connectedIn(t, test.from)
				caller, giveUp := context.WithCancel(t.Context())
				ended := make(chan error, 1)
				go func() { ended <- e.SetMode(caller, escache.ModeRequest{VolumeRef: ref, Mode: test.to}) }()
				<-dm.suspending
				giveUp()
				synctest.Wait()
				notWriteThrough(t, e, "while the device is being suspended")
				if test.fails {
					w.failAt = len(w.steps) + 1
				}
				close(dm.goOn)
				if err := <-ended; (err != nil) != test.fails {
					t.Fatalf("the call ended with %v", err)
				}
				hasMode(t, e, test.then)
			})
		})
	}
}

// TestNoStatusSaysWriteThroughWhileACallWaitsForItsTurn: it may get it after its caller has given it up.
func TestNoStatusSaysWriteThroughWhileACallWaitsForItsTurn(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		_, e, dm := connectedIn(t, escache.ModeWritethrough)
		close(dm.goOn)
		ownWorkEnds, err := e.Lock(ref, host.WorkAskArbiter)
		if err != nil {
			t.Fatal(err)
		}
		ended := make(chan error, 1)
		go func() {
			ended <- e.SetMode(t.Context(), escache.ModeRequest{VolumeRef: ref, Mode: escache.ModeWriteback})
		}()
		synctest.Wait()
		notWriteThrough(t, e, "while the call waits")
		ownWorkEnds()
		<-dm.suspending
		if err := <-ended; err != nil {
			t.Fatal(err)
		}
		hasMode(t, e, escache.ModeWriteback)
	})
}

// TestNoStatusSaysWriteThroughWhileItsDeviceMayBeMadeAgain: dev_connect makes it in another mode if the client of
// its map is fenced.
func TestNoStatusSaysWriteThroughWhileItsDeviceMayBeMadeAgain(t *testing.T) {
	_, e, _ := connectedIn(t, escache.ModeWritethrough)
	done, err := e.Lock(ref, verbConnect)
	if err != nil {
		t.Fatal(err)
	}
	notWriteThrough(t, e, "while dev_connect runs")
	done()
	hasMode(t, e, escache.ModeWritethrough)
}

// slowMapper makes suspending a device wait until goOn is closed, as it does while Ceph does not take what is
// under way.
type slowMapper struct{ suspending, goOn chan struct{} }

// connectedIn is a clean volume that is connected in a mode.
func connectedIn(t *testing.T, mode escache.Mode) (*world, *Engine, slowMapper) {
	t.Helper()
	w := newWorld(t)
	e := w.engine()
	if err := e.PutReplica(t.Context(), putReq); err != nil {
		t.Fatal(err)
	}
	if _, err := e.DevConnect(t.Context(), escache.ConnectRequest{
		VolumeRef: ref, ImageID: "10ab", Epoch: 5, Options: escache.ConnectOptions{Mode: mode},
	}); err != nil {
		t.Fatal(err)
	}
	hasMode(t, e, mode)
	dm := slowMapper{make(chan struct{}, 1), make(chan struct{})}
	w.caches.Suspending = func(string) { dm.suspending <- struct{}{}; <-dm.goOn }
	return w, e, dm
}

func hasMode(t *testing.T, e *Engine, mode escache.Mode) {
	t.Helper()
	state := map[escache.Mode]escache.State{
		escache.ModeWriteback: escache.StateConnected, escache.ModeWritethrough: escache.StateDraining,
	}[mode]
	if s := one(t, e); s.Mode != mode || s.State != state || s.DirtyBytes == nil || *s.DirtyBytes != 0 {
		t.Errorf("it is not clean in %s: %+v", mode, s)
	}
}

func notWriteThrough(t *testing.T, e *Engine, when string) {
	t.Helper()
	all, err := e.Status(t.Context(), nil)
	if err != nil || len(all.Volumes) != 1 {
		t.Fatalf("%+v, %v", all, err)
	}
	for _, s := range append(all.Volumes, one(t, e)) {
		if s.Mode != escache.ModeWriteback || s.State != escache.StateConnected {
			t.Errorf("%s: %+v", when, s)
		}
	}
}
