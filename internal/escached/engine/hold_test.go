package engine

import (
	"context"
	"errors"
	"log/slog"
	"path/filepath"
	"testing"
	"testing/synctest"
	"time"

	"github.com/escache/escache-csi/api/escache"
	"github.com/escache/escache-csi/internal/escached"
	"github.com/escache/escache-csi/internal/escached/cache"
	"github.com/escache/escache-csi/internal/escached/server"
	"github.com/escache/escache-csi/internal/escached/volume"
)

// heldVolume is a host whose volume is held for a minute.
func heldVolume(t *testing.T) (*world, *Engine, escache.HoldResponse) {
	t.Helper()
	w, e := inUse(t)
	held, err := e.Hold(t.Context(), escache.HoldRequest{VolumeRef: ref, MaxSeconds: 60})
	if err != nil {
		t.Fatal(err)
	}
	return w, e, held
}

// TestAHoldThatIsOverIsNotTold: escached was killed after I/O went on and before it forgot the hold.
// A snapshot that is taken then must not count.
func TestAHoldThatIsOverIsNotTold(t *testing.T) {
	w, e, held := heldVolume(t)
	status, err := e.Status(t.Context(), &ref)
	if got := status.Volumes[0].HeldUntil; err != nil || got == nil || !got.Equal(held.HeldUntil) {
		t.Fatalf("held until %v, %v; the answer was %v", got, err, held.HeldUntil)
	}
	if err := w.caches.Resume(t.Context(), volume.NameOf(ref)); err != nil {
		t.Fatal(err)
	}
	for _, e := range []*Engine{e, w.restarted()} {
		status, err := e.Status(t.Context(), &ref)
		if got := status.Volumes[0].HeldUntil; err != nil || got != nil {
			t.Errorf("held until %v, and I/O goes on: %v", got, err)
		}
	}
}

// TestASecondHoldHasWhatWasWrittenDuringTheFirst: with the engine log I/O goes on during a hold. Who began the
// first one must see that it is over.
func TestASecondHoldHasWhatWasWrittenDuringTheFirst(t *testing.T) {
	w := withLog(t)
	w.log.GoesOn = true
	e := w.engine()
	if err := errors.Join(putLog(e, t), connectLog(e, t, 3)); err != nil {
		t.Fatal(err)
	}
	name := volume.NameOf(ref)
	var before time.Time
	for n, seconds := range []int{60, 60, 1} {
		held, err := e.Hold(t.Context(), escache.HoldRequest{VolumeRef: ref, MaxSeconds: seconds})
		if err != nil {
			t.Fatal(err)
		}
		states, err := w.log.States(t.Context(), name)
		if s := states[name]; err != nil || !s.Held || s.Dirty != 0 {
			t.Errorf("hold %d: it is %+v, %v", n, s, err)
		}
		if until := statusOf(e, t).HeldUntil; until == nil || !until.Equal(held.HeldUntil) || until.Equal(before) {
			t.Errorf("hold %d lasts until %v; the answer was %s, and that of the hold before %s", n, until, held.HeldUntil, before)
		}
		before = held.HeldUntil
		f, err := w.log.Open(states[name].Path)
		if err == nil {
			_, err = f.WriteAt(make([]byte, cache.BlockBytes), int64(n)*cache.BlockBytes)
			err = errors.Join(err, f.Close())
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	if err := e.Release(t.Context(), escache.ReleaseRequest{VolumeRef: ref}); err != nil {
		t.Error(err)
	}
	if until := statusOf(e, t).HeldUntil; until != nil {
		t.Errorf("it is held until %s after release", until)
	}
}

// TestAHoldEndsInTimeWhenTheClockIsSetBack: its end is counted by a clock that does not step.
func TestAHoldEndsInTimeWhenTheClockIsSetBack(t *testing.T) {
	w, e, _ := heldVolume(t)
	boot := e.Uptime()
	for _, tc := range []struct {
		passed  time.Duration
		stepped time.Duration
		held    bool
	}{
		{59 * time.Second, 0, true},
		{59 * time.Second, 24 * time.Hour, true},
		{61 * time.Second, -time.Hour, false},
	} {
		e.Uptime = func() time.Duration { return boot + tc.passed }
		e.Now = func() time.Time { return time.Now().Add(tc.passed + tc.stepped) }
		e.releaseAllOverdue(t.Context())
		if w.state().Held != tc.held {
			t.Errorf("after %s, with the clock %s off: held %v", tc.passed, tc.stepped, w.state().Held)
		}
	}
}

// TestAHoldEndsInTimeWhileLVMDoesNotAnswer: escached was started again during the hold, and cannot learn which volumes it has.
func TestAHoldEndsInTimeWhileLVMDoesNotAnswer(t *testing.T) {
	w, e, _ := heldVolume(t)
	boot := e.Uptime()
	w.spaceErr = errInjected
	e = w.engine()
	e.Uptime = func() time.Duration { return boot + 61*time.Second }
	ctx, stop := context.WithTimeout(t.Context(), time.Minute)
	go func() {
		defer stop()
		for e.Holds.Get(volume.NameOf(ref)) != nil && ctx.Err() == nil {
			time.Sleep(10 * time.Millisecond)
		}
	}()
	cfg := escached.Config{Socket: filepath.Join(t.TempDir(), "socket")}
	if err := server.New(cfg, e, server.Seen{Log: slog.New(slog.DiscardHandler)}).Run(ctx); err != nil {
		t.Fatal(err)
	}
	if w.state().Held || e.Holds.Get(volume.NameOf(ref)) != nil {
		t.Error("the hold goes on after its end")
	}
}

// TestAHoldThatWasProlongedIsNotEnded: the watchdog has found it to be over, and waited for the volume's lock.
func TestAHoldThatWasProlongedIsNotEnded(t *testing.T) {
	w, e, _ := heldVolume(t)
	found := *e.Holds.Get(volume.NameOf(ref))
	prolonged := found
	prolonged.Ends += time.Minute
	if err := e.Holds.Put(prolonged); err != nil {
		t.Fatal(err)
	}
	e.Uptime = func() time.Duration { return found.Ends }
	e.releaseOverdue(t.Context(), found)
	if !w.state().Held || e.Holds.Get(volume.NameOf(ref)) == nil {
		t.Errorf("it is %+v, and on record is %+v", w.state(), e.Holds.Get(volume.NameOf(ref)))
	}
}

func TestTheRecoveryWaitsForAHoldThatEnds(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w, _, _ := heldVolume(t)
		e := w.engine()
		done, err := e.Lock(ref, "release")
		if err != nil {
			t.Fatal(err)
		}
		go func() { time.Sleep(time.Second); done() }()
		if err := e.Recover(t.Context()); err != nil {
			t.Fatal(err)
		}
		e.faults.Range(func(name, why any) bool { t.Errorf("recover %v: %v", name, why); return true })
	})
}

// TestAHoldOfADeviceThatIsGivenUpIsOnlyForgotten: what ends a hold could hang in the frozen I/O that only giving it up ends.
func TestAHoldOfADeviceThatIsGivenUpIsOnlyForgotten(t *testing.T) {
	w, e, _ := heldVolume(t)
	v, _ := e.Volumes.Get(volume.NameOf(ref))
	v.Phase = volume.Abandoning
	e.Volumes.Put(v)
	boot := e.Uptime()
	e.Uptime = func() time.Duration { return boot + 61*time.Second }
	e.releaseAllOverdue(t.Context())
	if !w.state().Held || e.Holds.Get(v.Name()) != nil {
		t.Errorf("it is %+v, and on record is %+v", w.state(), e.Holds.Get(v.Name()))
	}
}
