package ring

import (
	"errors"
	"fmt"
	"slices"

	"github.com/escache/escache-csi/internal/escached/cache/log/record"
)

// ErrNoLog means that there is no log on the disk, or that both superblocks are damaged.
var ErrNoLog = errors.New("no log is on the disk")

// Loss is acknowledged data that the disk no longer has: a later record is there, so this one was
// stable once.
type Loss struct {
	// First and Last are the records.
	First, Last uint64
	// Extents are what is lost. It is nil if not even that can be read.
	Extents []record.Extent
}

func (l Loss) String() string {
	if l.Extents == nil {
		return fmt.Sprintf("records %d to %d cannot be read: unknown blocks are lost", l.First, l.Last)
	}
	return fmt.Sprintf("record %d is damaged: lost are %v", l.First, l.Extents)
}

// Inspect finds a log and everything in it, and changes nothing. The log can be read, and not be
// appended to. Losses do not make it fail: the caller decides. They are told again until the origin has what is left.
//
// The last record has no witness: if it decays, it looks as if it had never been complete. If it was written through, and nobody
// has an answer to it, it is taken for that: the image may have it, or a part of it, and is what counts.
func Inspect(disk Disk) (*Log, []Loss, error) {
	super, err := readSuper(disk)
	if err != nil {
		return nil, nil, err
	}
	l := &Log{
		disk: disk, volume: super.Volume, ring: super.RingBlocks, maxRanges: maxRangesOf(super.RingBlocks), super: super,
		head: super.Start, tail: super.Start, gaps: map[uint64]record.Place{}, lost: map[uint64][]int{},
		stageMost: stageMost,
	}
	losses, err := l.replay()
	if err != nil {
		return nil, nil, err
	}
	if l.unanswered {
		l.tail = l.head // it is all that is dirty
	}
	l.forgetDead()
	return l, l.fromTail(losses), nil
}

// MemoryOf returns the memory of the process that opened the log last. After another host has had the log, it is not
// that of this host any more: what is left in it here is older than the log.
func MemoryOf(disk Disk) (record.Memory, error) {
	super, err := readSuper(disk)
	return super.Memory, err
}

// Open is Inspect for writing, by a process without a memory.
func Open(disk Disk) (*Log, []Loss, error) { return OpenWith(disk, record.Memory{}) }

// OpenWith is Open by a process that has a memory. From now on MemoryOf returns it.
func OpenWith(disk Disk, memory record.Memory) (*Log, []Loss, error) {
	l, losses, err := Inspect(disk)
	if err != nil {
		return nil, nil, err
	}
	l.endInterval() // whoever reads now may go by what there is
	if err := l.eraseUnfinished(); err != nil {
		return nil, nil, err
	}
	next := l.super
	next.Generation++
	next.Memory = memory
	next.Since = l.head.Sequence
	return l, losses, l.begin(next)
}

// eraseUnfinished erases the header of a record that was never acknowledged. The next record gets its number, and may
// go to another place: then recovery would find two. The generation alone tells them apart only until the next one.
func (l *Log) eraseUnfinished() error {
	block := AlignedBytes(record.BlockBytes)
	for _, at := range l.candidates(l.head.Block) {
		if at >= l.super.Start.Block+l.ring {
			continue // the ring is full: no record was begun there
		}
		if err := l.disk.WriteStable(block, l.offset(at)); err != nil {
			return fmt.Errorf("erase block %d of the log: %w", at, err)
		}
	}
	return nil
}

// candidates are the blocks at which a record can begin that follows one which ended at a block: right there, or at the
// start of the ring if it is too long for the rest.
func (l *Log) candidates(after uint64) []uint64 {
	blocks := []uint64{after}
	if wrapped := l.fit(after, record.LongestBlocks(l.ring)); wrapped != after {
		blocks = append(blocks, wrapped)
	}
	return blocks
}

