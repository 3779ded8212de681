// Package ring is the log of the cache engine `log`: records that are appended one at a time, found
// again after a power loss, and forgotten once the origin has what is in them.
//
// A record counts only if all before it are there. One record is written at a time, so what was
// acknowledged is always a prefix of what is on the disk.
package ring

import (
	"errors"
	"fmt"
	"io"
	"slices"
	"sync"
	"unsafe"

	"github.com/escache/escache-csi/internal/escached/cache/log/index"
	"github.com/escache/escache-csi/internal/escached/cache/log/record"
)

// Disk is the engine's part of a cache's disk.
type Disk interface {
	io.ReaderAt
	// WriteStable returns when the data is stable on every copy of the disk. Offset, length and
	// memory are aligned to blocks.
	WriteStable(p []byte, at int64) error
}

// ErrFull means that a record has no room until the origin has more of the log.
var ErrFull = errors.New("the log is full")

// Log is an open log. Append and the methods of write-back may be called at the same time, each from one goroutine, and
// Read from any.
type Log struct {
	disk   Disk
	volume record.Volume
	ring   uint64 // blocks
	// maxRanges is how many ranges of zeros the index may have.
	maxRanges uint64

	mu    sync.Mutex // for what follows
	super record.Superblock
	head  record.Place // of the next record
	tail  record.Place // of the oldest record that the origin may lack
	noted record.Place // the tail that recovery would find
	// emptied is the number of the next record when recovery would have found nothing last.
	emptied uint64
	index   index.Index
	gaps    map[uint64]record.Place // after a record that is lost: where the log goes on
	lost    map[uint64][]int        // of a record that is damaged: the extents whose data is lost

	counted Counters

	// unanswered is true after recovery if the last record is one that nobody has an answer to.
	unanswered bool

	// stage is what write-back works on since Mark, and another whether Mark was called again meanwhile.
	stage   *stage
	another bool
	// stageMost is how much memory its index may take, in bytes.
	stageMost int

	// interval is the length of the records after the last one that ends an interval, in blocks. That one is ended.
	interval, ended uint64

	// reuse is held for reading while data is read from the ring, and for writing by whoever lets a part of the ring be
	// overwritten. Nobody waits for the origin with it: write-back would wait as long.
	reuse sync.RWMutex
}

// Format makes an empty log of so many bytes, or of the longest ring if they are more. What was there is lost.
func Format(disk Disk, volume record.Volume, bytes int64) error {
	blocks := min(bytes/record.BlockBytes-record.Superblocks, record.MaxRingBlocks)
	if blocks < record.MinRingBlocks {
		return fmt.Errorf("%d bytes are too few for a log: it needs %d", bytes, (record.Superblocks+record.MinRingBlocks)*record.BlockBytes)
	}
	return writeSuper(disk, record.Superblock{Volume: volume, Since: 1, Start: record.Place{Sequence: 1}, RingBlocks: uint64(blocks)})
}

// writeSuper writes all copies of a superblock, one after the other: one of them is in order at any time.
func writeSuper(disk Disk, s record.Superblock) error {
	block := AlignedBytes(record.BlockBytes)
	s.Encode(block)
	for i := range int64(record.Superblocks) {
		if err := disk.WriteStable(block, i*record.BlockBytes); err != nil {
			return fmt.Errorf("write the superblock of the log: %w", err)
		}
	}
	return nil
}

// offset is where a block of the ring is on the disk.
func (l *Log) offset(block uint64) int64 {
	return int64(record.Superblocks+block%l.ring) * record.BlockBytes
}

// fit is where a record of so many blocks goes that may begin at a block: at the start of the ring if it would go past
// its end.
func (l *Log) fit(block uint64, blocks int) uint64 {
	if rest := l.ring - block%l.ring; rest < uint64(blocks) {
		return block + rest
	}
	return block
}

