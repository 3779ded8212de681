package process

import (
	"context"
	"errors"
	"fmt"
	"os"
	"time"

	"github.com/escache/escache-csi/internal/crashpoint"
	"github.com/escache/escache-csi/internal/escached/cache"
	"github.com/escache/escache-csi/internal/escached/cache/log/control"
	"github.com/escache/escache-csi/internal/escached/cache/log/device"
	"github.com/escache/escache-csi/internal/escached/cache/log/nbd/kernel"
	"github.com/escache/escache-csi/internal/escached/cache/log/record"
)

var _ control.Volume = (*Process)(nil)

// Status implements control.Volume.
func (p *Process) Status() control.Status { return p.statusOf(p.volume.State()) }

// statusOf is the status at the moment of a state. Mode and order are those of that moment, too: the options may have changed since.
func (p *Process) statusOf(s device.State) control.Status {
	options, _ := p.back.get()
	options.Mode, options.Order = cache.Writeback, control.Merged
	if s.Through {
		options.Mode = cache.Writethrough
	}
	if s.Strict {
		options.Order = control.Strict
	}
	p.mu.Lock()
	stopping := p.stopping
	p.mu.Unlock()
	status := control.Status{
		Name: p.config.Name, Version: p.config.Version, PID: os.Getpid(),
		Device: p.device(), Origin: p.parts.number, Bytes: p.volume.Bytes(), Options: options,
		Dirty: inBytes(s.Dirty), Free: inBytes(s.Log.Free), WritingBack: inBytes(s.Bringing),
		Failed: s.Refused != nil, Held: s.Held, Stopping: stopping,
		Log: control.Log{
			Bytes: inBytes(s.Log.Ring), Used: inBytes(s.Log.Used), Live: inBytes(s.Log.Live), Memory: s.Log.IndexBytes,
			Sequence: s.Log.Sequence, Generation: s.Log.Generation, Recovery: p.parts.recovery, Losses: p.parts.losses,
		},
		Counters: control.Counters{
			Counters: cache.Counters{
				Reads: int64(s.Reads), ReadHits: int64(s.Hits),
				Writes: p.volume.writes.Load(), WriteHits: int64(s.Log.Counters.OverwrittenBlocks),
			},
			Flushes: p.volume.flushes.Load(), Records: int64(s.Log.Counters.Records), RecordBlocks: int64(s.Log.Counters.Blocks),
			WrittenBack: int64(s.Brought), Errors: p.volume.errors.Load(),
		},
		Histograms: control.Histograms{
			Reads: p.volume.took.reads.Snapshot(), Writes: p.volume.took.writes.Snapshot(), Flushes: p.volume.took.flushes.Snapshot(),
			RecordWrites: s.RecordWrites,
		},
	}
	if s.Refused != nil {
		status.Cause = s.Refused.Error()
	}
	if s.Failure != nil && !errors.Is(s.Failure, device.ErrClosed) {
		status.Broken = s.Failure.Error()
	}
	return status
}

func inBytes(blocks uint64) int64 { return int64(blocks) * record.BlockBytes }

// WriteBack implements control.Volume.
func (p *Process) WriteBack(ctx context.Context) error {
	return p.verdict(p.flushes.do(ctx, func() error { return p.volume.WriteBack(context.Background()) }))
}

// Retry implements control.Volume.
func (p *Process) Retry() error {
	p.volume.Retry()
	return nil
}

// SetMode implements control.Volume.
func (p *Process) SetMode(ctx context.Context, m cache.Mode) error {
	p.changing.Lock()
	defer p.changing.Unlock()
	if err := ctx.Err(); err != nil { // another change, such as a resize, took longer than the caller waits
		return err
	}
	o, _ := p.back.get()
	o.Mode = m
	return p.apply(o)
}

// SetOptions implements control.Volume.
func (p *Process) SetOptions(o control.Options) error {
	p.changing.Lock()
	defer p.changing.Unlock()
	old, _ := p.back.get()
	if o.Mode == "" {
		o.Mode = old.Mode
	}
	if o.Order == "" {
		o.Order = old.Order
	}
	return p.apply(o)
}

