package device

import (
	"context"
	"errors"
	"fmt"

	"github.com/escache/escache-csi/internal/escached/cache/log/record"
	"github.com/escache/escache-csi/internal/escached/cache/log/ring"
)

const (
	// stepBlocks is how much is written back before anything else has a chance: 4 MiB.
	stepBlocks = 1024
	// bufferBlocks is the longest write to the origin. No piece is longer.
	bufferBlocks = record.MaxBlocks
)

var (
	// ErrHeld means that the origin gets nothing until Resume.
	ErrHeld = errors.New("write-back is held")
	// ErrRefused means that the origin refused a write. It gets no other until Retry.
	ErrRefused = errors.New("the image refused a write")
)

// Step writes the oldest records back, and reports whether there is more. It does nothing during a hold.
func (d *Device) Step() (more bool, err error) {
	d.back.Lock()
	defer d.back.Unlock()
	return d.step(^uint64(0))
}

// step is Step for records up to last, which ends an interval. The caller holds back.
func (d *Device) step(last uint64) (more bool, err error) {
	d.mu.Lock()
	strict, err := d.strict, d.mayWriteBack()
	d.mu.Unlock()
	if err != nil {
		return false, err
	}
	var work ring.Work
	if strict {
		work, err = d.log.Interval(last)
	} else {
		work, err = d.log.Oldest(stepBlocks, last)
	}
	if err != nil {
		return false, err
	}
	if work.Empty() {
		// Whoever hears that nothing is dirty may use the image without the log: the disk says so, too.
		return false, d.log.NoteTail()
	}
	if strict {
		// Otherwise recovery could bring an interval again that the origin has, with later ones: it would be neither.
		if err := d.log.NoteTail(); err != nil {
			return true, err
		}
	}
	return true, d.bring(context.Background(), work)
}

// mayWriteBack returns why the origin gets nothing now. A log that has failed is no reason: what it has is stable, and may be all that
// is left. The caller holds mu.
func (d *Device) mayWriteBack() error {
	switch {
	case errors.Is(d.failure, ErrClosed):
		return d.failure // another process may have the volume
	case d.held:
		return ErrHeld
	}
	return d.refused
}

// bring writes work to the origin.
func (d *Device) bring(ctx context.Context, work ring.Work) error {
	for pieces := work.Pieces; len(pieces) > 0; {
		if err := ctx.Err(); err != nil {
			return err
		}
		n, blocks := neighbours(pieces)
		if err := d.bringRun(pieces[:n], blocks); err != nil {
			return err
		}
		pieces = pieces[n:]
	}
	d.log.Done(work)
	return nil
}

// neighbours returns how many pieces can go to the origin as one write, and their blocks: each of them costs the origin as much
// as one does.
func neighbours(pieces []ring.Piece) (n int, blocks uint64) {
	first := pieces[0]
	for n, blocks = 1, first.Blocks; n < len(pieces); n++ {
		p := pieces[n]
		if p.Kind != first.Kind || p.Start != first.Start+blocks || p.Kind == record.Data && blocks+p.Blocks > bufferBlocks {
			break
		}
		blocks += p.Blocks
	}
	return n, blocks
}

// bringRun writes neighbours to the origin.
func (d *Device) bringRun(pieces []ring.Piece, blocks uint64) error {
	d.bringing.Add(int64(blocks))
	defer d.bringing.Add(-int64(blocks))
	first := pieces[0]
	at, bytes := int64(first.Start)*record.BlockBytes, int64(blocks)*record.BlockBytes
	var err error
	if first.Kind == record.Data {
		for _, p := range pieces {
			if err := d.log.ReadPiece(p, d.buffer[(p.Start-first.Start)*record.BlockBytes:]); err != nil {
				return err
			}
		}
		_, err = d.origin.WriteAt(d.buffer[:bytes], at)
	} else {
		err = d.origin.Zero(at, bytes, first.Kind == record.Trim)
	}
	if err != nil {
		err = fmt.Errorf("%w: %d blocks from %d: %w", ErrRefused, blocks, first.Start, err)
		d.mu.Lock()
		d.refused = err
		d.mu.Unlock()
		return err
	}
	d.brought.Add(blocks)
	return nil
}

// WriteBack returns when the origin has everything that was written before the call. It fails if the origin refuses a write, also one of
// a writer who waits for Retry.
func (d *Device) WriteBack(ctx context.Context) error {
	last, err := d.Mark(ctx)
	if err != nil {
		return err
	}
	return d.BringUpTo(ctx, last)
}

// Mark returns the number of the record up to which the log has everything that was written before the call, for BringUpTo. Until the
// origin has that, write-back leaves out nothing because of what is written later. Mark does not wait for Retry or
// the end of a hold, as Flush does: whoever is to call that may wait for Mark. Then it fails, and so it does when ctx ends. The log gets
// everything later.
func (d *Device) Mark(ctx context.Context) (uint64, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	stop := context.AfterFunc(ctx, d.wake)
	defer stop()
	want := d.written
	for d.wanted = max(d.wanted, want); d.stable < want; {
		if err := d.cannotMark(ctx); err != nil {
			return 0, err
		}
		if !d.writing {
			go d.commitWanted()
		}
		d.change.Wait()
	}
	return d.log.Mark(), d.failure
}

