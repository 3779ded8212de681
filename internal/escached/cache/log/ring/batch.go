package ring

import (
	"encoding/binary"
	"errors"
	"fmt"
	"slices"
	"sync/atomic"
	"unsafe"

	"github.com/escache/escache-csi/internal/escached/cache/log/record"
)

// AreaBytes is the memory of one batch: a block that says what is in it, one for the record's header, and the data.
const AreaBytes = (1 + record.MaxBlocks) * record.BlockBytes

// In the first block of an area. The state is one word, so that a process that is killed leaves a batch as it was before
// a write or after it: data and extents go where the state does not reach, and then the state changes.
const (
	stateAt   = 0
	numberAt  = 8
	entriesAt = 64
	entry     = 16

	// The state: the blocks that are used, the number of extents, and the length of the last one, which may grow.
	usedBits    = 16
	extentsBits = 16
)

// mostZeros is how many extents of zeros a batch takes: a record that is nothing but them is one block, and whoever reads a log at 25 MiB/s
// has 150 us for it. An earlier version took as many as a header has room for.
const mostZeros = 64

// ErrBadArea means that memory has not what a batch leaves in it.
var ErrBadArea = errors.New("the memory of a batch is damaged")

// Batch collects writes for one record. What was written to it is in its area at once.
type Batch struct {
	area    []byte
	buffer  []byte // of the area: one block for the header, and then the data
	used    int    // blocks of the buffer
	extents []record.Extent
	zeros   int // of the extents
	ends    bool
	// unanswered says that nobody has an answer to what is in the batch before the origin has it.
	unanswered bool
}

// NewBatch returns an empty batch for records of this log, with memory of its own.
func (l *Log) NewBatch() *Batch {
	b := l.batch(AlignedBytes((1 + l.longest()) * record.BlockBytes))
	b.Reset()
	return b
}

// LoadBatch returns the batch that is in an area, which begins at a block's border. An area of zeros has an empty one.
func (l *Log) LoadBatch(area []byte) (*Batch, error) {
	b := l.batch(area[:(1+l.longest())*record.BlockBytes])
	return b, b.load()
}

func (l *Log) longest() int { return record.LongestBlocks(l.ring) }

func (l *Log) batch(area []byte) *Batch { return &Batch{area: area, buffer: area[record.BlockBytes:]} }

func (b *Batch) state() *atomic.Uint64 {
	return (*atomic.Uint64)(unsafe.Pointer(&b.area[stateAt])) //nolint:gosec // an area is aligned to blocks
}

// publish makes what was written a part of the batch.
func (b *Batch) publish() {
	last := uint32(0)
	if n := len(b.extents); n > 0 {
		last = b.extents[n-1].Blocks
	}
	b.state().Store(uint64(b.used) | uint64(len(b.extents))<<usedBits | uint64(last)<<(usedBits+extentsBits))
}

func (b *Batch) load() error {
	state := b.state().Load()
	b.used, b.extents = max(1, int(state&(1<<usedBits-1))), b.extents[:0]
	count := int(state >> usedBits & (1<<extentsBits - 1))
	if count > record.MaxExtents {
		return fmt.Errorf("%w: it has %d extents", ErrBadArea, count)
	}
	h := record.Header{}
	for i := range count {
		p := b.area[entriesAt+i*entry:]
		word := binary.LittleEndian.Uint64(p)
		e := record.Extent{Start: word & (1<<56 - 1), Blocks: binary.LittleEndian.Uint32(p[8:]), Kind: record.Kind(word >> 56)}
		if i == count-1 {
			e.Blocks = uint32(state >> (usedBits + extentsBits))
		}
		if !e.Valid() {
			return fmt.Errorf("%w: %s of kind %d", ErrBadArea, e, e.Kind)
		}
		h.Extents = append(h.Extents, e)
	}
	if h.Blocks() != b.used || b.used > len(b.buffer)/record.BlockBytes {
		return fmt.Errorf("%w: %d blocks are used, and the extents have %d", ErrBadArea, b.used, h.Blocks())
	}
	b.extents, b.zeros = h.Extents, 0
	for _, e := range h.Extents {
		b.zeros += zeros(e)
	}
	return nil
}