// maxRangesOf is how many ranges of zeros the index of a ring may have. They and the data of a full ring take less memory than
// resident.Bound allows: 2 bytes of each block's 12, and 28 MiB of what is for everything else. A record of one block can have many of
// them, so the room in the ring does not bound them.
func maxRangesOf(ring uint64) uint64 { return 1<<20 + ring/16 }

// Append writes a batch as one record, and returns its number. When it returns, the record is stable on every copy. After ErrFull
// nothing was written: the ring has no room, or the index has too many ranges of zeros. After any other error the record may be there or
// not, and the log can only be opened again.
func (l *Log) Append(b *Batch) (uint64, error) {
	l.mu.Lock()
	at := record.Place{Block: l.fit(l.head.Block, b.used), Sequence: l.head.Sequence}
	end := at.Block + uint64(b.used)
	crowded := uint64(l.index.Ranges()+2*len(b.extents)) > l.maxRanges
	full := end-l.super.Start.Block > l.ring || crowded && l.ended >= l.tail.Sequence
	h := record.Header{Volume: l.volume, Generation: l.super.Generation, Place: at, Tail: l.tail, Extents: b.extents}
	// A user who never asks for anything to be stable has a state of the volume, too: the log must not fill up with one interval.
	// One that is too long already ends here, in spite of too many ranges: write-back in order could not begin before.
	h.EndsInterval = b.ends || l.interval+uint64(b.used) > l.ring/4 || crowded
	h.Unanswered = b.unanswered && l.tail.Sequence == at.Sequence
	ended := l.ended
	h.StartsInterval = ended+1 == at.Sequence
	l.mu.Unlock()
	if full {
		return 0, ErrFull
	}
	p := b.buffer[:b.used*record.BlockBytes]
	if err := h.Encode(p); err != nil {
		return 0, err
	}
	if err := l.disk.WriteStable(p, l.offset(at.Block)); err != nil {
		return 0, fmt.Errorf("write record %d of the log: %w", at.Sequence, err)
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	l.counted.OverwrittenBlocks += l.apply(&l.index, h, nil)
	l.counted.Records++
	l.counted.Blocks += uint64(b.used)
	l.head = record.Place{Block: end, Sequence: at.Sequence + 1}
	if h.Tail.Sequence > l.noted.Sequence { // NoteTail may have come in between
		l.noted = h.Tail
	}
	during := l.ended != ended
	if l.count(h); during { // the record does not say so, and has nothing that was written since
		l.endInterval()
	}
	return at.Sequence, nil
}

// EndInterval says that the volume is one that its user asked to be stable: nothing that is written from now on is to reach the origin
// together with what is in the log, or on its way there. The next record says so on the disk, and so does a new process.
func (l *Log) EndInterval() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.endInterval()
}

func (l *Log) endInterval() { l.interval, l.ended = 0, l.head.Sequence-1 }

// count adds a record to the interval, or ends it.
func (l *Log) count(h record.Header) {
	if h.StartsInterval {
		l.interval, l.ended = 0, h.Place.Sequence-1
	}
	if l.interval += uint64(h.Blocks()); h.EndsInterval {
		l.interval, l.ended = 0, h.Place.Sequence
	}
}

// apply puts a record into an index, without those extents whose data is lost. It returns how many of its blocks were dirty.
func (l *Log) apply(x *index.Index, h record.Header, lost []int) (hits uint64) {
	data := h.Place.Block + 1
	for i, e := range h.Extents {
		switch {
		case slices.Contains(lost, i):
		case e.Kind == record.Data:
			hits += uint64(x.Put(e.Start, e.Blocks, l.place(data)))
		default:
			x.Zero(e.Start, e.Blocks, l.place(h.Place.Block))
		}
		data += uint64(e.DataBlocks())
	}
	return hits
}

// place is a block's place in the index: its number in the ring. A record is never split, so blocks
// that follow each other in a record do so here.
func (l *Log) place(block uint64) uint32 { return uint32(block % l.ring) }

