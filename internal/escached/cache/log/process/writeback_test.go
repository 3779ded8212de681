package process

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync/atomic"
	"testing"
	"time"

	"github.com/escache/escache-csi/internal/escached/cache"
	"github.com/escache/escache-csi/internal/escached/cache/log/control"
	"github.com/escache/escache-csi/internal/escached/cache/log/device"
	"github.com/escache/escache-csi/internal/escached/cache/log/nbd"
	"github.com/escache/escache-csi/internal/escached/cache/log/ring"
)

func TestTheLogIsEmptiedBetweenTheWatermarks(t *testing.T) {
	h := newHost(t)
	h.config.Options = control.Options{HighWatermark: 30, LowWatermark: 10}
	ended, _ := h.run()
	for i := range 100 { // 200 blocks of 1024
		must(t, h.write(i, 1, nbd.FUA))
	}
	time.Sleep(3 * lookEvery)
	if s := h.status(); s.Counters.WrittenBack != 0 {
		t.Errorf("below the high watermark %d blocks were written back", s.Counters.WrittenBack)
	}
	for i := range 100 {
		must(t, h.write(100+i, 1, nbd.FUA))
	}
	h.eventually("write-back to the low watermark", func() bool { s := h.status().Log; return s.Live*100 <= 10*s.Bytes })
	h.eventually("its room is released", func() bool { s := h.status().Log; return s.Used-s.Live <= s.Bytes/releaseAt })
	h.stop(ended)
}

func TestNothingStaysDirtyLongerThanItMay(t *testing.T) {
	h := newHost(t)
	h.config.Options = control.Options{MaxAgeSeconds: 1}
	ended, _ := h.run()
	must(t, h.write(1, 1, 0)) // nobody flushes
	h.eventually("write-back by age", func() bool { return h.status().Dirty == 0 })
	must(t, h.client.SetOptions(t.Context(), control.Options{}))
	must(t, h.write(1, 2, 0))
	time.Sleep(1500 * time.Millisecond)
	if h.status().Dirty == 0 {
		t.Error("without a maximum age it is written back")
	}
	must(t, h.client.SetOptions(t.Context(), control.Options{MaxAgeSeconds: 1}))
	h.eventually("write-back by the new age", func() bool { return h.imageHas(1) == 2 })
	h.stop(ended)
}

func TestAHoldKeepsTheImageAndEndsWithItsCaller(t *testing.T) {
	h := newHost(t)
	ended, _ := h.run()
	ctx := t.Context()
	must(t, h.write(1, 1, 0))
	must(t, h.client.Hold(ctx, time.Minute))
	must(t, h.write(1, 2, nbd.FUA))
	if s := h.status(); !s.Held || h.imageHas(1) != 1 {
		t.Errorf("held: %v, and the image has %d", s.Held, h.imageHas(1))
	}
	if err := h.client.WriteBack(ctx); !errors.Is(err, control.ErrHeld) {
		t.Errorf("WriteBack: %v", err)
	}
	if err := h.client.Hold(ctx, time.Minute); !errors.Is(err, control.ErrHeld) {
		t.Errorf("another Hold: %v", err)
	}
	next, _ := h.run() // it outlives the process
	must(t, within(t, ended))
	if s := h.status(); !s.Held {
		t.Error("the successor does not hold")
	}
	for _, want := range []bool{true, false} {
		if r, err := h.client.Resume(ctx); err != nil || r.Held != want {
			t.Errorf("Resume: %+v, %v", r, err)
		}
	}
	must(t, h.client.WriteBack(ctx))
	gone, cancel := context.WithCancel(ctx)
	cancel()
	_ = h.client.Hold(gone, time.Minute)
	if _, err := h.client.Resume(ctx); err != nil || h.status().Held {
		t.Errorf("a hold whose caller has left stays; %v", err)
	}
	h.stop(next)
}

func TestModesAreTheDevices(t *testing.T) {
	h := newHost(t)
	ended, _ := h.run()
	must(t, h.client.SetMode(t.Context(), cache.Writethrough))
	must(t, h.write(1, 1, 0))
	if s := h.status(); s.Dirty != 0 || h.imageHas(1) != 1 || s.Options.Mode != cache.Writethrough {
		t.Errorf("%+v", s)
	}
	must(t, h.client.SetOptions(t.Context(), control.Options{HighWatermark: 90, Order: control.Strict}))
	if s := h.status(); s.Options.Mode != cache.Writethrough || s.Options.Order != control.Strict || s.Options.HighWatermark != 90 || s.Options.LowWatermark != 0 {
		t.Errorf("%+v", s.Options)
	}
	must(t, h.client.SetMode(t.Context(), cache.Writeback))
	must(t, h.write(1, 2, 0))
	if h.imageHas(1) != 1 {
		t.Errorf("the image has %d", h.imageHas(1))
	}
	h.stop(ended)
}

