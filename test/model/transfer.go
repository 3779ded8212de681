package model

import "github.com/escache/escache-csi/internal/authority"

// transfers are moves of the volume to another group: to hosts that have nothing to do with its replicas. In
// the model any other pair is another group's.
func (m *Model) transfers(s *state, try func(kind, uint8, func(*state) bool)) {
	if !m.has(Moving) {
		return
	}
	if s.rec.moving != 0 {
		try(transferGoesOn, 0, func(n *state) bool {
			n.ctl = controller{op: opTransfer, node: nobody, lost: nobody, move: n.rec.moving, pc: transferClear}
			if n.rec.cleared {
				n.ctl.pc = transferPlace
			}
			return true
		})
		return
	}
	for p := range uint8(pairs) {
		low, high := hostsOf(p)
		move := set(0).with(low).with(high)
		if s.rec.replicas&move != 0 {
			continue
		}
		try(transferBegins, p, func(n *state) bool {
			n.ctl = controller{op: opTransfer, node: nobody, lost: nobody, move: move, pc: transferPrepare}
			return !m.on(MovedOnlyFromCeph) || m.real.movable(n.rec, m.reports(n))
		})
	}
}

// transfer makes one step of a move to another group.
func (m *Model) transfer(s *state) bool {
	c := &s.ctl
	switch c.pc {
	case transferPrepare:
		c.pc = transferRecord
		ok := true
		if m.on(LeftoversDropped) {
			c.move.each(func(h uint8) { ok = ok && s.reaches(h) && m.drop(s, h, s.rec.given()) })
		}
		return ok
	case transferRecord:
		c.pc = transferClear
		return m.swap(s, func(r *record) { r.moving = s.ctl.move })
	case transferClear:
		c.pc = transferCleared
		ok := true
		s.rec.replicas.each(func(h uint8) {
			if s.reaches(h) {
				ok = m.drop(s, h, s.rec.given()) && ok
			} else {
				s.stale[h] = s.rec.given() + 1
			}
		})
		if !ok { // it is called off
			return m.swap(s, func(r *record) { r.moving = 0 }) && false
		}
		return true
	case transferCleared:
		c.pc = transferPlace
		return m.swap(s, func(r *record) { r.cleared = true })
	default:
		if m.on(MovedOnlyFromCeph) && (s.rec.attached != nobody || s.rec.inCache) {
			return false
		}
		done := m.swap(s, func(r *record) { r.replicas, r.outdated, r.moving, r.cleared = r.moving, 0, 0, false })
		s.ctl = controller{}
		return done
	}
}

// movable asks whether a volume may leave its replicas for others on other hosts.
func (r *rules) movable(rec record, seen [hosts]report) bool {
	q := settledQuestion{rec, seen}
	answer, known := r.leaves[q]
	if !known {
		reports := map[string]authority.Report{}
		v := rec.volume()
		rec.replicas.each(func(h uint8) { reports[names[h]] = seen[h].heard(v, names[h]) })
		answer = authority.Movable(v, reports) == nil
		r.leaves[q] = answer
	}
	return answer
}
