package model

import (
	"slices"

	"github.com/escache/escache-csi/internal/authority"
)

// control is what the controller does. It runs one operation at a time on a volume.
func (m *Model) control(s *state, out emit) {
	try := func(k kind, who uint8, act func(n *state) bool) {
		n := *s
		if act(&n) {
			out(move{k, who}, &n)
		}
	}
	m.unfences(s, try)
	m.forgets(s, try)
	if s.ctl.op != opNone {
		m.step(s, try)
		return
	}
	for h := range uint8(hosts) {
		if h > 1 && !m.isOutsider(h) && (!m.has(Spares) || s.likeAnother(h)) {
			continue
		}
		try(publishBegins, h, func(n *state) bool { return m.beginPublish(n, h) })
		m.flushFirst(s, h, try)
	}
	if h := s.rec.attached; h != nobody {
		try(detachBegins, h, func(n *state) bool { return m.beginUnpublish(n, h, false) })
		try(giveUpBegins, h, func(n *state) bool { return m.beginUnpublish(n, h, true) })
	}
	m.flushDetached(s, try)
	m.trims(s, try)
	try(settleBegins, 0, m.beginSettle)
	m.fencesLate(s, try)
	m.keepsFenced(s, try)
	m.orders(s, try)
	m.repairs(s, try)
	m.cleanUps(s, try)
	m.transfers(s, try)
	if m.has(Resizing) && !s.rec.wants {
		try(resizeWanted, 0, func(n *state) bool {
			n.rec.wants = true
			n.wrote()
			return true
		})
	}
}

func (m *Model) beginPublish(n *state, h uint8) bool {
	if n.rec.attached == h && n.host[h].given == n.rec.epoch && !n.rec.claim {
		return false // published already
	}
	seen := n.rec
	if !m.on(OutdatedRefused) {
		seen.outdated = 0
	}
	if !m.on(AuthorityReadByAttach) || m.isOutsider(h) && !m.on(OutsideOnlyFromCeph) {
		seen.inCache = false
	}
	plan, ok := m.planned(n, seen, h)
	if ok && plan.Drained {
		n.host[h].given = n.rec.epoch
		return true
	}
	n.contradicted(ok && !plan.Held, h)
	if !ok || len(plan.FlushFirst) > 0 || (!plan.Held && n.rec.epoch >= m.Bounds.Epochs) {
		return false
	}
	c := controller{op: opPublish, node: h, held: plan.Held, over: plan.TakeOver, outside: plan.Uncached, pc: publishAttach}
	if from, forced := m.real.takenFrom(n.rec); forced && !plan.Held {
		c.pc, c.lost = unpublishList, from
	}
	for i := range names {
		if slices.Contains(plan.Renew, names[i]) {
			c.renew = c.renew.with(uint8(i))
		}
	}
	if plan.Relay {
		// Which pair it becomes is chosen later. All of it is new, so nothing has to be filled.
		c.move, c.renew = n.rec.replicas, 0
	}
	n.ctl = c
	return true
}

// planned is the attachment that the record allows, and neither the image nor the hosts have objected to.
func (m *Model) planned(s *state, rec record, h uint8) (authority.Attachment, bool) {
	if m.overruled(s) {
		return authority.Attachment{}, false
	}
	plan, ok := m.real.attach(rec, h)
	if !ok || plan.Held || len(plan.FlushFirst) > 0 {
		return plan, ok
	}
	reports := m.reports(s)
	if !m.on(EpochsReported) {
		for i := range reports {
			reports[i].epoch = min(reports[i].epoch, rec.epoch)
		}
	}
	confirmed, ok := m.real.confirm(rec, h, plan, reports)
	if !m.on(OwnCopyConfirmed) && !reports[h].silent {
		return plan, true
	}
	return confirmed, ok
}

func (m *Model) reports(s *state) [hosts]report {
	var seen [hosts]report
	for h := range uint8(hosts) {
		seen[h] = m.report(s, h)
	}
	return seen
}

func (m *Model) beginUnpublish(n *state, h uint8, dead bool) bool {
	holder := m.report(n, h)
	if n.rec.uncached && !m.on(OutsideMachineKnown) {
		holder.twin = false
	}
	plan, ok := m.real.detach(n.rec, h, holder, dead)
	if !ok || plan.Gone || !dead && !m.unstaged(&n.host[h]) {
		return false
	}
	if plan.GiveBack {
		return m.beginGiveBack(n, h)
	}
	c := controller{op: opUnpublish, node: h, lost: h, fence: plan.Fence, comes: m.comes(plan), clean: plan.Clean, pc: unpublishDetach}
	c.given = dead && m.has(Late)
	if !m.on(CleanReadBeforeAuthorityCeph) {
		c.clean = true
	}
	if plan.Fence && m.on(FenceBeforeDetach) {
		c.pc = unpublishList
	}
	n.ctl = c
	return true
}

func (m *Model) beginSettle(n *state) bool {
	if !n.rec.inCache || n.rec.attached != nobody {
		return false
	}
	seen := m.reports(n)
	for h := range uint8(hosts) {
		if !m.on(SettledAsksEveryReplica) && seen[h].silent {
			seen[h] = report{} // taken for a standby
		}
	}
	n.ctl = controller{op: opSettle, pc: settleWrite}
	return m.real.isSettled(n.rec, seen)
}