func TestWhatIsDirtyIsWrittenBackInWriteThrough(t *testing.T) {
	for _, order := range []control.Order{control.Merged, control.Strict} {
		t.Run(string(order), func(t *testing.T) {
			h := newHost(t)
			h.config.Options = control.Options{Order: order}
			ended, _ := h.run()
			must(t, h.write(1, 1, nbd.FUA))
			must(t, h.write(2, 2, 0)) // nobody flushes
			must(t, h.client.SetMode(t.Context(), cache.Writethrough))
			h.eventually("write-back", func() bool { return h.status().Dirty == 0 })
			if h.imageHas(1) != 1 || h.imageHas(2) != 2 {
				t.Errorf("the image has %d and %d", h.imageHas(1), h.imageHas(2))
			}
			h.stop(ended)
		})
	}
}

func TestErrorsOfTheDeviceAreThoseOfTheProtocol(t *testing.T) {
	p := &Process{}
	for _, c := range []struct{ err, want error }{
		{device.ErrClosed, control.ErrStopping},
		{device.ErrHeld, control.ErrHeld},
		{fmt.Errorf("%w: because", device.ErrRefused), cache.ErrFailed},
		{errors.New("input/output error"), control.ErrBroken},
	} {
		if got := p.verdict(c.err); !errors.Is(got, c.want) {
			t.Errorf("%v becomes %v", c.err, got)
		}
	}
	if p.verdict(nil) != nil {
		t.Error("success becomes an error")
	}
}