// Read fills p with the blocks from start on. It calls origin for what the log does not have. Memory is aligned to blocks.
//
// Nothing waits for the origin, which may not answer. So a block that it has now may be written or trimmed, and written back, before it is
// read there. That is as good: a write that is under way at the same time as a read may be in it or not. Nothing older comes there: as the
// block is clean now, all that write-back brings of it from now on was written later.
func (l *Log) Read(start uint64, p []byte, origin func(start uint64, p []byte) error) error {
	part := func(r index.Run) []byte {
		return p[(r.Start-start)*record.BlockBytes:][:int(r.Blocks)*record.BlockBytes]
	}
	clean, err := l.readDirty(start, uint32(len(p)/record.BlockBytes), part)
	if err != nil {
		return err
	}
	for _, r := range clean {
		if err := origin(r.Start, part(r)); err != nil {
			return readError(r, err)
		}
	}
	return nil
}

// readDirty reads what the log has of some blocks, and returns the rest.
func (l *Log) readDirty(start uint64, blocks uint32, part func(index.Run) []byte) (clean []index.Run, err error) {
	l.reuse.RLock()
	defer l.reuse.RUnlock()
	l.mu.Lock()
	runs := slices.Collect(l.index.Runs(start, blocks))
	l.mu.Unlock()
	for _, r := range runs {
		switch r.Found {
		case index.InLog:
			if _, err := l.disk.ReadAt(part(r), l.offset(uint64(r.Place))); err != nil {
				return nil, readError(r, err)
			}
		case index.Zeroed:
			clear(part(r))
		case index.Clean:
			clean = append(clean, r)
		}
	}
	return clean, nil
}

func readError(r index.Run, err error) error {
	return fmt.Errorf("read %d blocks from %d: %w", r.Blocks, r.Start, err)
}

// State is what a log has at one moment, in blocks.
type State struct {
	Dirty uint64 // that the origin lacks
	Used  uint64 // of the ring, also by what was overwritten since
	Live  uint64 // of what is used: after the tail. The rest is free after Release
	Ring  uint64
	// Free is what can be written before a writer waits for the origin. Many ranges of zeros make it less than what is not live.
	Free uint64
	// Ranges is the number of ranges of zeros.
	Ranges uint64
	// Tail is the oldest record that the origin may lack, and Noted the one that recovery would take for that.
	Tail, Noted uint64
	// Emptied is the first record that may have been written since the origin had everything, and recovery would have found nothing. It
	// is 0 if that was never so.
	Emptied uint64
	// IndexBytes is the memory of the index.
	IndexBytes int64
	// Sequence is the newest record.
	Sequence   uint64
	Generation uint64

	Counters Counters
}

// Counters count what was appended since the log was opened. Blocks are those of records, with their headers;
// OverwrittenBlocks had data that the origin did not have yet.
type Counters struct{ Records, Blocks, OverwrittenBlocks uint64 }

// State returns the state.
func (l *Log) State() State {
	l.mu.Lock()
	defer l.mu.Unlock()
	live, ranges := l.head.Block-l.tail.Block, uint64(l.index.Ranges())
	return State{
		Free: min(l.ring-live, l.ring*(l.maxRanges-min(ranges, l.maxRanges))/l.maxRanges), Ranges: ranges,
		Dirty: l.index.Dirty(), Used: l.head.Block - l.super.Start.Block, Ring: l.ring,
		Live: live, Tail: l.tail.Sequence, Noted: l.noted.Sequence, Emptied: l.emptied, IndexBytes: int64(l.index.Bytes()),
		Sequence: l.head.Sequence - 1, Generation: l.super.Generation, Counters: l.counted,
	}
}

// AlignedBytes returns memory that begins at a block's border, as O_DIRECT wants it.
func AlignedBytes(n int) []byte {
	p := make([]byte, n+record.BlockBytes)
	past := int(uintptr(unsafe.Pointer(unsafe.SliceData(p))) % record.BlockBytes) //nolint:gosec // only the address is looked at
	return p[record.BlockBytes-past:][:n:n]
}
