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

func TestNeighboursAreOneWriteToTheImage(t *testing.T) {
	d, _, origin := start(t)
	for _, at := range []uint64{7, 3, 5, 4, 9, 6} { // all but 8
		must(t, d.Write(at, block(byte(at))))
		must(t, d.Flush())
	}
	for _, at := range []uint64{12, 11, 15, 14} {
		must(t, d.Zero(at, 1, at < 13))
	}
	must(t, d.WriteBack(t.Context()))
	if origin.writes != 2 || origin.zeroed != 2 {
		t.Errorf("the image got %d writes and was zeroed %d times, want 2 and 2", origin.writes, origin.zeroed)
	}
	for at := 3; at < 10; at++ {
		if got := origin.has(at); got != byte(at) && at != 8 {
			t.Errorf("block %d of the image has %d", at, got)
		}
	}
}

// The image gets what the volume was at one moment, also of blocks that are written again before it gets them.
func TestAHoldIsOfOneMoment(t *testing.T) {
	d, disk, origin := start(t)
	must(t, d.Write(1, block(1)))
	must(t, d.Write(2, block(1)))
	must(t, d.Zero(3, 1, false))
	must(t, d.Hold(t.Context(), time.Minute))
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
	must(t, d.bringUpTo(t.Context(), 1))
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

func TestNeighboursOfOneKindThatFitTheBuffer(t *testing.T) {
	piece := func(start, blocks uint64, kind record.Kind) ring.Piece {
		return ring.Piece{Start: start, Blocks: blocks, Kind: kind}
	}
	for name, test := range map[string]struct {
		pieces []ring.Piece
		n      int
		blocks uint64
	}{
		"a full buffer": {[]ring.Piece{piece(0, 1000, record.Data), piece(1000, 24, record.Data), piece(1024, 1, record.Data)}, 2, 1024},
		"a gap":         {[]ring.Piece{piece(0, 1, record.Data), piece(2, 1, record.Data)}, 1, 1},
		"another kind":  {[]ring.Piece{piece(0, 1, record.Zero), piece(1, 1, record.Trim)}, 1, 1},
		"long zeros":    {[]ring.Piece{piece(0, 1<<30, record.Trim), piece(1<<30, 1<<31, record.Trim)}, 2, 3 << 30},
	} {
		if n, blocks := neighbours(test.pieces); n != test.n || blocks != test.blocks {
			t.Errorf("%s: %d pieces of %d blocks, want %d of %d", name, n, blocks, test.n, test.blocks)
		}
	}
}