// Resize implements control.Volume.
func (p *Process) Resize(n int64) error {
	if err := CheckBytes(n); err != nil {
		return err
	}
	p.changing.Lock()
	defer p.changing.Unlock()
	size, err := p.parts.image.Bytes()
	if err != nil {
		return err
	}
	n = max(wholeBlocks(n), p.volume.Bytes())
	if size < n {
		return fmt.Errorf("%w: the image has only %d bytes, not %d", control.ErrInvalid, size, n)
	}
	p.volume.bytes.Store(n) // before the kernel asks for it
	crashpoint.Reach("cache/resizing")
	return p.driver.Resize(context.Background(), p.links.index, p.links.backend, n)
}

// Hold implements control.Volume. When its caller has left, there is no hold.
func (p *Process) Hold(ctx context.Context, limit time.Duration) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	done := make(chan struct{})
	defer close(done)
	p.mu.Lock()
	if p.holding != nil {
		p.mu.Unlock()
		return control.ErrHeld // another call is about to
	}
	p.holding, p.held = cancel, done
	before := p.volume.State().Refused
	p.mu.Unlock()
	defer func() {
		p.mu.Lock()
		defer p.mu.Unlock()
		p.holding = nil
	}()
	err := p.volume.Hold(ctx, limit)
	if before == nil && errors.Is(err, device.ErrRefused) {
		p.mu.Lock()
		p.holdFailed = true
		p.mu.Unlock()
	}
	if err == nil && ctx.Err() != nil {
		p.volume.Resume()
		err = ctx.Err()
	}
	return p.verdict(err)
}

// Resume implements control.Volume. It also ends a Hold that is under way, and what the refusal of a Hold has left.
func (p *Process) Resume() (control.Resumed, error) {
	p.mu.Lock()
	cancel, done := p.holding, p.held
	p.mu.Unlock()
	if cancel != nil {
		cancel()
		<-done
	}
	p.mu.Lock()
	failed := p.holdFailed
	p.holdFailed = false
	p.mu.Unlock()
	if failed {
		p.volume.Retry()
	}
	return control.Resumed{Held: p.volume.Resume()}, nil
}

// verdict translates an error of the device.
func (p *Process) verdict(err error) error {
	switch {
	case err == nil, errors.Is(err, context.Canceled), errors.Is(err, context.DeadlineExceeded):
		return err
	case errors.Is(err, device.ErrClosed):
		return control.ErrStopping
	case errors.Is(err, device.ErrHeld):
		return control.ErrHeld
	case errors.Is(err, device.ErrRefused):
		return fmt.Errorf("%w: %w", cache.ErrFailed, err)
	}
	return fmt.Errorf("%w: %w", control.ErrBroken, err)
}

// ending says that the process is about to end. It returns ErrStopping if it is already.
func (p *Process) ending() error {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.stopping {
		return control.ErrStopping
	}
	p.stopping = true
	return nil
}

func (p *Process) goOn() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.stopping = false
}

// flush returns when ctx ends, too.
func (p *Process) flush(ctx context.Context) error {
	done := make(chan error, 1)
	go func() { done <- p.volume.FlushAll() }()
	select {
	case err := <-done:
		return p.verdict(err)
	case <-ctx.Done():
		return fmt.Errorf("the log does not take what is in memory: %w", ctx.Err())
	}
}

// Stop implements control.Volume.
func (p *Process) Stop(ctx context.Context) error {
	p.changing.Lock()
	defer p.changing.Unlock()
	if err := p.ending(); err != nil {
		return err
	}
	err := p.flush(ctx) // once the device is gone, it is too late to refuse
	if err == nil {
		p.links.end()
		if err = p.driver.DisconnectUnused(ctx, p.links.index, p.links.backend); err != nil {
			p.links.resume()
		}
	}
	if errors.Is(err, kernel.ErrOpen) {
		err = fmt.Errorf("%w: %w", cache.ErrOpen, err)
	}
	if err != nil {
		p.goOn()
		return err
	}
	crashpoint.Reach("cache/disconnected")
	err = p.flush(ctx)
	if err == nil {
		// Everything is in the log now: nobody needs the memory.
		err = errors.Join(os.Remove(p.config.Memory), os.Remove(p.config.optionsFile()))
	}
	err = errors.Join(err, p.abandon())
	p.log.Info("stopped", "error", err)
	p.done <- err
	return err
}
