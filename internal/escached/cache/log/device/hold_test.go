package device

import (
	"context"
	"errors"
	"testing"
	"time"
)

func TestAHoldEndsByItself(t *testing.T) {
	d, _, origin := start(t)
	must(t, d.Write(1, block(1)))
	must(t, d.Hold(t.Context(), 50*time.Millisecond))
	done := make(chan error)
	go func() { // more than the log has room for
		var err error
		for range 2 * ringBlocks {
			err = errors.Join(err, d.Write(1, block(2)), d.Flush())
		}
		done <- err
	}()
	must(t, <-done)
	if d.Resume() {
		t.Error("Resume does not tell that the hold had ended")
	}
	must(t, d.WriteBack(t.Context()))
	if origin.has(1) != 2 {
		t.Errorf("the image has %d", origin.has(1))
	}
}

func TestResumeTellsWhetherTheImageStoodStill(t *testing.T) {
	d, _, _ := start(t)
	if d.Resume() {
		t.Error("there was no hold")
	}
	must(t, d.Hold(t.Context(), time.Minute))
	if !d.Resume() || d.Resume() {
		t.Error("there was one hold")
	}
}

// The first caller may be in the middle of its snapshot.
func TestASecondHoldDoesNotMoveTheImage(t *testing.T) {
	d, _, origin := start(t)
	must(t, d.Write(1, block(1)))
	must(t, d.Hold(t.Context(), time.Minute))
	for range 2 { // with something dirty, and without
		if err := d.Hold(t.Context(), time.Minute); !errors.Is(err, ErrHeld) {
			t.Errorf("a second hold: %v", err)
		}
		must(t, d.Write(1, block(2)))
	}
	if origin.has(1) != 1 || !d.Resume() {
		t.Errorf("the image has %d", origin.has(1))
	}
}

// The log has a record a moment before its writer learns of it. Write-back leaves out what that record has replaced.
func TestAHoldLeavesOutNothingForARecordThatIsJustComing(t *testing.T) {
	d, _, origin := start(t)
	must(t, d.Write(1, block(1)))
	must(t, d.Write(2, block(1)))
	must(t, d.Flush())
	b := d.log.NewBatch()
	b.Write(1, block(2))
	if _, err := d.log.Append(b); err != nil { // as of somebody's Flush, which has not come further yet
		t.Fatal(err)
	}
	must(t, d.Hold(t.Context(), time.Minute))
	if origin.has(2) != 1 || origin.has(1) == 0 {
		t.Errorf("the image has %d and %d, which the volume never had", origin.has(1), origin.has(2))
	}
}

// The timer of a hold that was ended early must not end the next one.
func TestAWatchdogEndsItsOwnHoldOnly(t *testing.T) {
	d, _, _ := start(t)
	must(t, d.Hold(t.Context(), time.Minute))
	first := d.until
	d.Resume()
	must(t, d.Hold(t.Context(), time.Minute))
	if d.release(first) || !d.Resume() {
		t.Error("the second hold was ended by the first one's watchdog")
	}
}

func TestAHoldThatFailsHoldsNothing(t *testing.T) {
	d, _, origin := start(t)
	must(t, d.Write(1, block(1)))
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if err := d.Hold(ctx, time.Minute); !errors.Is(err, context.Canceled) {
		t.Errorf("a call that was given up: %v", err)
	}
	origin.refuse(true)
	for range 2 {
		if err := d.Hold(t.Context(), time.Minute); !errors.Is(err, ErrRefused) {
			t.Errorf("with an image that refuses writes: %v", err)
		}
	}
	origin.refuse(false)
	d.Retry()
	if d.Resume() {
		t.Error("there is a hold")
	}
	must(t, d.WriteBack(t.Context()))
}

func TestAHoldOutlivesTheProcess(t *testing.T) {
	h := newHosts(t)
	d, kill := h.process(0)
	must(t, d.Write(1, block(1)))
	must(t, d.Hold(t.Context(), time.Minute))
	must(t, d.Write(1, block(2)))
	must(t, d.Flush())
	d.Close()
	kill()
	d, kill = h.process(0)
	if err := d.WriteBack(t.Context()); !errors.Is(err, ErrHeld) || h.image.has(1) != 1 {
		t.Errorf("the next process writes back during the hold: %v, and the image has %d", err, h.image.has(1))
	}
	if !d.Resume() {
		t.Error("the next process knows of no hold")
	}
	kill()
	d, kill = h.process(0)
	defer kill()
	must(t, d.WriteBack(t.Context()))
}

// Nobody may be there to end it when its time is over.
func TestAHoldEndsAlsoIfThereIsNoProcess(t *testing.T) {
	h := newHosts(t)
	d, kill := h.process(0)
	must(t, d.Write(1, block(1)))
	must(t, d.Hold(t.Context(), time.Millisecond))
	m, until := d.memory, d.until
	d.Close()
	m.SetHeld(until) // if the watchdog was faster
	kill()
	time.Sleep(2 * time.Millisecond)
	d, kill = h.process(0)
	defer kill()
	waitUntil(t, func() bool {
		d.mu.Lock()
		defer d.mu.Unlock()
		return !d.held
	})
	must(t, d.WriteBack(t.Context()))
}

// The record may say that the image has everything.
func TestWritingThroughOutlivesTheProcess(t *testing.T) {
	h := newHosts(t)
	d, kill := h.process(0)
	d.WriteThrough(true)
	kill()
	d, kill = h.process(0)
	must(t, d.Write(1, block(1)))
	if h.image.has(1) != 1 {
		t.Errorf("the image has %d", h.image.has(1))
	}
	d.WriteThrough(false)
	kill()
	d, kill = h.process(0)
	must(t, d.Write(1, block(2)))
	must(t, d.Flush())
	if h.image.has(1) != 1 {
		t.Errorf("after it was switched off, the image has %d", h.image.has(1))
	}
	kill()
}
