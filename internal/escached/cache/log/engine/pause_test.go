package engine

import (
	"context"
	"errors"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/escache/escache-csi/internal/escached/cache"
)

// writing is a write to block 1 that has begun.
func (h *host) writing(with byte) chan error {
	done := make(chan error, 1)
	go func() { done <- h.try(1, with) }()
	time.Sleep(20 * time.Millisecond)
	return done
}

func (h *host) imageHas(number int64) byte {
	h.mu.Lock()
	defer h.mu.Unlock()
	if block := h.origin[number*cache.BlockBytes]; block != nil {
		return block[0]
	}
	return 0
}

// TestAPauseOutlivesTheProcess: the next one acknowledges nothing either, whoever starts it.
func TestAPauseOutlivesTheProcess(t *testing.T) {
	h, e := assembled(t)
	must(t, e.Hold(t.Context(), volume, true))
	h.processes[volume].die()
	for _, revived := range []bool{false, true} {
		if revived {
			e = h.engine() // of another escached
			must(t, e.Revive(t.Context(), volume))
		}
		if s := stateOf(t, e); !s.Held || s.GoesOn {
			t.Errorf("revived %v: it is %+v", revived, s)
		}
	}
	written := h.writing(2)
	if len(written) > 0 || h.imageHas(1) != 1 {
		t.Errorf("a write is done: %v; the image has %d", len(written) > 0, h.imageHas(1))
	}
	must(t, e.Resume(t.Context(), volume))
	must(t, <-written)
	h.holds(1, 2)
}

// TestAPauseThatIsNotCompleteIsNone: then a hold is made anew, and whoever began it sees that.
func TestAPauseThatIsNotCompleteIsNone(t *testing.T) {
	for name, spoil := range map[string]func(t *testing.T, h *host, e *Engine){
		"the process died before the image had everything": func(t *testing.T, h *host, e *Engine) {
			h.Refuse(true)
			if err := e.Hold(t.Context(), volume, true); !errors.Is(err, cache.ErrFailed) {
				t.Errorf("Hold: %v", err)
			}
			h.Refuse(false)
			h.processes[volume].die()
			must(t, e.Revive(t.Context(), volume))
		},
		"escached was killed when it had suspended the device": func(t *testing.T, h *host, e *Engine) {
			p, err := e.plans.get(volume)
			must(t, err)
			p.Holding = true
			must(t, e.plans.put(volume, p))
			must(t, h.SuspendNoFreeze(t.Context(), volume, front(volume)))
		},
		"somebody has resumed the device": func(t *testing.T, h *host, e *Engine) {
			must(t, e.Hold(t.Context(), volume, true))
			must(t, h.Resume(t.Context(), volume, front(volume)))
		},
		"the process has lost the hold": func(t *testing.T, h *host, e *Engine) {
			must(t, e.Hold(t.Context(), volume, true))
			h.processes[volume].device.Resume()
		},
	} {
		h, e := assembled(t)
		spoil(t, h, e)
		if s := stateOf(t, e); !s.Held || !s.GoesOn {
			t.Errorf("%s: it is %+v", name, s)
		}
		must(t, e.Resume(t.Context(), volume))
		h.write(1, 2)
		must(t, e.Hold(t.Context(), volume, true))
		if s := stateOf(t, e); !s.Held || s.GoesOn || h.imageHas(1) != 2 {
			t.Errorf("%s: held again it is %+v, and the image has %d", name, s, h.imageHas(1))
		}
	}
}

// TestFailEndsTheIOThatAPauseKeeps: another host has the volume.
func TestFailEndsTheIOThatAPauseKeeps(t *testing.T) {
	h, e := assembled(t)
	must(t, e.Hold(t.Context(), volume, true))
	written := h.writing(2)
	must(t, e.Fail(t.Context(), volume))
	if err := <-written; err == nil {
		t.Error("a write succeeds that nothing serves")
	}
	must(t, e.Remove(t.Context(), volume))
	if len(h.nbd)+len(h.fronts) > 0 {
		t.Errorf("left: %v, %v", h.nbd, h.fronts)
	}
}

// TestPausedVolumesAreOfOneMoment: one writer writes a number to the first volume and then to the second, each
// stable when it is acknowledged. The images of a hold of both are a prefix of that, also if the second one's comes
// later, or its process dies in between.
func TestPausedVolumesAreOfOneMoment(t *testing.T) {
	first, one := assembled(t)
	second, other := assembled(t)
	ctx, cancel := context.WithCancel(t.Context())
	var mu sync.Mutex
	acknowledged := byte(1) // on both
	ended := make(chan error, 1)
	go func() {
		for n := byte(2); n < 250 && ctx.Err() == nil; n++ {
			if err := errors.Join(first.try(1, n), second.try(1, n)); err != nil {
				ended <- err
				return
			}
			mu.Lock()
			acknowledged = n
			mu.Unlock()
			time.Sleep(time.Millisecond)
		}
		ended <- nil
	}()
	for round := range 10 {
		time.Sleep(5 * time.Millisecond)
		mu.Lock()
		before := acknowledged
		mu.Unlock()
		must(t, one.Hold(ctx, volume, true))
		time.Sleep(5 * time.Millisecond) // the writer would go on, if it could
		must(t, other.Hold(ctx, volume, true))
		if round%2 == 1 {
			second.processes[volume].die()
			must(t, other.Revive(ctx, volume))
		}
		if a, b := first.imageHas(1), second.imageHas(1); a < b || a > b+1 || b < before {
			t.Errorf("the images have %d and %d, after %d was acknowledged on both", a, b, before)
		}
		must(t, one.Resume(ctx, volume))
		must(t, other.Resume(ctx, volume))
	}
	cancel()
	must(t, <-ended)
}

func TestAPauseFreezesNoFilesystem(t *testing.T) {
	h, e := assembled(t)
	h.steps = nil
	must(t, e.Hold(t.Context(), volume, true))
	must(t, e.Resume(t.Context(), volume))
	if want := []string{"pause " + front(volume), "resume " + front(volume)}; !slices.Equal(h.steps, want) {
		t.Errorf("did %q", h.steps)
	}
}
