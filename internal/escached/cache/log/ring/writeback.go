package ring

import (
	"cmp"
	"fmt"
	"math"
	"slices"

	"github.com/escache/escache-csi/internal/escached/cache/log/index"
	"github.com/escache/escache-csi/internal/escached/cache/log/record"
)

// Piece is a run of blocks that the origin lacks.
type Piece struct {
	Start  uint64
	Blocks uint64
	Kind   record.Kind

	place uint32 // of its data
}

const (
	// heldMost bounds the memory of the records in one work, a few MiB: all of a log may have been replaced since, and then no block of
	// it counts. It is in extents, and a record takes as much memory as heldRecord of them.
	heldMost   = 1 << 16
	heldRecord = 8

	// stageMost bounds the memory of a stage's index, in bytes: resident.Bound has room for one full index, and not for two. So much is
	// enough for 13 GiB that are dirty.
	stageMost = 32 << 20
)

// Work is what write-back has to bring to the origin before the tail can move.
type Work struct {
	// Pieces are in the order of their blocks, and do not overlap. Each is the newest content of its blocks.
	Pieces []Piece

	headers []record.Header
	next    record.Place // the tail afterwards
}

// Empty reports whether the log has nothing that the origin lacks.
func (w *Work) Empty() bool { return len(w.headers) == 0 }

// stage is the oldest part of the log, from one record to another. As long as there is one, Oldest leaves nothing out because of what
// came later: a block that is written again and again would never reach the origin.
type stage struct {
	first, last uint64
	end         uint64 // the block after the last record
	// then is the index as it was after the last record. It is nil if it would be too large.
	then *index.Index
}

// Mark returns the newest record. Once the origin has all records up to Reach of it, it has each block that is dirty now: as it is now, or
// newer.
func (l *Log) Mark() uint64 {
	l.mu.Lock()
	defer l.mu.Unlock()
	last := l.head.Sequence - 1
	if l.stage == nil {
		l.beginStage()
	} else if l.stage.last < last {
		l.another = true
	}
	return last
}

// beginStage makes everything in the log a stage. The caller holds mu.
func (l *Log) beginStage() {
	if l.another = false; l.tail.Sequence == l.head.Sequence {
		return
	}
	l.stage = &stage{first: l.tail.Sequence, last: l.head.Sequence - 1, end: l.head.Block}
	if l.index.Bytes() <= l.stageMost {
		l.stage.then = l.index.Clone()
	}
}

// Reach returns up to which record write-back must go for what Mark has promised: to the end of a stage that began before that record.
// Until then the stage may have left out a block that a later record of it has.
func (l *Log) Reach(mark uint64) uint64 {
	if s := l.now(); s != nil && s.first <= mark {
		return max(mark, s.last)
	}
	return mark
}

// now is the stage, or nil.
func (l *Log) now() *stage {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.stage
}

// add adds pieces, and returns how many blocks they have.
func (w *Work) add(pieces []Piece) (blocks uint64) {
	for _, p := range pieces {
		blocks += p.Blocks
	}
	w.Pieces = append(w.Pieces, pieces...)
	return blocks
}

// Oldest returns the oldest records, up to `blocks` blocks of data, the record `last`, the end of the stage, or as many records as are
// read at once, whatever comes first. It always returns one record if there is one. What a later record has replaced is left out, whether
// that one is in the work or not. In a stage only its own records count. If its index would be too large, some blocks come more than once:
// those that the stage has several times, and that a record after it has, too.
func (l *Log) Oldest(blocks, last uint64) (Work, error) {
	for {
		s := l.now()
		w, err := l.oldest(s, blocks, last)
		if err != nil || l.now() == s { // otherwise something may be left out for a record after Mark
			return w, err
		}
	}
}

