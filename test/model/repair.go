package model

// repairs are the replacements of a lost copy that the record allows, for whatever reason: a host that
// is silent, has left or came back empty, a disk that has failed, a link that stays down. The decision
// which of them it is (internal/controller/repair) is not needed here: it only makes repairs rarer.
func (m *Model) repairs(s *state, try func(kind, uint8, func(*state) bool)) {
	h := s.rec.attached
	if !m.has(Repairing) || h == nobody || s.rec.flush || !s.rec.replicas.has(h) {
		return
	}
	partner := nobody
	s.rec.replicas.without(h).each(func(p uint8) { partner = p })
	seen := s.rec
	if !m.on(LostOutdatedFirst) {
		seen.outdated = seen.outdated.with(partner)
	}
	if !m.real.substitutable(seen, partner) {
		m.copiesLeave(s, h, partner, try)
		return
	}
	for to := range uint8(hosts) {
		// In its old place a copy is laid again only if nothing is left of the old one.
		if to == h || s.likeAnother(to) || !s.reaches(to) || to == partner && s.host[to].laid {
			continue
		}
		try(repairBegins, to, func(n *state) bool {
			n.ctl = controller{op: opRepair, node: h, lost: partner, move: set(0).with(h).with(to), pc: repairRecord}
			return true
		})
	}
	if s.host[h].peer != partner || !s.host[partner].laid {
		try(repairGoesOn, partner, func(n *state) bool {
			n.ctl = controller{op: opRepair, node: h, lost: partner, move: n.rec.replicas, pc: repairLay}
			return true
		})
	}
}

// copiesLeave are the moves of a copy that counts to another host, as an evacuation wants them. They go on as
// repairs do.
func (m *Model) copiesLeave(s *state, h, from uint8, try func(kind, uint8, func(*state) bool)) {
	claimed := s.rec
	claimed.repairs = true // the repair claims it first, and says so here with its next write
	if !m.has(Repairing|Draining) || m.on(CopyLeavesOnlyFromCeph) && !m.real.mayLeave(claimed, from, m.report(s, h)) {
		return
	}
	for to := range uint8(hosts) {
		if to == h || to == from || s.likeAnother(to) || !s.reaches(to) {
			continue
		}
		try(copyLeaves, to, func(n *state) bool {
			n.ctl = controller{op: opRepair, node: h, lost: from, move: set(0).with(h).with(to), pc: repairRecord}
			return true
		})
	}
}

// repair makes one step of a repair.
func (m *Model) repair(s *state) bool {
	c := &s.ctl
	var to uint8
	c.move.without(c.node).each(func(p uint8) { to = p })
	switch c.pc {
	case repairRecord:
		c.pc = repairClear
		return m.swap(s, func(r *record) {
			if m.on(NewCopyOutdated) {
				r.outdated = r.outdated.with(to)
			}
			if !r.outdated.has(s.ctl.lost) { // it is moved
				r.outdated, r.repairs = r.outdated.with(s.ctl.lost), r.claim
			}
		})
	case repairClear:
		c.pc = repairMove
		return s.reaches(to) && m.drop(s, to, s.rec.epoch)
	case repairMove:
		c.pc = repairLay
		return m.swap(s, func(r *record) { r.replicas = s.ctl.move })
	case repairLay:
		c.pc = repairPair
		return s.reaches(to) && m.lay(s, to, c.node)
	default:
		done := m.repeer(s, c.node, to)
		s.ctl = controller{}
		return done
	}
}

// repeer gives a holder another partner. It leaves the old one first, for which it needs the arbiter's
// leave as if it had lost it.
func (m *Model) repeer(s *state, h, to uint8) bool {
	n := &s.host[h]
	if n.peer == to {
		return true
	}
	if !s.reaches(h) || !n.laid || !n.upToDate || n.diskless || n.inconsistent || n.frozen {
		return false
	}
	if s.connected(h) {
		s.disconnect(pair(h, n.peer))
		if n.primary {
			if !m.granted(s, h) {
				return true // it stays frozen, and connects again
			}
			s.goAlone(h)
		}
	}
	n.permit = permitted{late: n.permit.late} // it does not hold for the new partner
	s.split = s.split.without(pair(h, to))
	n.peer = to
	return true
}
