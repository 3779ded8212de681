package index

import "k8s.io/utils/third_party/forked/golang/btree"

const (
	// degree makes nodes of the tree as long as is still fast to insert into.
	degree = 32
	// RangeBytes is the memory of a range of zeros at most: nodes that are half full. A range itself takes 12 bytes.
	RangeBytes = 28
)

// zeros are ranges of blocks that read as zeros, without overlaps.
type zeros struct {
	ranges *btree.BTree[zeroRange] // nil: there was none yet
	blocks uint64
}

// zeroRange is in a tree in the order of its end, which is below 2^32 as Blocks is.
type zeroRange struct{ start, end, place uint32 }

func newRanges() *btree.BTree[zeroRange] {
	return btree.New(degree, func(a, b zeroRange) bool { return a.end < b.end })
}

func (z *zeros) count() int {
	if z.ranges == nil {
		return 0
	}
	return z.ranges.Len()
}

func (z *zeros) clone() zeros {
	c := zeros{blocks: z.blocks}
	if z.ranges != nil {
		c.ranges = z.ranges.Clone()
	}
	return c
}

// first is the first range that has blocks of a range, if there is one.
func (z *zeros) first(start, end uint64) (first zeroRange, ok bool) {
	if start >= end || z.count() == 0 {
		return first, false
	}
	z.ranges.AscendGreaterOrEqual(zeroRange{end: uint32(start + 1)}, func(r zeroRange) bool {
		first, ok = r, uint64(r.start) < end
		return false
	})
	return first, ok
}

func (z *zeros) get(block uint64) (place uint32, ok bool) {
	r, ok := z.first(block, block+1)
	return r.place, ok
}

func (z *zeros) of(start, end uint64, place uint32) []Range {
	var all []Range
	for r, ok := z.first(start, end); ok; r, ok = z.first(uint64(r.end), end) {
		if r.place == place {
			all = append(all, Range{max(uint64(r.start), start), min(uint64(r.end), end)})
		}
	}
	return all
}

// add expects that the range is free.
func (z *zeros) add(start, end uint64, place uint32) {
	if z.ranges == nil {
		z.ranges = newRanges()
	}
	z.ranges.ReplaceOrInsert(zeroRange{uint32(start), uint32(end), place})
	z.blocks += end - start
}

func (z *zeros) remove(start, end uint64) {
	z.cut(start, end, func(uint32) bool { return true })
}

func (z *zeros) removeOf(start, end uint64, place uint32) {
	z.cut(start, end, func(p uint32) bool { return p == place })
}

// cut takes a range out of those ranges whose place matches.
func (z *zeros) cut(start, end uint64, match func(place uint32) bool) {
	for r, ok := z.first(start, end); ok; r, ok = z.first(uint64(r.end), end) {
		if !match(r.place) {
			continue
		}
		z.ranges.Delete(r)
		from, to := uint64(r.start), uint64(r.end)
		z.blocks -= to - from
		if from < start {
			z.add(from, start, r.place)
		}
		if to > end {
			z.add(end, to, r.place)
		}
	}
}

func (z *zeros) drop(dead func(place uint32) bool) {
	if z.count() == 0 {
		return
	}
	old := z.ranges
	z.ranges, z.blocks = nil, 0
	old.Ascend(func(r zeroRange) bool {
		if !dead(r.place) {
			z.add(uint64(r.start), uint64(r.end), r.place)
		}
		return true
	})
}
