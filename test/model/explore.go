package model

import (
	"hash/maphash"
	"slices"
)

// Result is the result of an exploration.
type Result struct {
	States int
	// Depth is how many steps were tried in every order.
	Depth int
	// Whole is true when there was nothing left to try within the bounds.
	Whole bool
	// Taken says which kinds of moves were taken.
	Taken [kinds]bool
	// Pairs says which two hosts have had the replicas.
	Pairs [pairs]bool
	// Promise is the number of the broken one, 0 if none was found; Reason says how, and Trace
	// leads there.
	Promise uint8
	Reason  string
	Trace   []string
}

// found is one state that was reached: enough to find the way again.
type found struct {
	from int32
	move move
}

// hashes is a set of hashes, with open addressing: Go's map takes three times as long.
type hashes struct {
	slots []uint64
	used  int
}

// add returns false if the hash was there already.
func (s *hashes) add(h uint64) bool {
	h |= 1 // 0 is a free slot
	if 2*s.used >= len(s.slots) {
		old := s.slots
		s.slots, s.used = make([]uint64, max(1<<16, 2*len(old))), 0
		for _, kept := range old {
			if kept != 0 {
				s.add(kept)
			}
		}
	}
	mask := uint64(len(s.slots) - 1)
	for i := (h >> 1) & mask; ; i = (i + 1) & mask {
		switch s.slots[i] {
		case h:
			return false
		case 0:
			s.slots[i] = h
			s.used++
			return true
		}
	}
}

// explorer goes breadth-first, so the way to a broken promise is a shortest one.
type explorer struct {
	model *Model
	seed  maphash.Seed
	known hashes
	ways  []found
	next  []state
	ids   []int32
	taken [kinds]bool
	pairs [pairs]bool
	// broken is the first state found in which a promise is broken.
	broken *state
	// last is set when no further step is tried, so that what is found need not be kept.
	last bool
	// more is set when the running step has found something new.
	more bool
}

// Explore tries every order of steps up to a depth, from a volume in use, one that was never
// attached, and one left dirty.
func (m *Model) Explore(depth, limit int) Result {
	e := &explorer{model: m, seed: maphash.MakeSeed()}
	roots := m.roots()
	for i := range roots {
		e.reach(-1, move{host: uint8(i)}, &roots[i].state)
	}
	level := 0
	for ; level < depth && e.more && e.broken == nil && len(e.ways) < limit; level++ {
		states, ids := e.next, e.ids
		e.next, e.ids, e.more, e.last = nil, nil, false, level == depth-1
		for i := range states {
			m.moves(&states[i], func(by move, to *state) {
				e.taken[by.kind] = true
				e.reach(ids[i], by, to)
			})
			if e.broken != nil {
				break
			}
		}
	}
	r := Result{States: len(e.ways), Depth: level, Whole: !e.more && e.broken == nil, Taken: e.taken, Pairs: e.pairs}
	if e.broken != nil {
		r.Promise, r.Reason, r.Trace = e.broken.broken, reasons[e.broken.why], e.trace(roots)
	}
	return r
}

func (e *explorer) reach(from int32, by move, to *state) {
	if e.broken != nil {
		return
	}
	e.model.check(to)
	if !e.known.add(maphash.Comparable(e.seed, *to)) {
		return
	}
	e.ways = append(e.ways, found{from, by})
	e.pairs[to.rec.pair()] = true
	if to.broken != 0 {
		e.broken = new(*to)
		return
	}
	if !e.last {
		e.next, e.ids = append(e.next, *to), append(e.ids, int32(len(e.ways)-1))
	}
	e.more = true
}

// check looks at what must hold in every state.
func (m *Model) check(s *state) {
	writers := 0
	for i := range s.host {
		if s.usable(uint8(i)) {
			writers++
		}
	}
	if writers > 1 {
		s.breaks(1, whyTwoPrimaries)
	}
	s.sized()
	if !s.survives() && !s.onPeerOnly() {
		s.breaks(3, whyNothingHoldsIt)
	}
}

// trace tells the way to the broken promise by going it once more.
func (e *explorer) trace(roots []root) []string {
	var way []move
	at := int32(len(e.ways) - 1)
	for e.ways[at].from >= 0 {
		way = append(way, e.ways[at].move)
		at = e.ways[at].from
	}
	slices.Reverse(way)
	lines := []string{roots[at].text}
	now := roots[at].state
	for _, step := range way {
		lines = append(lines, step.text(&now))
		var then *state
		e.model.moves(&now, func(by move, to *state) {
			if by == step && then == nil {
				e.model.check(to)
				then = new(*to)
			}
		})
		now = *then
	}
	return lines
}
