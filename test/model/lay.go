package model

func (m *Model) layAll(s *state) bool {
	if found, done := m.missing(s); found || !done {
		s.ctl.pc = publishDrop
		return done
	}
	ok := true
	s.rec.replicas.each(func(h uint8) {
		var peer uint8
		s.rec.replicas.without(h).each(func(p uint8) { peer = p })
		switch {
		case s.reaches(h) && m.mayLay(s, h):
			ok = m.lay(s, h, peer) && ok
		case !s.ctl.over || h == s.ctl.node:
			ok = false
		}
	})
	return ok
}

// mayLay: a take-over does not lay the copy that it is to read from. A partner's that is missing is on
// record as outdated before it is laid.
func (m *Model) mayLay(s *state, h uint8) bool {
	if !s.ctl.over || s.host[h].laid {
		return true
	}
	if h == s.ctl.node {
		return !m.on(OwnCopyConfirmed)
	}
	return s.rec.outdated.has(h) || m.swap(s, func(r *record) { r.outdated = r.outdated.with(h) })
}

// unfilled are the copies that were laid again, and lack what the kept one has.
func (m *Model) unfilled(s *state) set {
	if !m.on(RenewedOutdated) {
		return 0
	}
	return m.real.unfilled(s.rec.replicas, s.ctl.renew, s.ctl.node)
}

// publishDrained is a publish of a volume that somebody wants to write through: its truth stays in Ceph.
func (m *Model) publishDrained(s *state) bool {
	node, unfilled := s.ctl.node, m.unfilled(s)
	if !m.swap(s, func(r *record) { r.claim, r.repairs, r.outdated = true, false, unfilled }) {
		return false
	}
	s.truthful()
	s.host[node].given = s.rec.epoch
	s.ctl = controller{}
	return true
}

func (m *Model) publish(s *state) bool {
	node, unfilled := s.ctl.node, m.unfilled(s)
	if !s.rec.inCache && !m.swap(s, func(r *record) { r.inCache, r.outdated = m.on(AuthorityCacheBeforeWriteBack), unfilled }) {
		return false
	}
	m.note(s)
	s.host[node].given = s.rec.epoch
	s.ctl = controller{}
	return true
}
