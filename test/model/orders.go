package model

// orders is what people and the repair want of a volume: that it writes through, and that its cache is
// discarded.
func (m *Model) orders(s *state, try func(kind, uint8, func(*state) bool)) {
	if m.has(Discards) {
		m.discards(s, try)
	}
	h := s.rec.attached
	if !m.has(Draining) || h == nobody || s.rec.flush || !s.reaches(h) || !s.host[h].device {
		return
	}
	begin := func(k kind, pc uint8) {
		try(k, h, func(n *state) bool { n.ctl = controller{op: opDrain, node: h, pc: pc}; return true })
	}
	if s.rec.inCache && !s.rec.claim {
		begin(drainBegins, drainClaim)
	}
	if s.rec.inCache && s.rec.claim && m.real.drained(s.rec, m.report(s, h)) {
		begin(drainSettles, drainRecord)
	}
	if s.rec.claim && (m.real.mayEnd(s.rec) || !m.on(DrainedUntilNewCounts)) {
		if m.on(CacheBeforeRestore) {
			begin(drainEnds, restoreCache)
		} else {
			begin(drainEnds, restoreMode)
		}
	}
}

// drain makes one step of a drain, or of its end.
func (m *Model) drain(s *state) bool {
	c := &s.ctl
	n := &s.host[c.node]
	end := func() bool { s.ctl = controller{}; return true }
	switch c.pc {
	case drainClaim:
		c.pc = drainTurn
		return m.swap(s, func(r *record) { r.claim, r.repairs = true, false })
	case drainTurn:
		if !s.reaches(c.node) || !n.device || n.frozen || n.pending != 0 {
			return false // the kernel lets what is under way end first
		}
		n.through = true
		return end()
	case drainRecord:
		done := m.swap(s, func(r *record) { r.inCache = false })
		s.truthful()
		return end() && done
	case restoreCache:
		c.pc = restoreMode
		return m.swap(s, func(r *record) { r.inCache = true })
	case restoreMode:
		c.pc = restoreClaim
		if !s.reaches(c.node) {
			return false
		}
		if n.device {
			n.through = false
		}
		return true
	default:
		done := m.swap(s, func(r *record) { r.claim, r.repairs, r.inCache = false, false, true })
		return end() && done
	}
}

// discards: an operator looks at the record and orders the discard; it is carried out later.
func (m *Model) discards(s *state, try func(kind, uint8, func(*state) bool)) {
	if s.order == 0 && s.gone == 0 && s.rec.inCache {
		try(discardOrdered, 0, func(n *state) bool { n.order, n.ordered = n.rec.epoch+1, n.acked; return true })
	}
	if s.order == 0 {
		return
	}
	try(discardBegins, 0, func(n *state) bool {
		epoch, seen := n.order-1, m.reports(n)
		if !m.on(DiscardOfThatEpoch) {
			epoch = n.rec.epoch
		}
		if !m.on(DiscardOutOfReach) {
			for h := range seen {
				seen[h] = report{silent: true}
			}
		}
		lost, ok := m.real.discard(n.rec, epoch, seen)
		if !ok {
			return false
		}
		if n.order-1 != n.rec.epoch && n.acked > n.ordered {
			n.breaks(4, whyLaterDiscarded)
		}
		if n.ceph.value < n.acked && n.withinReach() {
			n.breaks(4, whyReachableDiscarded)
		}
		n.ctl = controller{op: opDiscard, lost: lost, pc: unpublishList}
		if !m.on(DiscardFences) {
			n.ctl.pc = discardRecord
		}
		return true
	})
}

// discarded is no write; it says that there was a discard.
const discarded = 7

// withinReach reports whether a host that answers has a current copy of what was acknowledged.
func (s *state) withinReach() bool {
	for i := range s.host {
		h, n := uint8(i), &s.host[i]
		counted := s.rec.replicas.has(h) && !s.rec.outdated.has(h)
		if s.reaches(h) && n.laid && !n.inconsistent && !n.diskless && n.dirty >= s.acked && counted {
			return true
		}
	}
	return false
}

// discard records the discard. What only caches had is given up, and must not be seen again.
func (m *Model) discard(s *state) bool {
	done := m.swap(s, func(r *record) {
		r.attached, r.client, r.claim, r.flush, r.inCache = nobody, 0, false, false, false
		r.discarded = r.epoch
		if m.on(DiscardOutdatesAll) {
			r.outdated = r.replicas
		}
	})
	if done {
		for value := s.ceph.value + 1; value <= s.last; value++ {
			s.gone = s.gone.with(value)
		}
		s.gone = s.gone.with(discarded)
		s.acked, s.order, s.ordered = s.ceph.value, 0, 0
	}
	s.ctl = controller{}
	return done
}