// begin makes the tail the start, and next the superblock.
func (l *Log) begin(next record.Superblock) error {
	l.mu.Lock()
	next.Start = l.tail
	l.mu.Unlock()
	if err := writeSuper(l.disk, next); err != nil {
		return err
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.super, l.noted = next, next.Start; l.noted.Sequence == l.head.Sequence {
		l.emptied = l.head.Sequence
	}
	return nil
}

func readSuper(disk Disk) (record.Superblock, error) {
	block := AlignedBytes(record.BlockBytes)
	for i := range int64(record.Superblocks) {
		if _, err := disk.ReadAt(block, i*record.BlockBytes); err != nil {
			return record.Superblock{}, fmt.Errorf("read the superblock of the log: %w", err)
		}
		if s, err := record.DecodeSuperblock(block); err == nil {
			return s, nil
		}
	}
	return record.Superblock{}, ErrNoLog
}

// replay reads records from the start on until there is no next one. The newest one says what the origin has, so no loss counts before.
func (l *Log) replay() ([]Loss, error) {
	var losses []Loss
	r := l.newReader()
	for {
		next, damaged, err := l.next(r)
		if err != nil {
			return nil, err
		}
		if next != nil && damaged == nil {
			l.accept(*next, nil)
			continue
		}
		witness, err := l.witness(r)
		if err != nil || witness == nil {
			return losses, err // the next record never was, or was never complete
		}
		if next != nil {
			loss := Loss{First: l.head.Sequence, Last: l.head.Sequence}
			for _, i := range damaged {
				loss.Extents = append(loss.Extents, next.Extents[i])
			}
			losses = append(losses, loss)
			l.lost[next.Place.Sequence] = damaged
			l.accept(*next, damaged)
			continue
		}
		losses = append(losses, Loss{First: l.head.Sequence, Last: witness.Place.Sequence - 1})
		l.gaps[l.head.Sequence] = witness.Place
		l.head = witness.Place
	}
}

// next reads the record at the head. It returns nil if there is none whose header is in order, and those extents whose
// data is not.
func (l *Log) next(r *reader) (*record.Header, []int, error) {
	for _, block := range l.candidates(l.head.Block) {
		b, err := r.blocks(block, 1)
		if err != nil {
			return nil, nil, err
		}
		h := l.belongs(b, block)
		if h == nil || h.Place.Sequence != l.head.Sequence {
			continue
		}
		whole, err := r.blocks(block, h.Blocks())
		if err != nil {
			return nil, nil, err
		}
		return h, h.Damaged(whole[record.BlockBytes:]), nil
	}
	return nil, nil, nil
}

// belongs decodes a header, and returns nil unless it is one that this log wrote at this block.
func (l *Log) belongs(b []byte, block uint64) *record.Header {
	h, err := record.DecodeHeader(b, l.volume)
	if err != nil || h.Place.Block != block || h.Place.Sequence < l.head.Sequence {
		return nil
	}
	length := uint64(h.Blocks())
	if length > uint64(record.LongestBlocks(l.ring)) || l.fit(block, h.Blocks()) != block || block+length > l.super.Start.Block+l.ring {
		return nil
	}
	// A record that an earlier life left unfinished has the number of one of this life, and a lower
	// generation.
	if h.Place.Sequence >= l.super.Since && h.Generation != l.super.Generation ||
		h.Place.Sequence < l.super.Since && h.Generation >= l.super.Generation {
		return nil
	}
	return &h
}

// witness looks behind the head for a record that was begun after the one at the head had been
// acknowledged. It looks no further than the next two records can begin.
func (l *Log) witness(r *reader) (*record.Header, error) {
	longest := uint64(record.LongestBlocks(l.ring))
	end := min(l.fit(l.head.Block+1, int(longest))+2*longest, l.super.Start.Block+l.ring)
	for block := l.head.Block + 1; block < end; block++ {
		b, err := r.blocks(block, 1)
		if err != nil {
			return nil, err
		}
		if h := l.belongs(b, block); h != nil && h.Place.Sequence > l.head.Sequence {
			return h, nil
		}
	}
	return nil, nil //nolint:nilnil // there is none
}

// accept makes a record a part of the log.
func (l *Log) accept(h record.Header, lost []int) {
	l.apply(&l.index, h, lost)
	l.head = after(h)
	l.count(h)
	l.unanswered = h.Unanswered && h.Tail.Sequence == h.Place.Sequence
	if h.Tail.Sequence > l.tail.Sequence {
		l.tail = h.Tail
	}
}

// fromTail returns those losses that the origin lacks. The tail itself stays where it is, also if the record there is lost: the next one
// who opens the log begins there, and must hear of the loss, too.
func (l *Log) fromTail(losses []Loss) []Loss {
	tail := l.tail.Sequence
	losses = slices.DeleteFunc(losses, func(x Loss) bool { return x.Last < tail })
	if len(losses) > 0 && losses[0].First < tail { // a gap in which the tail lies
		l.gaps[tail] = l.gaps[losses[0].First]
		losses[0].First = tail
	}
	return losses
}

// forgetDead takes out of the index what the origin has, as the newest record says.
func (l *Log) forgetDead() {
	from, length := l.super.Start.Block, l.tail.Block-l.super.Start.Block
	l.index.DropPlaces(func(place uint32) bool {
		return (uint64(place)+l.ring-from%l.ring)%l.ring < length
	})
}
