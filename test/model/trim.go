package model

import "github.com/escache/escache-csi/internal/authority"

// A trim mounts the filesystem on the image, so it writes there: it is modelled as a user of a device without a cache.
// Whatever it writes, no copy of the cache may be used that does not know of it, and no other host may write beside it.

// trims begins the trim of a volume that nobody has, or goes on with one.
func (m *Model) trims(s *state, try func(kind, uint8, func(*state) bool)) {
	switch {
	case !m.has(Trimming):
		return
	case s.rec.flush && s.rec.uncached:
		try(trimGoesOn, s.rec.attached, func(n *state) bool {
			n.ctl = controller{op: opFlush, node: n.rec.attached, outside: true, pc: trimConnect}
			return true
		})
		return
	case s.rec.attached != nobody || s.rec.epoch >= m.Bounds.Epochs || m.overruled(s):
		return
	}
	for h := range uint8(hosts) {
		if s.likeAnother(h) {
			continue
		}
		try(trimBegins, h, func(n *state) bool {
			if !m.plannedTrim(n, h) {
				return false
			}
			n.contradicted(true, h)
			n.ctl = controller{op: opFlush, node: h, outside: true, pc: trimAttach}
			if from, forced := m.real.takenFrom(n.rec); forced {
				n.ctl.pc, n.ctl.lost = unpublishList, from
			}
			return true
		})
	}
}

// plannedTrim asks whether a host may have the volume to trim it, and whether the hosts object.
func (m *Model) plannedTrim(s *state, h uint8) bool {
	seen := s.rec
	if !m.on(TrimOnlyFromCeph) {
		seen.inCache = false
	}
	plan, err := authority.AttachToTrim(seen.volume(), m.real.group, names[h])
	if err != nil {
		return false
	}
	_, ok := m.real.confirm(seen, h, plan, m.reports(s))
	return ok
}

// attachToTrim records that the host has the volume without a cache. One write says that, and that what all copies
// hold is old.
func (m *Model) attachToTrim(s *state) bool {
	s.ctl.pc = trimConnect
	done := m.swap(s, func(r *record) {
		r.attached, r.client, r.fencedNow, r.comingNow, r.flush, r.claim, r.uncached = s.ctl.node, 0, 0, 0, true, false, true
		r.epoch++
		if r.inCache = false; m.on(TrimOutdatesAll) {
			r.outdated = r.replicas
		}
	})
	s.truthful()
	return done
}

// connectToTrim is dev_connect without a cache, asked for by the controller itself. Its host mounts the device.
func (m *Model) connectToTrim(s *state, h uint8) bool {
	n := &s.host[h]
	if n.laid || n.stage != stageIdle || n.tag > s.rec.epoch || m.overruled(s) {
		return false
	}
	m.note(s)
	if !n.plain && !m.mapImage(s, h) {
		return false
	}
	n.plain, n.primary, n.tag = true, true, s.rec.epoch
	n.device, n.unused, n.through = true, false, true
	m.uses(s, s.rec.epoch)
	if s.visible(h) < s.acked {
		s.breaks(3, whyStaleRead)
	}
	return true
}

// advanceTrim makes one step of a trim. What a host could not connect, it is told to stop all the same.
func (m *Model) advanceTrim(s *state) bool {
	c := &s.ctl
	n := &s.host[c.node]
	switch c.pc {
	case trimAttach:
		return m.attachToTrim(s)
	case trimConnect:
		c.pc = trimStop
		if s.reaches(c.node) {
			m.connectToTrim(s, c.node)
		}
		return true
	default:
		c.pc = flushEnd
		if s.reaches(c.node) && n.plain && n.pending == 0 && n.stage == stageIdle {
			s.unmapAndDemote(c.node)
		}
		return true
	}
}

// beingTrimmed is a clean volume that was used in its group, and that n3 has to trim it.
func (m *Model) beingTrimmed() state {
	s := usedBefore()
	s.rec.epoch, s.rec.attached, s.rec.flush, s.rec.uncached = 2, 2, true, true
	if m.on(TrimOutdatesAll) {
		s.rec.outdated = s.rec.replicas
	}
	s.ceph.lock, s.noted = 1, 0
	if m.has(SetBack) {
		s.noted, s.used = 2, 2
	}
	n := &s.host[2]
	n.plain, n.primary, n.device, n.through, n.client, n.tag = true, true, true, true, 1, 2
	return s
}