// Number is what Begin was given.
func (b *Batch) Number() uint64 { return binary.LittleEndian.Uint64(b.area[numberAt:]) }

// Begin numbers an empty batch. Of two that are not empty, the one with the lower number is older.
func (b *Batch) Begin(number uint64) { binary.LittleEndian.PutUint64(b.area[numberAt:], number) }

// Empty reports whether nothing was written to the batch.
func (b *Batch) Empty() bool { return len(b.extents) == 0 }

// Blocks is how many blocks were written to the batch, each as often as it was, zeros included.
func (b *Batch) Blocks() uint64 {
	n := uint64(0)
	for _, e := range b.extents {
		n += uint64(e.Blocks)
	}
	return n
}

// Reset empties the batch.
func (b *Batch) Reset() {
	b.used, b.extents, b.zeros, b.ends, b.unanswered = 1, b.extents[:0], 0, false, false
	b.publish()
}

// EndInterval says that the volume after this batch is one that its user asked to be stable.
func (b *Batch) EndInterval() { b.ends = true }

// Unanswered says that whoever wrote to this batch gets no answer before the origin has it. Then it must be there before the next
// Append.
func (b *Batch) Unanswered() { b.unanswered = true }

// IsUnanswered reports whether somebody has said so.
func (b *Batch) IsUnanswered() bool { return b.unanswered }

// HasRoom reports whether so many blocks can be written with one Write.
func (b *Batch) HasRoom(blocks int) bool {
	return len(b.extents) < record.MaxExtents && blocks <= len(b.buffer)/record.BlockBytes-b.used
}

// Write adds whole blocks. It returns how many had room.
func (b *Batch) Write(start uint64, data []byte) int {
	blocks := min(len(data)/record.BlockBytes, len(b.buffer)/record.BlockBytes-b.used)
	if blocks == 0 {
		return 0
	}
	copy(b.buffer[b.used*record.BlockBytes:], data[:blocks*record.BlockBytes])
	if !b.add(record.Extent{Start: start, Blocks: uint32(blocks), Kind: record.Data}) {
		return 0
	}
	b.used += blocks
	b.publish()
	return blocks
}

// Zero adds blocks that read as zeros from now on, and reports whether there was room. Trim says that the origin may
// give the room back.
func (b *Batch) Zero(start uint64, blocks uint32, trim bool) bool {
	kind := record.Zero
	if trim {
		kind = record.Trim
	}
	if !b.add(record.Extent{Start: start, Blocks: blocks, Kind: kind}) {
		return false
	}
	b.publish()
	return true
}

func (b *Batch) add(e record.Extent) bool {
	if n := len(b.extents); n > 0 {
		last := &b.extents[n-1]
		if last.Kind == e.Kind && last.Start+uint64(last.Blocks) == e.Start && last.Blocks+e.Blocks > last.Blocks {
			last.Blocks += e.Blocks
			return true
		}
	}
	if len(b.extents) == record.MaxExtents || b.zeros+zeros(e) > max(b.zeros, mostZeros) {
		return false
	}
	b.extents = append(b.extents, e)
	b.zeros += zeros(e)
	b.note(len(b.extents) - 2)
	b.note(len(b.extents) - 1)
	return true
}

// zeros is 1 for an extent of zeros.
func zeros(e record.Extent) int {
	if e.Kind == record.Data {
		return 0
	}
	return 1
}

// note writes an extent to the area. That of the last one's length there does not count.
func (b *Batch) note(i int) {
	if i < 0 {
		return
	}
	e, p := b.extents[i], b.area[entriesAt+i*entry:]
	binary.LittleEndian.PutUint64(p, e.Start|uint64(e.Kind)<<56)
	binary.LittleEndian.PutUint32(p[8:], e.Blocks)
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
