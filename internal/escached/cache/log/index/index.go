// Package index knows where in the log the newest content of each dirty block is. It is in memory
// only, takes about ten bytes for each dirty block with data, RangeBytes for each range of zeros, and nothing for blocks
// that are clean.
package index

import (
	"iter"
	"slices"
)

// Blocks is the number of blocks that an index can address: 16 TiB.
const Blocks = 1<<32 - 1

// shards are tables that grow one at a time, so that growth neither takes long nor doubles memory.
const shards = 256

// Index is not safe for concurrent use.
type Index struct {
	tables [shards]table
	zeros  zeros
	dirty  uint64
}

// Found says what a block is.
type Found uint8

// What a block is.
const (
	// Clean means that the origin has the block.
	Clean Found = iota
	// InLog means that the log has its data.
	InLog
	// Zeroed means that it reads as zeros.
	Zeroed
)

// Dirty is the number of blocks that the origin lacks, zeroed ones included.
func (x *Index) Dirty() uint64 { return x.dirty + x.zeros.blocks }

// Ranges is the number of ranges of zeros. A trim or a write adds two at most: its own, and one if it splits another.
func (x *Index) Ranges() int { return x.zeros.count() }

// Clone returns an index that is the same, and stays so. It takes as much memory again.
func (x *Index) Clone() *Index {
	c := &Index{zeros: x.zeros.clone(), dirty: x.dirty}
	for i, t := range x.tables {
		c.tables[i] = table{slots: slices.Clone(t.slots), used: t.used}
	}
	return c
}

// Get looks one block up. The place is that of its data, or of the record that zeroed it.
func (x *Index) Get(block uint64) (Found, uint32) {
	if place, ok := x.table(block).get(uint32(block) + 1); ok {
		return InLog, place
	}
	if place, ok := x.zeros.get(block); ok {
		return Zeroed, place
	}
	return Clean, 0
}

// Put says that the data of `blocks` blocks from start on is in the log from place on. It hides what
// was there before. It returns how many of them were dirty already.
func (x *Index) Put(start uint64, blocks, place uint32) (hits uint32) {
	zeros := x.zeros.blocks
	x.zeros.remove(start, start+uint64(blocks))
	hits = blocks + uint32(zeros-x.zeros.blocks)
	for i := range blocks {
		block := start + uint64(i)
		if x.table(block).put(uint32(block)+1, place+i) {
			x.dirty++
			hits--
		}
	}
	return hits
}

// Zero says that the record at place made blocks zero.
func (x *Index) Zero(start uint64, blocks, place uint32) {
	x.forget(start, start+uint64(blocks))
	x.zeros.remove(start, start+uint64(blocks))
	x.zeros.add(start, start+uint64(blocks), place)
}

// Clean says that the origin has what the log has of blocks from place on. Blocks that are newer
// stay.
func (x *Index) Clean(start uint64, blocks, place uint32) {
	for i := range blocks {
		block := start + uint64(i)
		if at, ok := x.table(block).get(uint32(block) + 1); ok && at == place+i {
			x.remove(block)
		}
	}
}

// CleanZeros says that the origin has the zeros of the record at place.
func (x *Index) CleanZeros(start uint64, blocks, place uint32) {
	x.zeros.removeOf(start, start+uint64(blocks), place)
}

// Zeros returns those parts of a range that are zero because of the record at place.
func (x *Index) Zeros(start uint64, blocks, place uint32) []Range {
	return x.zeros.of(start, start+uint64(blocks), place)
}

// DropPlaces makes all blocks clean whose place is dead.
func (x *Index) DropPlaces(dead func(place uint32) bool) {
	x.sweep(func(_ uint64, place uint32) bool { return dead(place) })
	x.zeros.drop(dead)
}

// forget removes the data of a range. A range larger than the index is cheaper to find by looking at the index.
func (x *Index) forget(start, end uint64) {
	if end-start > x.dirty {
		x.sweep(func(block uint64, _ uint32) bool { return block >= start && block < end })
		return
	}
	for block := start; block < end; block++ {
		x.remove(block)
	}
}

// sweep removes all blocks with data for which f is true.
func (x *Index) sweep(f func(block uint64, place uint32) bool) {
	for i := range x.tables {
		var gone []uint64
		for _, s := range x.tables[i].slots {
			if block := uint64(s.key) - 1; s.key != 0 && f(block, s.place) {
				gone = append(gone, block)
			}
		}
		for _, block := range gone {
			x.remove(block)
		}
	}
}

// remove does nothing if the block has no data here.
func (x *Index) remove(block uint64) {
	if x.table(block).remove(uint32(block) + 1) {
		x.dirty--
	}
}

// getter is Get for blocks in ascending order, up to an end: it looks for a range of zeros once. The index must not change meanwhile.
func (x *Index) getter(start, end uint64) func(block uint64) (Found, uint32) {
	zero, some := x.zeros.first(start, end)
	return func(block uint64) (Found, uint32) {
		if place, ok := x.table(block).get(uint32(block) + 1); ok {
			return InLog, place
		}
		if some && block >= uint64(zero.end) {
			zero, some = x.zeros.first(block, end)
		}
		if some && block >= uint64(zero.start) {
			return Zeroed, zero.place
		}
		return Clean, 0
	}
}

// Runs splits a range into runs of blocks that are alike: clean, zeroed, or one after the other in the log. The index must not change
// meanwhile.
func (x *Index) Runs(start uint64, blocks uint32) iter.Seq[Run] {
	return func(yield func(Run) bool) {
		end := start + uint64(blocks)
		get := x.getter(start, end)
		for at := start; at < end; {
			r := Run{Start: at, Blocks: 1}
			r.Found, r.Place = get(at)
			for at++; at < end; at++ {
				found, place := get(at)
				if found != r.Found || found == InLog && place != r.Place+r.Blocks {
					break
				}
				r.Blocks++
			}
			if !yield(r) {
				return
			}
		}
	}
}

// Run is a part of a range.
type Run struct {
	Start  uint64
	Blocks uint32
	Found  Found
	Place  uint32 // of its first block, if InLog
}

// Range is from the block Start on, up to but not with End.
type Range struct{ Start, End uint64 }

// Bytes is the memory that the index takes.
func (x *Index) Bytes() int {
	n := x.zeros.count() * RangeBytes
	for i := range x.tables {
		n += len(x.tables[i].slots) * 8
	}
	return n
}

// table spreads blocks over tables in runs of 64, so that a short run is in one.
func (x *Index) table(block uint64) *table {
	h := uint32(block>>6) * 0x9e3779b1
	return &x.tables[h>>24]
}
