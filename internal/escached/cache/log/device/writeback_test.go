package device

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/escache/escache-csi/internal/escached/cache/log/record"
	"github.com/escache/escache-csi/internal/escached/cache/log/ring"
)

func openOn(t *testing.T, disk ring.Disk, origin Origin) *Device {
	log, losses, err := ring.Open(disk)
	if err != nil || len(losses) > 0 {
		t.Errorf("open: %v, %v", losses, err)
	}
	return New(log, origin)
}

// The image gets what the volume was at one moment, also of blocks that are written again before it gets them.
func TestAHoldIsOfOneMoment(t *testing.T) {
	d, disk, origin := start(t)
	must(t, d.Write(1, block(1)))
	must(t, d.Write(2, block(1)))
	must(t, d.Zero(3, 1, false))
	must(t, d.Hold())
	must(t, d.Write(1, block(2)))
	must(t, d.Write(3, block(2)))
	must(t, d.Flush())
	if _, err := d.Step(); !errors.Is(err, ErrHeld) {
		t.Errorf("write-back during a hold: %v", err)
	}
	if err := d.WriteBack(t.Context()); !errors.Is(err, ErrHeld) {
		t.Errorf("WriteBack during a hold: %v", err)
	}
	if origin.has(1) != 1 || origin.has(2) != 1 || origin.has(3) != 0 || read(t, d, 1) != 2 {
		t.Errorf("the image has %d, %d, %d; the volume %d", origin.has(1), origin.has(2), origin.has(3), read(t, d, 1))
	}
	d.Resume()
	must(t, d.WriteBack(t.Context()))
	if origin.has(1) != 2 || origin.has(3) != 2 {
		t.Errorf("after it the image has %d, %d", origin.has(1), origin.has(3))
	}
	if s := open(t, disk, origin).log.State(); s.Sequence != 2 {
		t.Errorf("%d records", s.Sequence)
	}
}

// What was written over since is not in the index any more, and still a part of the moment.
func TestAHoldWithWritersHasWhatWasThereBefore(t *testing.T) {
	d, _, origin := start(t)
	must(t, d.Write(1, block(1)))
	must(t, d.Flush())
	must(t, d.Write(1, block(2)))
	must(t, d.Flush())
	must(t, d.bringUpTo(1))
	if origin.has(1) != 1 {
		t.Errorf("up to record 1 the image has %d", origin.has(1))
	}
	if read(t, d, 1) != 2 || d.log.State().Dirty != 1 {
		t.Errorf("the volume has %d, and %d blocks are dirty", read(t, d, 1), d.log.State().Dirty)
	}
}

func TestAnImageThatRefusesWritesLosesNothing(t *testing.T) {
	d, _, origin := start(t)
	must(t, d.Write(1, block(1)))
	origin.refuse(true)
	if err := d.WriteBack(t.Context()); !errors.Is(err, ErrRefused) || !errors.Is(err, errImage) {
		t.Errorf("WriteBack: %v", err)
	}
	origin.refuse(false)
	if _, err := d.Step(); !errors.Is(err, ErrRefused) {
		t.Errorf("the image got a write before Retry: %v", err)
	}
	if s := d.log.State(); s.Dirty != 1 {
		t.Errorf("%d blocks are dirty", s.Dirty)
	}
	d.Retry()
	must(t, d.WriteBack(t.Context()))
	if s := d.log.State(); s.Dirty != 0 || origin.has(1) != 1 {
		t.Errorf("%d blocks are dirty, the image has %d", s.Dirty, origin.has(1))
	}
}

// Writers wait for room while the image refuses writes, and go on after Retry.
func TestWritersWaitForAnImageThatRefusesWrites(t *testing.T) {
	d, _, origin := start(t)
	origin.refuse(true)
	done := make(chan error)
	go func() {
		var err error
		for i := range 2 * ringBlocks {
			err = errors.Join(err, d.Write(uint64(i%volumeBlocks), block(7)), d.Flush())
		}
		done <- err
	}()
	select {
	case err := <-done:
		t.Fatalf("the writer did not wait: %v", err)
	case <-time.After(100 * time.Millisecond):
	}
	origin.refuse(false)
	d.Retry()
	must(t, <-done)
}

func TestCloseEndsWhoeverWaits(t *testing.T) {
	d, _, origin := start(t)
	origin.refuse(true)
	d.WriteThrough(true)
	done := make(chan error)
	go func() { done <- d.Write(1, block(1)) }()
	waitUntil(t, func() bool {
		d.mu.Lock()
		defer d.mu.Unlock()
		return d.refused != nil
	})
	d.Close()
	if err := <-done; !errors.Is(err, ErrClosed) {
		t.Errorf("got %v", err)
	}
	if err := d.Write(1, block(1)); !errors.Is(err, ErrClosed) {
		t.Errorf("a write after Close: %v", err)
	}
}

func TestWritingThroughMakesNothingDirty(t *testing.T) {
	d, disk, origin := start(t)
	must(t, d.Write(1, block(1)))
	must(t, d.Flush())
	d.WriteThrough(true)
	must(t, d.WriteBack(t.Context()))
	must(t, d.Write(2, block(2)))
	if s := d.log.State(); s.Dirty != 0 || origin.has(2) != 2 {
		t.Errorf("%d blocks are dirty, the image has %d", s.Dirty, origin.has(2))
	}
	must(t, d.Zero(2, 1, true))
	if origin.has(2) != 0 || origin.trimmed != record.BlockBytes {
		t.Errorf("the image has %d, and %d bytes were trimmed", origin.has(2), origin.trimmed)
	}
	// An older record is not taken for newer than what went through after it.
	d = open(t, disk, origin)
	if read(t, d, 2) != 0 {
		t.Errorf("after recovery block 2 has %d", read(t, d, 2))
	}
}

func TestWriteBackEndsWithItsContext(t *testing.T) {
	d, _, _ := start(t)
	must(t, d.Write(1, block(1)))
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if err := d.WriteBack(ctx); !errors.Is(err, context.Canceled) {
		t.Errorf("got %v", err)
	}
}
