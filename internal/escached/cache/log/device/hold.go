package device

import (
	"context"
	"errors"
	"time"

	"github.com/escache/escache-csi/internal/escached/cache/log/memory"
)

// Hold brings the origin to what the volume was at some moment in the call: everything is in it that was answered before. The
// origin gets nothing more until Resume, or until the limit has passed since Hold returned, whatever became of the caller. Users go
// on writing to the log, and wait only when it is full. The hold outlives this process if the device has a memory. A device that is held
// already returns ErrHeld: its image is of an earlier moment.
func (d *Device) Hold(ctx context.Context, limit time.Duration) error {
	// Most of it goes in small steps, between which a writer can make room.
	if err := d.WriteBack(ctx); err != nil {
		return err
	}
	if _, err := d.Mark(ctx); err != nil {
		return err
	}
	d.back.Lock()
	defer d.back.Unlock()
	d.mu.Lock()
	err := d.mayWriteBack()
	d.mu.Unlock()
	if err != nil {
		return err
	}
	// By the log itself: a record may be there that its writer has not heard of, and what it has replaced may have been left out.
	if err := d.bringUpTo(ctx, d.log.State().Sequence); err != nil {
		return err
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.hold(memory.Now() + limit)
}

// hold holds until a time of memory.Now. The caller holds mu.
func (d *Device) hold(until time.Duration) error {
	if errors.Is(d.failure, ErrClosed) {
		return d.failure // the next process would not know of it
	}
	if d.memory != nil {
		d.memory.SetHeld(until)
	}
	d.held = true
	d.watchdog = time.AfterFunc(until-memory.Now(), func() { d.release(until) })
	d.until = until
	return nil
}

// Resume ends a hold. It reports whether there was one: if not, the origin has not stood still all the time since Hold.
func (d *Device) Resume() (held bool) {
	d.mu.Lock()
	until := d.until
	d.mu.Unlock()
	return d.release(until)
}

// release ends the hold that lasts until a time, and no other one.
func (d *Device) release(until time.Duration) bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	if !d.held || d.until != until {
		return false
	}
	if d.memory != nil {
		d.memory.SetHeld(0)
	}
	d.watchdog.Stop()
	d.held = false
	d.change.Broadcast()
	return true
}
