package model

import (
	"slices"

	"github.com/escache/escache-csi/internal/authority"
)

// flushFirst begins the write-back that an attach needs first: to a node without a current copy, of
// a volume that may be dirty.
func (m *Model) flushFirst(s *state, h uint8, try func(kind, uint8, func(*state) bool)) {
	if s.rec.attached != nobody && !s.rec.flush {
		return
	}
	plan, ok := m.planned(s, s.rec, h)
	if !ok || len(plan.FlushFirst) == 0 {
		return
	}
	var current set
	for i := range names {
		if slices.Contains(plan.FlushFirst, names[i]) {
			current = current.with(uint8(i))
		}
	}
	m.writesBack(s, controllerFlushes, current, try)
}

// flushDetached is the write-back of a volume that no pod has, and that no pod waits for: the controller
// begins it by itself, or somebody asks for it.
func (m *Model) flushDetached(s *state, try func(kind, uint8, func(*state) bool)) {
	if m.has(Detached) && (s.rec.flush || s.rec.attached == nobody && s.rec.inCache) {
		m.writesBack(s, flushBegins, s.rec.replicas&^s.rec.outdated, try) // as authority.Current has it
	}
}

// writesBack begins a write-back by one of the nodes with a current copy, or goes on with what was begun. The
// image's metadata is read before: the write-back gets an epoch of its own, and nothing is behind then.
func (m *Model) writesBack(s *state, k kind, current set, try func(kind, uint8, func(*state) bool)) {
	if m.overruled(s) {
		return
	}
	if s.rec.flush {
		try(k, s.rec.attached, func(n *state) bool {
			n.ctl = controller{op: opFlush, node: s.rec.attached, pc: m.flushFrom()}
			if n.rec.uncached {
				n.ctl.outside, n.ctl.pc = true, trimStop // Ceph has everything
			}
			return true
		})
		return
	}
	if s.rec.epoch >= m.Bounds.Epochs {
		return
	}
	seen := m.reports(s)
	for i := range seen {
		if seen[i].epoch > s.rec.epoch && !m.on(NoLaterKnown) {
			seen[i] = report{silent: true}
		}
	}
	m.real.flushers(s.rec, current, seen).each(func(at uint8) {
		try(k, at, func(n *state) bool {
			n.contradicted(true, at)
			n.ctl = controller{op: opFlush, node: at, pc: flushAttach}
			if from, forced := m.real.takenFrom(n.rec); forced {
				n.ctl.pc, n.ctl.lost = unpublishList, from
			}
			return true
		})
	})
}

// stepFlush makes one step of a write-back.
func (m *Model) stepFlush(s *state, try func(kind, uint8, func(*state) bool)) {
	c, at := s.ctl, &s.host[s.ctl.node]
	if c.pc == flushStop && at.up && at.device && (at.dirty != 0 || at.back != 0) {
		return // it is being written back
	}
	if c.pc == flushEnd {
		try(controllerGivesUp, c.node, func(n *state) bool { return m.endFlush(n, true) })
		try(controllerStep, c.pc, func(n *state) bool { return m.endFlush(n, false) })
		return
	}
	try(controllerStep, c.pc, func(n *state) bool {
		if !m.advanceFlush(n) {
			n.ctl = controller{}
		}
		return true
	})
}

func (m *Model) advanceFlush(s *state) bool {
	c := &s.ctl
	n := &s.host[c.node]
	switch c.pc {
	case trimAttach, trimConnect, trimStop:
		return m.advanceTrim(s)
	case flushAttach:
		c.pc = m.flushFrom()
		return m.swap(s, func(r *record) {
			r.attached, r.client, r.fencedNow, r.comingNow, r.flush, r.began, r.claim = s.ctl.node, 0, 0, 0, true, 0, false
			r.epoch++
		})
	case flushAbandon:
		c.pc = flushConnect
		return m.othersGiveUp(s, c.node)
	case flushConnect:
		if n.stage != stageIdle {
			return false // busy
		}
		c.pc = flushStop
		if !s.reaches(c.node) || !m.connectToFlush(s, c.node) {
			c.pc = flushEnd
		}
		return true
	default:
		c.pc = flushEnd
		if s.reaches(c.node) && n.device && n.unused && !n.frozen && n.stage == stageIdle {
			s.unmapAndDemote(c.node)
			c.flushed = true
		}
		return true
	}
}

// flushFrom is where a write-back begins once it is on record.
func (m *Model) flushFrom() uint8 {
	if m.has(Living) {
		return flushAbandon
	}
	return flushConnect
}

// connectToFlush is dev_connect, asked for by the controller itself. Nobody opens the device.
func (m *Model) connectToFlush(s *state, h uint8) bool {
	n := &s.host[h]
	if !n.laid || n.tag > s.rec.epoch || m.overruled(s) {
		return false
	}
	m.note(s)
	n.tag = s.rec.epoch
	if n.device && !m.dropFenced(s, h) {
		return n.unused
	}
	if !s.promotable(h) {
		return false
	}
	m.dropPermit(s, h)
	if !m.mapImage(s, h) {
		return false
	}
	if !m.promote(s, h) {
		s.unmapAndDemote(h)
		return false
	}
	n.device, n.unused = true, true
	return true
}

// beginGiveBack is ControllerUnpublish where the pod has not used what it got while it was being written back.
func (m *Model) beginGiveBack(n *state, h uint8) bool {
	if m.overruled(n) || n.rec.epoch >= m.Bounds.Epochs {
		return false
	}
	for _, seen := range m.reports(n) {
		if seen.epoch > n.rec.epoch && m.on(NoLaterKnown) {
			return false
		}
	}
	n.ctl = controller{op: opUnpublish, node: h, pc: unpublishBack}
	return true
}

// giveBack makes the attachment the controller's own again.
func (m *Model) giveBack(s *state) bool {
	return m.swap(s, func(r *record) {
		r.fencedNow, r.comingNow, r.flush, r.began, r.claim = 0, 0, true, 0, false
		r.epoch++
	})
}

// endFlush reads the record again and takes the volume from the node that has written back, or could
// not.
func (m *Model) endFlush(s *state, dead bool) bool {
	h := s.ctl.node
	if s.rec.attached != h || !s.rec.flush {
		s.ctl = controller{}
		return true // overtaken
	}
	plan, ok := m.real.endFlush(s.rec, s.ctl.flushed, m.report(s, h), dead)
	if !ok || plan.Gone {
		s.ctl = controller{}
		return !dead
	}
	s.ctl = controller{op: opUnpublish, node: h, lost: h, fence: plan.Fence, comes: m.comes(plan), clean: plan.Clean, pc: unpublishDetach}
	if plan.Fence {
		s.ctl.pc = unpublishList
	}
	return true
}

// flushQuestion is what flushers asks.
type flushQuestion struct {
	rec     record
	current set
	seen    [hosts]report
}

// flushers asks which of the nodes with a current copy can write it back.
func (r *rules) flushers(rec record, current set, seen [hosts]report) set {
	q := flushQuestion{rec, current, seen}
	able, known := r.flushed[q]
	if known {
		return able
	}
	reports := map[string]authority.Report{}
	v := rec.volume()
	rec.replicas.each(func(h uint8) { reports[names[h]] = seen[h].heard(v, names[h]) })
	var from []string
	current.each(func(h uint8) { from = append(from, names[h]) })
	list, err := authority.Flushers(v, from, reports)
	for _, name := range list {
		able = able.with(uint8(slices.Index(names[:], name)))
	}
	if err != nil {
		able = 0
	}
	r.flushed[q] = able
	return able
}