func (l *Log) oldest(s *stage, blocks, last uint64) (Work, error) {
	switch {
	case s == nil:
		return l.collect(blocks, heldMost, last, func(w *Work, h record.Header) uint64 {
			l.mu.Lock()
			defer l.mu.Unlock()
			return w.add(l.current(&l.index, h))
		})
	case s.then == nil:
		w, err := l.upTo(blocks, heldMost, min(last, s.last))
		w.Pieces = l.withoutLater(w.Pieces, s)
		return w, err
	}
	return l.collect(blocks, heldMost, min(last, s.last), func(w *Work, h record.Header) uint64 { return w.add(l.current(s.then, h)) })
}

// withoutLater leaves out what a later record of a stage has, and none after it. That is all that the index knows.
func (l *Log) withoutLater(pieces []Piece, s *stage) (rest []Piece) {
	l.mu.Lock()
	defer l.mu.Unlock()
	from := l.tail.Block
	for _, p := range pieces {
		if p.Kind != record.Data {
			rest = append(rest, p)
			continue
		}
		for r := range l.index.Runs(p.Start, uint32(p.Blocks)) {
			place := p.place + uint32(r.Start-p.Start)
			if r.Found == index.InLog && r.Place != place && (uint64(r.Place)+l.ring-from%l.ring)%l.ring < s.end-from {
				continue
			}
			rest = append(rest, Piece{Start: r.Start, Blocks: uint64(r.Blocks), Kind: p.Kind, place: place})
		}
	}
	return rest
}

// UpTo returns all records up to `last`. With them the origin becomes what the volume was after that record: later ones
// hide nothing.
func (l *Log) UpTo(last uint64) (Work, error) { return l.upTo(math.MaxUint64, math.MaxUint64, last) }

// upTo is UpTo for the oldest records, up to so many blocks of the log, and so much memory.
func (l *Log) upTo(blocks, most, last uint64) (Work, error) {
	then := &index.Index{}
	w, err := l.collect(blocks, most, last, func(_ *Work, h record.Header) (written uint64) {
		l.apply(then, h, l.lost[h.Place.Sequence])
		return uint64(h.Blocks())
	})
	for _, h := range w.headers {
		w.add(l.current(then, h))
	}
	sortPieces(w.Pieces)
	return w, err
}

// Interval returns the oldest records up to the first one that ends an interval, or up to `last`, as UpTo does. It returns
// nothing if the log has neither.
func (l *Log) Interval(last uint64) (Work, error) {
	end, err := l.intervalEnd(last)
	if err != nil || end == 0 {
		return Work{}, err
	}
	return l.UpTo(end)
}

// intervalEnd is the number of the record at which the oldest interval ends, or 0.
func (l *Log) intervalEnd(last uint64) (uint64, error) {
	l.mu.Lock()
	at, head, ended := l.tail, l.head, l.ended
	l.mu.Unlock()
	buffer := AlignedBytes(record.BlockBytes)
	for begun := false; at.Sequence < head.Sequence && at.Sequence <= last; {
		if place, lost := l.gaps[at.Sequence]; lost {
			at = place
			continue
		}
		h, err := l.live(at, buffer)
		if err != nil {
			return 0, err
		}
		if begun && h.StartsInterval {
			return at.Sequence - 1, nil
		}
		if h.EndsInterval || at.Sequence == last || at.Sequence == ended {
			return at.Sequence, nil
		}
		at, begun = after(h), true
	}
	return 0, nil
}

// after is where the record that follows one may begin.
func after(h record.Header) record.Place {
	return record.Place{Block: h.Place.Block + uint64(h.Blocks()), Sequence: h.Place.Sequence + 1}
}