// cannotMark returns why what is not in the log yet may not get there soon. The caller holds mu.
func (d *Device) cannotMark(ctx context.Context) error {
	if d.failure != nil {
		return d.failure
	}
	if d.stuck {
		if err := d.mayWriteBack(); err != nil { // otherwise it is about to go on
			return err
		}
	}
	return ctx.Err()
}

// commitWanted brings a batch to the log, unless somebody else is at it: for those who do not wait as long as that may take.
func (d *Device) commitWanted() {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.failure == nil && !d.writing && d.stable < d.wanted {
		d.commit()
	}
}

func (d *Device) wake() {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.change.Broadcast()
}

// BringUpTo returns when the origin has each block that was dirty when Mark returned a record: as it was then, or newer. So it gets all
// records up to that one, and perhaps some later ones.
func (d *Device) BringUpTo(ctx context.Context, last uint64) error {
	for more := true; more; {
		if err := ctx.Err(); err != nil {
			return err
		}
		var err error
		d.back.Lock()
		more, err = d.step(d.log.Reach(last))
		d.back.Unlock()
		if err != nil {
			return err
		}
	}
	return nil
}

// settle waits until the origin has everything up to a record: for writing through.
func (d *Device) settle(last uint64) error {
	return d.insist(func() error { return d.stepAll(context.Background(), last) })
}

// stepAll writes back all records up to last. The caller holds back.
func (d *Device) stepAll(ctx context.Context, last uint64) error {
	for more := true; more; {
		if err := ctx.Err(); err != nil {
			return err
		}
		var err error
		if more, err = d.step(last); err != nil {
			return err
		}
	}
	return nil
}

// makeRoom writes back until a record can be written again.
func (d *Device) makeRoom() error {
	return d.insist(func() error {
		if _, err := d.step(^uint64(0)); err != nil {
			return err
		}
		return d.log.Release()
	})
}

// Release makes the room of what the origin has usable again, before a writer needs it.
func (d *Device) Release() error {
	d.back.Lock()
	defer d.back.Unlock()
	d.mu.Lock()
	closed := errors.Is(d.failure, ErrClosed)
	d.mu.Unlock()
	if closed {
		return ErrClosed
	}
	return d.log.Release()
}

// insist repeats f until it succeeds: after the origin refused a write, when somebody calls Retry; during a hold, when it
// ends. A writer waits as long, and does not fail.
func (d *Device) insist(f func() error) error {
	for {
		d.back.Lock()
		err := f()
		d.back.Unlock()
		if !errors.Is(err, ErrHeld) && !errors.Is(err, ErrRefused) {
			return err
		}
		d.mu.Lock()
		d.stuck = true
		d.change.Broadcast()
		for d.failure == nil && (d.held || d.refused != nil) {
			d.change.Wait()
		}
		d.stuck = false
		err = d.failure
		d.mu.Unlock()
		if err != nil {
			return err
		}
	}
}

// Retry lets write-back try again after the origin refused a write.
func (d *Device) Retry() {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.refused = nil
	d.change.Broadcast()
}

// bringUpTo makes the origin what the volume was after a record. The caller holds back.
func (d *Device) bringUpTo(ctx context.Context, last uint64) error {
	d.mu.Lock()
	strict := d.strict
	d.mu.Unlock()
	if strict {
		return d.stepAll(ctx, last)
	}
	work, err := d.log.UpTo(last)
	if err != nil {
		return err
	}
	if err := d.bring(ctx, work); err != nil {
		return err
	}
	return d.log.NoteTail()
}

// WriteThrough says whether the origin has a write before it is acknowledged. What is dirty already stays so. During a hold such
// writes wait.
func (d *Device) WriteThrough(on bool) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if on && !d.through {
		d.owed, d.owedIn = d.written, d.newest
	}
	d.through = on
	d.noteThrough()
}

// noteThrough notes for the next process whether the device writes through, and whether anybody has an answer to what is in
// the memory. The caller holds mu.
func (d *Device) noteThrough() {
	switch {
	case d.memory == nil:
	case d.through && d.stable >= d.owed:
		d.memory.SetNothingAnswered()
	default:
		d.memory.SetThrough(d.through)
	}
}

// settled reports whether the origin has everything that was acknowledged, because the device writes through. That holds too if the host
// loses its power now. The log must have been empty since. It is not enough that the tail is past what was acknowledged: a part of that may
// have been left out for a record which is just coming. The caller holds mu.
func (d *Device) settled(log ring.State) bool {
	return d.through && d.stable >= d.owed && log.Emptied > d.owedIn
}

// StrictOrder says whether write-back keeps the order of intervals. If so, the origin gets what was written in one of them as a whole, and
// nothing later before. An interval ends with a flush, of a user or of write-back itself, after a quarter of the log, and where a
// process has found the log to end: so between two steps the origin is what the volume was at some moment, without anything later. In a
// step it is what a disk may be that loses its power between two flushes. This holds from the moment at which the origin has what was
// dirty when it was switched on.
func (d *Device) StrictOrder(on bool) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.strict = on
}
