package engine

import (
	"cmp"
	"context"
	"errors"
	"testing"
	"time"

	"github.com/escache/escache-csi/api/escache"
	"github.com/escache/escache-csi/internal/escached/cache"
	"github.com/escache/escache-csi/internal/escached/problem"
	"github.com/escache/escache-csi/internal/escached/volume"
	"github.com/escache/escache-csi/internal/pause"
)

// pausable is a host with a volume of the engine log.
func pausable(t *testing.T) (*world, *Engine) {
	t.Helper()
	w := withLog(t)
	w.log.GoesOn = true
	e := w.engine()
	if err := errors.Join(putLog(e, t), connectLog(e, t, 3)); err != nil {
		t.Fatal(err)
	}
	return w, e
}

// TestAPauseIsToldAndKept: also where I/O would go on, and when it went on in an earlier hold.
func TestAPauseIsToldAndKept(t *testing.T) {
	w, e := pausable(t)
	name := volume.NameOf(ref)
	var before time.Time
	for _, step := range []struct {
		pause, rests, extends bool
		seconds               int
	}{{false, false, false, 60}, {true, true, false, 60}, {true, true, true, 1}, {false, true, true, 1}} {
		held, err := e.Hold(t.Context(), escache.HoldRequest{VolumeRef: ref, MaxSeconds: step.seconds, Pause: step.pause})
		if err != nil {
			t.Fatal(err)
		}
		states, err := w.log.States(t.Context(), name)
		if s := states[name]; err != nil || held.Paused != step.rests || s.GoesOn == step.rests ||
			held.HeldUntil.Equal(before) != step.extends {
			t.Errorf("%+v: answered %+v after %s, and it is %+v, %v", step, held, before, s, err)
		}
		before = held.HeldUntil
	}
}

// TestAPauseThatIsOverIsNotTold: I/O has gone on, so a group snapshot that relies on it must not count.
func TestAPauseThatIsOverIsNotTold(t *testing.T) {
	w, e := pausable(t)
	if _, err := e.Hold(t.Context(), escache.HoldRequest{VolumeRef: ref, MaxSeconds: 60, Pause: true}); err != nil {
		t.Fatal(err)
	}
	if statusOf(e, t).HeldUntil == nil {
		t.Fatal("it is not held")
	}
	if err := errors.Join(w.log.Resume(t.Context(), volume.NameOf(ref)), w.log.Hold(t.Context(), volume.NameOf(ref), false)); err != nil {
		t.Fatal(err)
	}
	for _, e := range []*Engine{e, w.restarted()} {
		if until := statusOf(e, t).HeldUntil; until != nil {
			t.Errorf("it is paused until %s, and I/O goes on", until)
		}
	}
}

// deafCache is an engine whose Hold returns when the caller's time is up.
type deafCache struct{ cache.Engine }

func (d deafCache) Hold(ctx context.Context, name string, pause bool) error {
	err := d.Engine.Hold(ctx, name, pause)
	<-ctx.Done()
	return errors.Join(err, ctx.Err())
}

// lyingCache is an engine that lets I/O go on in a pause.
type lyingCache struct{ cache.Engine }

func (l lyingCache) Hold(ctx context.Context, name string, _ bool) error {
	return l.Engine.Hold(ctx, name, false)
}

// TestAPauseThatCannotBeHadLetsIOGoOn, however long the image takes, and if the engine does not pause.
func TestAPauseThatCannotBeHadLetsIOGoOn(t *testing.T) {
	for code, engine := range map[escache.Code]func(cache.Engine) cache.Engine{
		escache.CodeTimeout:  func(e cache.Engine) cache.Engine { return deafCache{e} },
		escache.CodeInternal: func(e cache.Engine) cache.Engine { return lyingCache{e} },
	} {
		w, e := pausable(t)
		e.Caches[escache.EngineLog] = engine(w.log)
		begun := time.Now()
		_, err := e.Hold(t.Context(), escache.HoldRequest{VolumeRef: ref, MaxSeconds: 1, Pause: true})
		if got := problem.Of(err).Code; err == nil || got != code || time.Since(begun) > 20*time.Second {
			t.Errorf("%s: after %s: %v", code, time.Since(begun), err)
		}
		states, err := w.log.States(t.Context(), volume.NameOf(ref))
		if s := states[volume.NameOf(ref)]; err != nil || s.Held || statusOf(e, t).HeldUntil != nil {
			t.Errorf("%s: it is %+v, %v", code, s, err)
		}
	}
}