// step makes one step of the running operation.
func (m *Model) step(s *state, try func(kind, uint8, func(*state) bool)) {
	c := s.ctl
	if c.op == opPublish && c.pc == publishDrop && (c.move != 0 || m.partnerSilent(s)) {
		// The node's new partner is any other host that answers.
		for h := range uint8(hosts) {
			if h != c.node && !m.isOutsider(h) && !s.likeAnother(h) {
				try(controllerMoves, pair(c.node, h), func(n *state) bool {
					n.ctl.move = set(0).with(c.node).with(h)
					m.dropOld(n)
					return true
				})
			}
		}
		m.dropsOne(s, try)
		return
	}
	if c.pc == publishAuthority && m.has(Draining) && !m.has(SetBack) && !s.rec.inCache && !c.outside {
		try(publishesDrained, c.node, m.publishDrained)
	}
	if c.op == opTransfer && c.pc == transferClear {
		m.dropsOne(s, try)
	}
	if c.op == opFlush && c.pc >= flushAttach {
		m.stepFlush(s, try)
		return
	}
	try(controllerStep, c.pc, func(n *state) bool {
		if !m.advance(n) {
			n.ctl = controller{} // the operation fails, and is repeated or not
		}
		return true
	})
}

// partnerSilent: a clean volume does without a partner that does not answer; another host stands in.
func (m *Model) partnerSilent(s *state) bool {
	silent := false
	s.rec.replicas.each(func(h uint8) { silent = silent || (h != s.ctl.node && !s.reaches(h)) })
	return silent
}

// swap is a write of the record: it fails if somebody else has written it since the operation read
// it.
func (m *Model) swap(s *state, change func(r *record)) bool {
	if s.ctl.stale && m.on(CompareAndSwap) {
		return false
	}
	change(&s.rec)
	s.wrote()
	s.ctl.stale = false
	return true
}

// advance returns false when the operation fails.
func (m *Model) advance(s *state) bool {
	c := &s.ctl
	switch c.pc {
	case publishAttach:
		c.pc = c.abandoned()
		if m.has(Living) {
			c.pc = publishAbandon
		}
		if c.outside {
			return m.publishOutside(s)
		}
		if c.held {
			return true
		}
		node, relay := c.node, c.move != 0
		return m.swap(s, func(r *record) {
			if relay && !m.on(ResizedAfterDrop) {
				r.resize()
			}
			if r.began = 0; r.flush {
				r.began = r.epoch
			}
			r.attached, r.client, r.fencedNow, r.comingNow, r.flush, r.claim, r.uncached = node, 0, 0, 0, false, false, false
			r.epoch++
		})
	case publishDrop:
		c.pc = publishLay
		ok := true
		c.renew.each(func(h uint8) { ok = ok && s.reaches(h) && (!m.on(OldReplicasDropped) || m.drop(s, h, s.rec.given())) })
		return ok
	case publishAbandon:
		c.pc = c.abandoned()
		return m.othersGiveUp(s, c.node)
	case publishMove:
		c.pc = publishLay
		return m.swap(s, func(r *record) {
			r.replicas = s.ctl.move
			r.resize()
		})
	case publishLay:
		c.pc = publishAuthority
		return m.layAll(s)
	case publishAuthority:
		return m.publish(s)
	default:
		return m.advanceUnpublish(s)
	}
}

func (m *Model) advanceUnpublish(s *state) bool {
	c := &s.ctl
	switch c.pc {
	case unpublishList:
		var open set
		for i := range s.host {
			if s.host[i].client != 0 {
				open = open.with(s.host[i].client)
			}
		}
		if s.ceph.lock != 0 {
			open = open.with(s.ceph.lock)
		}
		c.clients = m.real.clients(s.rec, open)
		c.pc = unpublishRecord
		return true
	case unpublishRecord:
		return m.recordFence(s)
	case unpublishFence:
		c.clients, c.pc = 0, c.fenced()
		m.fence(s)
		return true
	case unpublishReplace:
		c.pc = c.fenced()
		m.fence(s)
		return true
	case drainClaim, drainTurn, drainRecord, restoreCache, restoreMode, restoreClaim:
		return m.drain(s)
	case discardRecord:
		return m.discard(s)
	case repairRecord, repairClear, repairMove, repairLay, repairPair:
		return m.repair(s)
	case transferPrepare, transferRecord, transferClear, transferCleared, transferPlace:
		return m.transfer(s)
	case unpublishBack:
		done := m.giveBack(s)
		s.ctl = controller{}
		return done
	case unpublishDetach:
		clean, coming := c.clean, s.comesLater([hosts + 1]set{})
		done := m.swap(s, func(r *record) {
			if coming {
				r.expect(s.ctl.lost)
			}
			r.attached, r.client, r.flush, r.began, r.claim, r.uncached = nobody, 0, false, 0, false, false
			r.inCache = r.inCache && !clean
		})
		s.truthful()
		s.ctl = controller{}
		return done
	default:
		done := m.swap(s, func(r *record) { r.inCache = false })
		s.truthful()
		s.ctl = controller{}
		return done
	}
}

// truthful checks a record that says that Ceph has everything.
func (s *state) truthful() {
	if !s.rec.inCache && s.ceph.value < s.acked {
		s.breaks(4, whyCleanWhileDirty)
	}
}
