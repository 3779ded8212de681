// Package device is what users of a volume read and write: a log in front of an origin.
//
// A plain write is answered from memory. Flush returns when everything that was written before is
// stable: all of it goes to the log as one record, together with what others have written meanwhile.
// So a synchronous write costs one write to the log, and many at a time cost one together.
package device

import (
	"errors"
	"fmt"
	"io"
	"sync"
	"sync/atomic"
	"time"

	"github.com/escache/escache-csi/internal/escached/cache/log/histogram"
	"github.com/escache/escache-csi/internal/escached/cache/log/memory"
	"github.com/escache/escache-csi/internal/escached/cache/log/record"
	"github.com/escache/escache-csi/internal/escached/cache/log/ring"
)

// Origin is the image behind a log. Its writes are stable when they return.
type Origin interface {
	io.ReaderAt
	io.WriterAt
	// Zero makes a range read as zeros. Trim says that its room may be given back.
	Zero(at, bytes int64, trim bool) error
}

// ErrClosed is the answer after Close.
var ErrClosed = errors.New("the device is closed")

// Device is safe for concurrent use. Offsets and lengths are in blocks, or whole blocks.
type Device struct {
	log    *ring.Log
	origin Origin
	memory *memory.Memory // nil: nothing outlives the process

	mu      sync.Mutex // for what follows
	change  *sync.Cond // of anything that somebody may wait for
	pending *ring.Batch
	flying  *ring.Batch // the next one for the log
	spare   *ring.Batch
	writing bool   // flying is on its way
	stuck   bool   // and waits for Retry or the end of a hold
	written uint64 // writes that are in a batch, or were
	sealed  uint64 // those of them that are in flying, or in an earlier one
	// together are those of them that are in flying. It is 0 if an earlier process has written them.
	together uint64
	stable   uint64 // those of them that the log has
	newest   uint64 // the last record
	failure  error  // of the log: nothing is acknowledged any more
	wanted   uint64 // writes that somebody has asked to be stable
	through  bool   // a write is acknowledged when the origin has it
	owed     uint64 // writes up to this one may have been acknowledged before
	owedIn   uint64 // the record with the last of them, once they are stable
	strict   bool   // the origin gets whole intervals, in order
	held     bool   // the origin gets nothing, until Resume or a time of memory.Now
	until    time.Duration
	refused  error // the origin's last answer, if it was an error

	watchdog *time.Timer // of a hold

	bringing atomic.Int64  // blocks that are on their way to the origin
	brought  atomic.Uint64 // blocks that it has got
	reads    readCounters
	grouped  *histogram.Histogram // writes of each record

	back   sync.Mutex // held by whoever writes back
	buffer []byte     // for what is written back
}

// New returns the device of a log that is open for writing.
func New(log *ring.Log, origin Origin) *Device {
	return newDevice(log, origin, log.NewBatch(), log.NewBatch())
}

func newDevice(log *ring.Log, origin Origin, pending, spare *ring.Batch) *Device {
	d := &Device{
		log: log, origin: origin, newest: log.State().Sequence,
		pending: pending, spare: spare, buffer: ring.AlignedBytes(bufferBlocks * record.BlockBytes),
		grouped: histogram.New(1, 1, 2, 4, 8, 16, 32, 64, 128, 256),
	}
	d.change = sync.NewCond(&d.mu)
	return d
}

// Close makes all calls that wait return ErrClosed, and later ones. What is not stable is lost, unless the device has a memory. A
// write that is on its way to the log or the origin goes on: see Wait.
func (d *Device) Close() {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.watchdog != nil {
		d.watchdog.Stop() // a hold goes on in the memory
	}
	d.memory = nil        // the next process has it
	d.failure = ErrClosed // also of a log that has failed: nobody writes to the image or the memory any more
	d.change.Broadcast()
}

// Wait returns when a closed device writes nothing any more, neither to the log nor to the origin. Then another process may open it.
func (d *Device) Wait() {
	d.mu.Lock()
	for d.writing {
		d.change.Wait()
	}
	d.mu.Unlock()
	d.back.Lock()   // nobody begins after that
	d.back.Unlock() //nolint:staticcheck // only waits
}

func (d *Device) fail(err error) {
	if d.failure == nil {
		d.failure = err
	}
	d.change.Broadcast()
}

// Write takes whole blocks. They are stable after the next Flush, or at once if the device writes through.
func (d *Device) Write(start uint64, p []byte) error {
	d.mu.Lock()
	defer d.mu.Unlock()
	for len(p) > 0 {
		if d.failure != nil {
			return d.failure
		}
		n := d.pending.Write(start, p)
		start, p = start+uint64(n), p[n*record.BlockBytes:]
		if len(p) > 0 {
			d.commit()
		}
	}
	return d.wrote()
}

