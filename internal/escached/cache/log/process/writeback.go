package process

import (
	"context"
	"errors"
	"log/slog"
	"sync"
	"time"

	"github.com/escache/escache-csi/internal/escached/cache"
	"github.com/escache/escache-csi/internal/escached/cache/log/control"
	"github.com/escache/escache-csi/internal/escached/cache/log/device"
	"github.com/escache/escache-csi/internal/pause"
)

const (
	// lookEvery is how often write-back looks at how full the log is. A writer that fills the log faster waits for the image.
	lookEvery = 200 * time.Millisecond
	// releaseAt is the part of the ring that may wait for its release: one in so many.
	releaseAt = 8
	// ageParts is how often in a maximum age write-back notes how far the log is.
	ageParts = 4
)

// writeBack brings to the image what is dirty: when the log gets full, when something gets old, and in write-through.
type writeBack struct {
	device *device.Device
	log    *slog.Logger

	mu      sync.Mutex // for what follows
	options control.Options
	changed chan struct{} // closed when options change
	told    bool          // that the image refuses
}

func newWriteBack(d *device.Device, o control.Options, log *slog.Logger) *writeBack {
	return &writeBack{device: d, log: log, options: o, changed: make(chan struct{})}
}

func (w *writeBack) set(o control.Options) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.options = o
	close(w.changed)
	w.changed = make(chan struct{})
}

// get returns the options as they were set, and what is closed when they change.
func (w *writeBack) get() (control.Options, chan struct{}) {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.options, w.changed
}

// run works until ctx ends.
func (w *writeBack) run(ctx context.Context) {
	var done sync.WaitGroup
	defer done.Wait()
	done.Go(func() { w.keepAges(ctx) })
	for pause.For(ctx, lookEvery) == nil {
		w.empty(ctx)
	}
}

// empty writes back until the low watermark if the high one is exceeded, and everything in write-through.
func (w *writeBack) empty(ctx context.Context) {
	o, _ := w.get()
	o = o.WithDefaults()
	s := w.device.State()
	w.tell(s)
	if o.Mode == cache.Writethrough && s.Dirty > 0 && !s.Held && s.Refused == nil {
		_ = w.device.WriteBack(ctx) // State says why it fails
	}
	if fill(s) > uint64(o.HighWatermark) {
		for ctx.Err() == nil && fill(s) > uint64(o.LowWatermark) {
			more, err := w.device.Step()
			if err != nil || !more {
				break // State says why
			}
			s = w.device.State()
		}
	}
	if (s.Log.Used - s.Log.Live) > s.Log.Ring/releaseAt {
		if err := w.device.Release(); err != nil && !errors.Is(err, device.ErrClosed) {
			w.log.Warn("room of the log could not be released; a writer tries it again when it needs it", "error", err)
		}
	}
}

// fill is how full the log is with what is not in the image, in percent, rounded up.
func fill(s device.State) uint64 { return ((s.Log.Ring-s.Log.Free)*100 + s.Log.Ring - 1) / s.Log.Ring }

// tell logs once that the image refuses writes, and once that it takes them again.
func (w *writeBack) tell(s device.State) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if refused := s.Refused != nil; refused != w.told {
		w.told = refused
		if refused {
			w.log.Error("the image refuses writes; what is dirty stays in the log until a retry", "error", s.Refused)
		} else {
			w.log.Info("write-back goes on")
		}
	}
}

// mark says how far the log was at some time.
type mark struct {
	at   time.Time
	last uint64
}

// keepAges brings to the image what gets as old as it may. It notes several times in a maximum age how far the log is, and brings what was
// noted before the last part of it.
func (w *writeBack) keepAges(ctx context.Context) {
	for ctx.Err() == nil {
		o, changed := w.get()
		age := time.Duration(o.MaxAgeSeconds) * time.Second
		if age == 0 {
			select {
			case <-ctx.Done():
			case <-changed:
			}
			continue
		}
		w.keepAge(ctx, age, changed)
	}
}

// keepAge returns when options change. What is dirty counts as new then.
func (w *writeBack) keepAge(ctx context.Context, age time.Duration, changed chan struct{}) {
	var marks []mark
	for {
		if last, err := w.device.Mark(ctx); err == nil {
			marks = append(marks, mark{time.Now(), last})
		}
		due := uint64(0)
		for len(marks) > 0 && time.Since(marks[0].at) >= age-2*age/ageParts {
			due, marks = marks[0].last, marks[1:]
		}
		if due > 0 {
			_ = w.device.BringUpTo(ctx, due) // State says why it fails; the next mark repeats it
		}
		select {
		case <-ctx.Done():
			return
		case <-changed:
			return
		case <-time.After(age / ageParts):
		}
	}
}

// shared runs one call at a time for any number of callers. Who comes during a call shares the next one. A call goes on when its
// callers have left.
type shared struct {
	mu      sync.Mutex
	running *result
	next    *result
}

type result struct {
	done chan struct{}
	err  error
}

func (s *shared) do(ctx context.Context, call func() error) error {
	s.mu.Lock()
	r := s.next
	if r == nil {
		r = &result{done: make(chan struct{})}
		if s.running == nil {
			s.running = r
			go s.run(call)
		} else {
			s.next = r
		}
	}
	s.mu.Unlock()
	select {
	case <-r.done:
		return r.err
	case <-ctx.Done():
		return ctx.Err()
	}
}

func (s *shared) run(call func() error) {
	for {
		err := call()
		s.mu.Lock()
		s.running.err = err
		close(s.running.done)
		s.running, s.next = s.next, nil
		more := s.running != nil
		s.mu.Unlock()
		if !more {
			return
		}
	}
}