// collect returns the oldest records. add adds one to the work, and returns how many blocks it counts for.
func (l *Log) collect(blocks, most, last uint64, add func(*Work, record.Header) uint64) (Work, error) {
	l.mu.Lock()
	at, head := l.tail, l.head
	l.mu.Unlock()
	w := Work{next: at}
	buffer := AlignedBytes(record.BlockBytes)
	found, held := uint64(0), uint64(0)
	for w.next.Sequence < head.Sequence && w.next.Sequence <= last && (found < blocks && held < most || w.Empty()) {
		if place, lost := l.gaps[w.next.Sequence]; lost {
			w.next = place
			continue
		}
		h, err := l.live(w.next, buffer)
		if err != nil {
			return Work{}, err
		}
		found += add(&w, h)
		w.headers = append(w.headers, h)
		held += uint64(heldRecord + len(h.Extents))
		w.next = after(h)
	}
	sortPieces(w.Pieces)
	return w, nil
}

func sortPieces(pieces []Piece) {
	slices.SortFunc(pieces, func(a, b Piece) int { return cmp.Compare(a.Start, b.Start) })
}

// live reads the header of a record that is known to be there.
func (l *Log) live(at record.Place, buffer []byte) (record.Header, error) {
	for _, block := range l.candidates(at.Block) {
		if _, err := l.disk.ReadAt(buffer, l.offset(block)); err != nil {
			return record.Header{}, fmt.Errorf("read record %d of the log: %w", at.Sequence, err)
		}
		h, err := record.DecodeHeader(buffer, l.volume)
		if err == nil && h.Place == (record.Place{Block: block, Sequence: at.Sequence}) {
			return h, nil
		}
	}
	return record.Header{}, fmt.Errorf("read record %d of the log: %w", at.Sequence, record.ErrInvalid)
}

// current returns what no later record of an index has replaced.
func (l *Log) current(x *index.Index, h record.Header) []Piece {
	var pieces []Piece
	data := h.Place.Block + 1
	for _, e := range h.Extents {
		if e.Kind != record.Data {
			for _, r := range x.Zeros(e.Start, e.Blocks, l.place(h.Place.Block)) {
				pieces = append(pieces, Piece{Start: r.Start, Blocks: r.End - r.Start, Kind: e.Kind})
			}
			continue
		}
		for r := range x.Runs(e.Start, e.Blocks) {
			if place := l.place(data + r.Start - e.Start); r.Found == index.InLog && r.Place == place {
				pieces = append(pieces, Piece{Start: r.Start, Blocks: uint64(r.Blocks), Kind: record.Data, place: place})
			}
		}
		data += uint64(e.Blocks)
	}
	return pieces
}

// ReadPiece reads the data of a piece.
func (l *Log) ReadPiece(p Piece, into []byte) error {
	if _, err := l.disk.ReadAt(into[:p.Blocks*record.BlockBytes], l.offset(uint64(p.place))); err != nil {
		return fmt.Errorf("read %d blocks from %d of the log: %w", p.Blocks, p.Start, err)
	}
	return nil
}

// Done says that the origin has everything of w, and that it is stable there. The next record says so on the disk.
func (l *Log) Done(w Work) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, h := range w.headers {
		data := h.Place.Block + 1
		for _, e := range h.Extents {
			if e.Kind == record.Data {
				l.index.Clean(e.Start, e.Blocks, l.place(data))
				data += uint64(e.Blocks)
			} else {
				l.index.CleanZeros(e.Start, e.Blocks, l.place(h.Place.Block))
			}
		}
	}
	l.tail = w.next
	if l.stage != nil && l.stage.last < l.tail.Sequence {
		if l.stage = nil; l.another {
			l.beginStage()
		}
	}
}

// Release makes the room of everything before the tail usable again. It costs a write of its own, so it is called when
// room is needed, and not after each Done.
func (l *Log) Release() error {
	// Nobody may still read what is about to be overwritten.
	l.reuse.Lock()
	defer l.reuse.Unlock()
	return l.begin(l.super)
}

// NoteTail returns when recovery would find the tail where it is. It writes only if no record since Done says so.
func (l *Log) NoteTail() error {
	l.mu.Lock()
	noted := l.noted == l.tail
	l.mu.Unlock()
	if noted {
		return nil
	}
	return l.Release()
}