func TestCallersShareACallThatBeginsAfterTheirs(t *testing.T) {
	var s shared
	var calls atomic.Int32
	goOn := make(chan error)
	call := func() error { calls.Add(1); return <-goOn }
	results := make(chan error, 10)
	begin := func() { go func() { results <- s.do(t.Context(), call) }() }
	begin()
	for calls.Load() == 0 {
		time.Sleep(time.Millisecond)
	}
	for range 5 {
		begin()
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if err := s.do(ctx, call); !errors.Is(err, context.Canceled) {
		t.Errorf("a caller that leaves gets %v", err)
	}
	for joined := false; !joined; time.Sleep(time.Millisecond) {
		s.mu.Lock()
		joined = s.next != nil
		s.mu.Unlock()
	}
	time.Sleep(20 * time.Millisecond)
	first, second := errors.New("first"), errors.New("second")
	goOn <- first
	if err := <-results; !errors.Is(err, first) {
		t.Errorf("the first caller gets %v", err)
	}
	goOn <- second
	for range 5 {
		if err := <-results; !errors.Is(err, second) {
			t.Errorf("a later caller gets %v", err)
		}
	}
	if n := calls.Load(); n != 2 {
		t.Errorf("%d calls", n)
	}
}

// refusing is an image that refuses writes, or takes them.
type refusing struct {
	device.Origin

	refuses atomic.Bool
}

func (r *refusing) WriteAt(p []byte, at int64) (int, error) {
	if r.refuses.Load() {
		return 0, errors.New("no write is taken")
	}
	return r.Origin.WriteAt(p, at)
}

// overRefusing returns a process whose image can refuse writes. It writes back only when it is told to, and has no device.
func overRefusing(t *testing.T, h *host) (*Process, *refusing) {
	t.Helper()
	parts, err := openParts(t.Context(), h.config)
	must(t, err)
	image := &refusing{Origin: parts.image}
	parts.device, _, err = device.Open(logDisk{parts.disk}, image, parts.memory)
	must(t, err)
	log := slog.New(slog.DiscardHandler)
	p := &Process{config: h.config, parts: parts, volume: newVolume(parts.device, log), log: log, links: &links{}}
	p.back = newWriteBack(parts.device, control.Options{}, nil)
	p.stop, p.stopped = func() {}, make(chan struct{})
	close(p.stopped)
	return p, image
}

// The contract of cache.Engine.
func TestResumeEndsWhatAHoldHasLeftAndNothingElse(t *testing.T) {
	p, image := overRefusing(t, newHost(t))
	must(t, p.volume.Write(1, make([]byte, 4096)))
	image.refuses.Store(true)
	if err := p.Hold(t.Context(), time.Minute); !errors.Is(err, cache.ErrFailed) {
		t.Errorf("Hold: %v", err)
	}
	if s := p.Status(); !s.Failed || s.Held || s.Cause == "" || s.Dirty != 4096 {
		t.Errorf("after Hold: %+v", s)
	}
	if r, err := p.Resume(); err != nil || r.Held || p.Status().Failed {
		t.Errorf("Resume after a Hold that failed: %+v, %v, %+v", r, err, p.Status())
	}
	if err := p.WriteBack(t.Context()); !errors.Is(err, cache.ErrFailed) {
		t.Errorf("WriteBack: %v", err)
	}
	_ = p.Hold(t.Context(), time.Minute) // it failed before
	if _, err := p.Resume(); err != nil || !p.Status().Failed {
		t.Errorf("Resume clears the failure of a volume that was not held: %v", err)
	}
	image.refuses.Store(false)
	must(t, errors.Join(p.Retry(), p.WriteBack(t.Context()), p.Hold(t.Context(), time.Minute)))
	if r, err := p.Resume(); err != nil || !r.Held || p.Status().Dirty != 0 {
		t.Errorf("Resume: %+v, %v", r, err)
	}
	must(t, p.parts.close())
}

// A writer waits for Retry, which the caller of Resume and WriteBack sends afterwards.
func TestHoldWriteBackAndResumeDoNotWaitForRetry(t *testing.T) {
	p, image := overRefusing(t, newHost(t))
	calls := map[string]func() error{
		"Hold":      func() error { return p.Hold(t.Context(), time.Minute) },
		"WriteBack": func() error { return p.WriteBack(t.Context()) },
	}
	data := make([]byte, 4096)
	p.volume.WriteThrough(true)
	for name, call := range calls {
		image.refuses.Store(true)
		written := begin(func() error { return p.volume.Write(1, data) })
		for !p.Status().Failed {
			time.Sleep(time.Millisecond)
		}
		if err := within(t, begin(call)); !errors.Is(err, cache.ErrFailed) {
			t.Errorf("%s: %v", name, err)
		}
		must(t, within(t, begin(func() error { _, err := p.Resume(); return err })))
		if s := p.Status(); !s.Failed || s.Held || len(written) > 0 {
			t.Errorf("%s, and Resume: %+v; the writer waits: %t", name, s, len(written) == 0)
		}
		image.refuses.Store(false)
		must(t, errors.Join(p.Retry(), within(t, written), within(t, begin(call))))
		_, err := p.Resume()
		must(t, err)
	}

	// It is the Hold that meets the refusal: then Resume lets the log's writer go on.
	p.volume.WriteThrough(false)
	must(t, p.volume.Write(1, data))
	p.volume.WriteThrough(true)
	image.refuses.Store(true)
	if err := within(t, begin(calls["Hold"])); !errors.Is(err, cache.ErrFailed) {
		t.Errorf("Hold: %v", err)
	}
	if s := p.Status(); !s.Failed || s.Held || s.Dirty == 0 {
		t.Errorf("after Hold: %+v", s)
	}
	image.refuses.Store(false)
	_, err := p.Resume()
	must(t, errors.Join(err, within(t, begin(calls["WriteBack"]))))
	if s := p.Status(); s.Failed || s.Dirty != 0 {
		t.Errorf("in the end: %+v", s)
	}
	must(t, p.parts.close())
}

// The next process has what the log does not take.
func TestAProcessWhoseDeviceIsGoneDoesNotWaitForRetry(t *testing.T) {
	h := newHost(t)
	p, image := overRefusing(t, h)
	must(t, p.volume.Write(1, bytes.Repeat([]byte{7}, 4096)))
	p.volume.WriteThrough(true)
	image.refuses.Store(true)
	written := begin(func() error { return p.volume.Write(2, bytes.Repeat([]byte{8}, 4096)) })
	for p.volume.State().Refused == nil {
		time.Sleep(time.Millisecond)
	}
	if err := within(t, begin(func() error { return p.disconnected(errDisconnected) })); !errors.Is(err, device.ErrRefused) {
		t.Errorf("it ends with %v", err)
	}
	if err := within(t, written); !errors.Is(err, nbd.ErrStopped) {
		t.Errorf("the writer gets %v", err)
	}
	if h.imageHas(1) != 0 {
		t.Errorf("the image has %d", h.imageHas(1))
	}
	ended, _ := h.run()
	if h.read(1) != 7 {
		t.Errorf("what was answered is lost: the block has %d", h.read(1))
	}
	must(t, h.client.WriteBack(t.Context()))
	if h.imageHas(1) != 7 {
		t.Errorf("the image has %d", h.imageHas(1))
	}
	h.stop(ended)
}

func begin(call func() error) (ended chan error) {
	ended = make(chan error, 1)
	go func() { ended <- call() }()
	return ended
}

func TestRangesOfZerosFillTheLogToo(t *testing.T) {
	for want, log := range map[uint64]ring.State{
		1:   {Ring: 1000, Live: 10, Free: 990},
		61:  {Ring: 1000, Live: 10, Free: 399},
		100: {Ring: 1000, Live: 1000},
	} {
		if got := fill(device.State{Log: log}); got != want {
			t.Errorf("%+v is %d %% full, want %d", log, got, want)
		}
	}
}