// TryWrite is Write if that need not wait for anything. Otherwise it does nothing.
func (d *Device) TryWrite(start uint64, p []byte) bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.failure != nil || d.through || !d.pending.HasRoom(len(p)/record.BlockBytes) {
		return false
	}
	d.pending.Write(start, p)
	d.written++
	return true
}

// Zero makes blocks read as zeros. Trim says that the origin may give their room back.
func (d *Device) Zero(start uint64, blocks uint32, trim bool) error {
	d.mu.Lock()
	defer d.mu.Unlock()
	for {
		if d.failure != nil { // after Close the batch is the next process's
			return d.failure
		}
		if d.pending.Zero(start, blocks, trim) {
			return d.wrote()
		}
		d.commit()
	}
}

func (d *Device) wrote() error {
	d.written++
	if d.through {
		return d.flush(d.written)
	}
	return d.failure
}

// Flush returns when everything whose Write has returned is stable on every copy.
func (d *Device) Flush() error {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.through {
		return d.flush(d.owed) // whatever was answered since is in the image; with writers there is always something without an answer
	}
	return d.flush(d.written)
}

// FlushAll returns when everything is stable on every copy, also what has no answer yet.
func (d *Device) FlushAll() error {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.flush(d.written)
}

func (d *Device) flush(want uint64) error {
	for d.wanted = max(d.wanted, want); d.stable < want; {
		if d.failure != nil {
			return d.failure
		}
		d.commit()
	}
	d.log.EndInterval() // the newest record may say nothing of that: somebody else has written it before
	return d.failure
}

// commit brings a batch to the log: all that is pending, or what an earlier process left. If somebody else is at it, it waits until
// that is done, and what is pending still is. The caller holds mu.
func (d *Device) commit() {
	if d.writing {
		d.change.Wait()
		return
	}
	if d.flying == nil {
		d.flying, d.pending, d.spare = d.pending, d.spare, nil
		d.pending.Begin(d.flying.Number() + 1)
		d.together, d.sealed = d.written-d.sealed, d.written
		if d.wanted > d.stable {
			d.flying.EndInterval()
		}
		if d.through && d.stable >= d.owed {
			d.flying.Unanswered()
		}
	}
	batch := d.flying
	d.writing = true
	d.mu.Unlock()
	sequence, err := d.append(batch)
	d.mu.Lock()
	d.writing = false
	if err != nil { // the batch stays in the memory for the next process
		d.fail(err)
		return
	}
	if d.together > 0 {
		d.grouped.Observe(int64(d.together))
		d.together = 0
	}
	d.newest = max(d.newest, sequence)
	if d.stable < d.owed {
		d.owedIn = d.newest
	}
	d.stable = d.sealed
	batch.Reset()
	d.flying, d.spare = nil, batch
	d.noteThrough() // after the batch is empty
	d.change.Broadcast()
}

// append writes a batch, and makes room for it if it must.
func (d *Device) append(batch *ring.Batch) (uint64, error) {
	if batch.Empty() {
		return 0, nil
	}
	for {
		sequence, err := d.log.Append(batch)
		if errors.Is(err, ring.ErrFull) {
			if err = d.makeRoom(); err == nil {
				continue
			}
		}
		if err == nil && (batch.IsUnanswered() || d.writesThrough()) {
			err = d.settle(sequence)
		}
		return sequence, err
	}
}

func (d *Device) writesThrough() bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.through
}

// Read fills p with whole blocks.
func (d *Device) Read(start uint64, p []byte) error {
	missing, err := d.fromMemory(start, p)
	if err != nil {
		return err
	}
	d.reads.blocks.Add(uint64(len(p) / record.BlockBytes))
	for len(missing) > 0 {
		first, n := missing[0], 1
		for n < len(missing) && missing[n] == first+uint64(n) {
			n++
		}
		part := p[(first-start)*record.BlockBytes:][:n*record.BlockBytes]
		err := d.log.Read(first, part, func(start uint64, p []byte) error {
			d.reads.misses.Add(uint64(len(p) / record.BlockBytes))
			if _, err := d.origin.ReadAt(p, int64(start)*record.BlockBytes); err != nil {
				return fmt.Errorf("read from the image: %w", err)
			}
			return nil
		})
		if err != nil {
			return err
		}
		missing = missing[n:]
	}
	return nil
}

// fromMemory copies what the log does not have yet, and returns the other blocks. A log that has failed can still be
// read. After Close the memory is the next process's.
func (d *Device) fromMemory(start uint64, p []byte) (missing []uint64, err error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if errors.Is(d.failure, ErrClosed) {
		return nil, d.failure
	}
	for at := start; len(p) > 0; at, p = at+1, p[record.BlockBytes:] {
		if !d.pending.Read(at, p) && (d.flying == nil || !d.flying.Read(at, p)) {
			missing = append(missing, at)
		}
	}
	return missing, nil
}
