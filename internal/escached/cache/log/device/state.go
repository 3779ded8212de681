package device

import (
	"sync/atomic"

	"github.com/escache/escache-csi/internal/escached/cache"
	"github.com/escache/escache-csi/internal/escached/cache/log/record"
	"github.com/escache/escache-csi/internal/escached/cache/log/ring"
)

// MaxBytes is the size of the largest volume: 16 TiB. The log has no numbers for later blocks.
const MaxBytes = record.MaxVolumeBlock * record.BlockBytes

// readCounters count blocks. Misses came from the origin.
type readCounters struct{ blocks, misses atomic.Uint64 }

// State is a device at one moment. Numbers are blocks.
type State struct {
	// Log is that of the log, which does not know of what is not in it yet.
	Log ring.State
	// Dirty is what the origin lacks, with what was answered and is not in the log yet. A block that is in both counts twice. It is 0 while
	// the device writes through and the origin has everything that was answered before: what has no answer yet does not count.
	Dirty uint64
	// Bringing is on its way to the origin and counts, or is there and would be dirty after a power loss. Brought is what it has got since
	// the device was opened.
	Bringing, Brought uint64
	// Reads are blocks that were read, and Hits those of them that did not come from the origin.
	Reads, Hits uint64
	// RecordWrites are how many writes each record has that the device has written.
	RecordWrites cache.Histogram

	// Failure is why nothing is acknowledged any more: ErrClosed, or an error of the log's disk. Refused is the error with which the origin
	// has refused a write, until Retry.
	Failure error
	Refused error
	Held    bool
	Through bool
	Strict  bool
}

// State returns the state. It waits for no I/O.
func (d *Device) State() State {
	d.mu.Lock()
	defer d.mu.Unlock()
	s := State{
		Log: d.log.State(), Bringing: uint64(d.bringing.Load()), Brought: d.brought.Load(), Reads: d.reads.blocks.Load(),
		RecordWrites: d.grouped.Snapshot(),
		Failure:      d.failure, Refused: d.refused, Held: d.held, Through: d.through, Strict: d.strict,
	}
	s.Hits = s.Reads - min(s.Reads, d.reads.misses.Load())
	if d.settled(s.Log) {
		s.Bringing = 0
		return s
	}
	s.Dirty = s.Log.Dirty + d.pending.Blocks()
	if d.flying != nil {
		s.Dirty += d.flying.Blocks()
	}
	if s.Dirty == 0 && s.Log.Noted != s.Log.Tail {
		s.Bringing = max(s.Bringing, 1) // the image has it, and the disk does not say so yet
	}
	return s
}
