package model

// isOutsider reports whether the host is not in the volume's group.
func (m *Model) isOutsider(h uint8) bool { return m.has(Outside) && h == outsider }

// publishOutside records that the host has the volume without a cache. One write says that, and that
// what all copies hold is old.
func (m *Model) publishOutside(s *state) bool {
	c := s.ctl
	done := c.held || m.swap(s, func(r *record) {
		r.attached, r.client, r.fencedNow, r.comingNow, r.flush, r.began, r.claim, r.uncached = c.node, 0, 0, 0, false, 0, false, true
		r.epoch++
		if r.inCache = false; m.on(OutsideOutdatesAll) {
			r.outdated = r.replicas
		}
	})
	if done {
		m.note(s)
		s.host[c.node].given = s.rec.epoch
	}
	s.truthful()
	s.ctl = controller{}
	return done
}

// mapPlain maps the image on a host without a replica. Its escached keeps the epoch as long as the map.
func (m *Model) mapPlain(s *state, h uint8) bool {
	n := &s.host[h]
	if n.laid || n.epoch < n.tag || !m.mapImage(s, h) {
		return false
	}
	n.plain, n.primary, n.tag = true, true, n.epoch
	return true
}

func (n *host) unmapPlain() {
	if n.plain {
		n.plain, n.primary, n.tag = false, false, 0
	}
}

// clean is when Ceph has what a copy of the cache holds. dm-writecache keeps it, and shows it to readers.
func (s *state) clean(n *host) {
	if s.keeps {
		n.kept = n.dirty
	}
	n.dirty = 0
}

// wroteThrough: a cache that writes through shows what was written, on both copies.
func (s *state) wroteThrough(h, value uint8) {
	n := &s.host[h]
	if !s.keeps || n.plain {
		return
	}
	n.kept = value
	if s.connected(h) {
		s.host[n.peer].kept = value
	}
}

// usedBefore is a clean volume that was used in its group, and whose caches show what was written then.
func usedBefore() state {
	s := fresh()
	s.keeps, s.rec.epoch = true, 1
	s.acked, s.last, s.ceph.value = 1, 1, 1
	for i := range uint8(2) {
		n := &s.host[i]
		n.laid, n.peer, n.current, n.upToDate, n.tag, n.kept = true, 1-i, 1, true, 1, 1
	}
	s.conn = s.conn.with(pair(0, 1))
	return s
}

// usedOutside is that volume in use outside its group.
func (m *Model) usedOutside() state {
	s := usedBefore()
	s.rec.attached, s.rec.uncached, s.rec.client = outsider, true, 1
	if m.on(OutsideOutdatesAll) {
		s.rec.outdated = s.rec.replicas
	}
	s.ceph.lock = 1
	n := &s.host[outsider]
	n.plain, n.primary, n.device, n.through, n.client, n.given, n.tag = true, true, true, true, 1, 1, 1
	for i := range uint8(2) {
		s.host[i].tag = 0 // of the attachment before
	}
	return s
}

// dirtyBefore is a volume that nobody has, with what was acknowledged on both its copies only.
func dirtyBefore() state {
	s := usedBefore()
	s.rec.inCache, s.acked, s.last = true, 2, 2
	for i := range uint8(2) {
		s.host[i].dirty = 2
	}
	return s
}