// slowCache is an engine that writes back for longer than a second, and does not begin what is late.
type slowCache struct{ cache.Engine }

func (s slowCache) WriteBack(ctx context.Context, name string) error {
	return cmp.Or(s.Engine.WriteBack(ctx, name), pause.For(ctx, 1100*time.Millisecond))
}

func (s slowCache) Hold(ctx context.Context, name string, pause bool) error {
	return cmp.Or(ctx.Err(), s.Engine.Hold(ctx, name, pause))
}

// TestThePauseBeginsWhenTheVolumeIsWrittenBack: I/O goes on until then, however long it takes.
func TestThePauseBeginsWhenTheVolumeIsWrittenBack(t *testing.T) {
	w, e := pausable(t)
	e.Caches[escache.EngineLog] = slowCache{w.log}
	asked := time.Now()
	held, err := e.Hold(t.Context(), escache.HoldRequest{VolumeRef: ref, MaxSeconds: 1, Pause: true})
	if err != nil || !held.Paused || held.HeldUntil.Before(asked.Add(2*time.Second)) {
		t.Errorf("asked at %s for a second: %+v, %v", asked, held, err)
	}
}

// dyingCache is an engine during whose work escached is killed.
type dyingCache struct {
	cache.Engine

	at string
}

func (d dyingCache) WriteBack(ctx context.Context, name string) error {
	if d.at == "before the record" {
		panic(killed{d.at})
	}
	return d.Engine.WriteBack(ctx, name)
}

func (d dyingCache) Hold(ctx context.Context, name string, pause bool) error {
	if d.at == "on record" {
		panic(killed{d.at})
	}
	if err := d.Engine.Hold(ctx, name, pause); err != nil {
		return err
	}
	panic(killed{d.at})
}

// TestAPauseEndsInTimeWhereverEscachedIsKilled: no I/O rests for ever. A pause that was complete goes on after the restart,
// and one that is asked for again is had.
func TestAPauseEndsInTimeWhereverEscachedIsKilled(t *testing.T) {
	const longest = time.Minute
	request := escache.HoldRequest{VolumeRef: ref, MaxSeconds: int(longest / time.Second), Pause: true}
	for at, rests := range map[string]bool{"before the record": false, "on record": false, "suspended": true} {
		for what, meanwhile := range map[string]func(*Engine) error{
			"left alone":  func(*Engine) error { return nil },
			"asked again": func(e *Engine) error { _, err := e.Hold(t.Context(), request); return err },
		} {
			w, e := pausable(t)
			e.Caches[escache.EngineLog] = dyingCache{w.log, at}
			if died, err := dieAt(func() error { _, err := e.Hold(t.Context(), request); return err }); !died {
				t.Fatalf("%s: it was not killed: %v", at, err)
			}
			for restart := range 2 { // and killed again
				e = w.restarted()
				e.Caches[escache.EngineLog] = w.log
				if restart == 1 {
					if err := meanwhile(e); err != nil {
						t.Errorf("%s, %s: %v", at, what, err)
					}
				}
				want := rests || restart == 1 && what == "asked again"
				e.releaseAllOverdue(t.Context()) // its time is not up
				if s, held := w.stateOfLog(), statusOf(e, t).HeldUntil; s.Held != want || s.GoesOn || (held != nil) != want {
					t.Errorf("%s, %s, restart %d: it is %+v, told as held until %v", at, what, restart, s, held)
				}
			}
			boot := e.Uptime()
			e.Uptime = func() time.Duration { return boot + longest + time.Second }
			e.releaseAllOverdue(t.Context())
			if s := w.stateOfLog(); s.Held || len(e.Holds.List()) > 0 {
				t.Errorf("%s, %s: after its time it is %+v, and on record is %+v", at, what, s, e.Holds.List())
			}
			if err := e.Release(t.Context(), escache.ReleaseRequest{VolumeRef: ref}); err != nil {
				t.Errorf("%s, %s: a release that comes late: %v", at, what, err)
			}
		}
	}
}

// stateOfLog is the state of the volume's device.
func (w *world) stateOfLog() cache.State {
	states, err := w.log.States(w.t.Context(), volume.NameOf(ref))
	if err != nil {
		w.t.Fatal(err)
	}
	return states[volume.NameOf(ref)]
}
