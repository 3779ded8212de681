package ring

import (
	"slices"

	"github.com/escache/escache-csi/internal/escached/cache/log/record"
)

// Batch collects writes for one record.
type Batch struct {
	buffer  []byte // one block for the header, and then the data
	used    int    // blocks of the buffer
	extents []record.Extent
}

// NewBatch returns an empty batch for records of this log.
func (l *Log) NewBatch() *Batch {
	return &Batch{buffer: AlignedBytes(record.LongestBlocks(l.super.RingBlocks) * record.BlockBytes), used: 1}
}

// Empty reports whether nothing was written to the batch.
func (b *Batch) Empty() bool { return len(b.extents) == 0 }

// Reset empties the batch.
func (b *Batch) Reset() { b.used, b.extents = 1, b.extents[:0] }

// Write adds whole blocks. It returns how many had room.
func (b *Batch) Write(start uint64, data []byte) int {
	blocks := min(len(data)/record.BlockBytes, len(b.buffer)/record.BlockBytes-b.used)
	if blocks == 0 || !b.add(record.Extent{Start: start, Blocks: uint32(blocks), Kind: record.Data}) {
		return 0
	}
	copy(b.buffer[b.used*record.BlockBytes:], data[:blocks*record.BlockBytes])
	b.used += blocks
	return blocks
}

// Zero adds blocks that read as zeros from now on, and reports whether there was room. Trim says that the origin may
// give the room back.
func (b *Batch) Zero(start uint64, blocks uint32, trim bool) bool {
	kind := record.Zero
	if trim {
		kind = record.Trim
	}
	return b.add(record.Extent{Start: start, Blocks: blocks, Kind: kind})
}

func (b *Batch) add(e record.Extent) bool {
	if n := len(b.extents); n > 0 {
		last := &b.extents[n-1]
		if last.Kind == e.Kind && last.Start+uint64(last.Blocks) == e.Start && last.Blocks+e.Blocks > last.Blocks {
			last.Blocks += e.Blocks
			return true
		}
	}
	if len(b.extents) == record.MaxExtents {
		return false
	}
	b.extents = append(b.extents, e)
	return true
}

// Read copies what the batch has of one block, and reports whether it has it. The newest write counts.
func (b *Batch) Read(block uint64, p []byte) bool {
	at := b.used
	for _, e := range slices.Backward(b.extents) {
		at -= e.DataBlocks()
		if block < e.Start || block-e.Start >= uint64(e.Blocks) {
			continue
		}
		if e.Kind == record.Data {
			from := (at + int(block-e.Start)) * record.BlockBytes
			copy(p[:record.BlockBytes], b.buffer[from:])
		} else {
			clear(p[:record.BlockBytes])
		}
		return true
	}
	return false
}
