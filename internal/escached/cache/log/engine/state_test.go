package engine

import (
	"context"
	"errors"
	"testing"

	"github.com/escache/escache-csi/internal/escached/cache"
	"github.com/escache/escache-csi/internal/escached/cache/log/control"
)

// Whoever hears that nothing becomes dirty may take Ceph for complete. What counts is what the process does, not what was asked for.
func TestTheStateHasTheModeInWhichTheProcessWrites(t *testing.T) {
	for name, interrupt := range map[string]func(h *host, e *Engine){
		"the process dies before it answers": func(h *host, e *Engine) {
			died := make(chan struct{})
			h.onSet(func() {}, func(p *fakeProcess) { p.die(); close(died) })
			if err := e.SetMode(t.Context(), volume, cache.Writeback); !errors.Is(err, cache.ErrUnserved) {
				t.Errorf("SetMode: %v", err)
			}
			<-died
			h.onSet(func() {}, func(*fakeProcess) {})
			must(t, e.Revive(t.Context(), volume))
		},
		"the process does it when nobody waits any more": func(h *host, e *Engine) {
			late, done := make(chan struct{}), make(chan struct{})
			ctx, leave := context.WithCancel(t.Context())
			h.onSet(func() { leave(); <-late }, func(*fakeProcess) { close(done) })
			if err := e.SetMode(ctx, volume, cache.Writeback); !errors.Is(err, cache.ErrUnserved) {
				t.Errorf("SetMode: %v", err)
			}
			close(late)
			<-done
			h.onSet(func() {}, func(*fakeProcess) {})
		},
		"escached dies before it asks": func(_ *host, e *Engine) {
			must(t, e.SetMode(t.Context(), volume, cache.Writeback))
			p, err := e.plans.get(volume)
			must(t, err)
			p.Options.Mode = cache.Writethrough
			must(t, e.plans.put(volume, p))
		},
	} {
		t.Run(name, func(t *testing.T) {
			h, e := assembled(t)
			must(t, e.SetMode(t.Context(), volume, cache.Writethrough))
			must(t, e.WriteBack(t.Context(), volume))
			interrupt(h, e)
			e = h.engine() // of another escached
			does := h.processes[volume].Status().Options
			if does.Mode != cache.Writeback {
				t.Fatalf("the process has %+v", does)
			}
			if s := stateOf(t, e); s.Options.Mode != does.Mode || !s.Held {
				t.Errorf("the process has %+v, and the state says %+v, held: %v", does, s.Options, s.Held)
			}
			h.write(2, 2)
			if s := stateOf(t, e); s.Dirty == 0 {
				t.Errorf("nothing is dirty after a write: %+v", s)
			}
			must(t, e.Resume(t.Context(), volume))
			if s := stateOf(t, e); s.Options.Mode != cache.Writethrough || s.Held || h.processes[volume].Status().Options.Mode != cache.Writethrough {
				t.Errorf("after Resume the state says %+v, held: %v", s.Options, s.Held)
			}
		})
	}
}

func TestTheStateHasTheOptionsOfTheProcess(t *testing.T) {
	h, e := assembled(t)
	want := cache.Options{Mode: cache.Writeback, HighWatermark: 70, LowWatermark: 30, MaxAgeSeconds: 60, StrictOrder: true}
	must(t, h.processes[volume].SetOptions(control.Of(want)))
	if s := stateOf(t, e); s.Options != want || !s.Held {
		t.Errorf("the state says %+v, held: %v", s.Options, s.Held)
	}
	must(t, e.SetOptions(t.Context(), volume, want))
	if s := stateOf(t, e); s.Options != want || s.Held {
		t.Errorf("the state says %+v, held: %v", s.Options, s.Held)
	}
}
