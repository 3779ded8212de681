package index

import (
	"slices"
	"sort"
)

// zeros are ranges of blocks that read as zeros, in order, without overlaps.
type zeros struct {
	ranges []zeroRange
	blocks uint64
}

type zeroRange struct {
	start, end uint64
	place      uint32
}

// first is the first range that ends behind a block.
func (z *zeros) first(block uint64) int {
	return sort.Search(len(z.ranges), func(i int) bool { return z.ranges[i].end > block })
}

func (z *zeros) get(block uint64) (place uint32, ok bool) {
	if i := z.first(block); i < len(z.ranges) && z.ranges[i].start <= block {
		return z.ranges[i].place, true
	}
	return 0, false
}

func (z *zeros) of(start, end uint64, place uint32) []Range {
	var all []Range
	for i := z.first(start); i < len(z.ranges) && z.ranges[i].start < end; i++ {
		if r := z.ranges[i]; r.place == place {
			all = append(all, Range{max(r.start, start), min(r.end, end)})
		}
	}
	return all
}

// add expects that the range is free.
func (z *zeros) add(start, end uint64, place uint32) {
	z.ranges = slices.Insert(z.ranges, z.first(start), zeroRange{start, end, place})
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
	from := z.first(start)
	to := from
	var keep []zeroRange
	for ; to < len(z.ranges) && z.ranges[to].start < end; to++ {
		r := z.ranges[to]
		if !match(r.place) {
			keep = append(keep, r)
			continue
		}
		z.blocks -= min(r.end, end) - max(r.start, start)
		if r.start < start {
			keep = append(keep, zeroRange{r.start, start, r.place})
		}
		if r.end > end {
			keep = append(keep, zeroRange{end, r.end, r.place})
		}
	}
	if from < to {
		z.ranges = slices.Replace(z.ranges, from, to, keep...)
	}
}

func (z *zeros) drop(dead func(place uint32) bool) {
	z.ranges = slices.DeleteFunc(z.ranges, func(r zeroRange) bool {
		if dead(r.place) {
			z.blocks -= r.end - r.start
		}
		return dead(r.place)
	})
}
