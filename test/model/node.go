package model

// node is what csi-node and escached do on a host that is up.
func (m *Model) node(s *state, h uint8, out emit) {
	at := &s.host[h]
	try := func(k kind, act func(n *state) bool) {
		n := *s
		if act(&n) {
			out(move{k, h}, &n)
		}
	}
	if at.early {
		return // csi-node waits for escached
	}
	m.stage(s, h, try)
	if at.device && !at.unused && at.primary && !at.frozen && at.pending == 0 && at.back == 0 {
		try(unstage, func(n *state) bool {
			if cache := n.cacheOf(h); cache == nil || cache.dirty != 0 {
				if cache == nil {
					return false
				}
				if m.on(StopOnlyClean) {
					return false
				}
				n.breaks(4, whyStoppedDirty)
			}
			n.unmapAndDemote(h)
			n.host[h].restore, n.host[h].unread = restoreIdle, false
			return true
		})
	}
	if at.device && at.stage == stageIdle && at.control && s.rec.attached == h && s.rec.epoch == at.tag && s.rec.client != at.client {
		try(watchSeesClient, func(n *state) bool {
			n.rec.client = at.client
			n.wrote()
			return true
		})
	}
	m.gives(s, h, try)
	m.count(s, h, try)
	m.countInstead(s, h, try)
	m.permits(s, h, try)
	m.disksBack(s, h, try)
	m.booted(s, h, try)
}

// stage is NodeStage. What fails is undone at once, and may begin again.
func (m *Model) stage(s *state, h uint8, try func(kind, func(*state) bool)) { //nolint:cyclop // a list of moves
	at := &s.host[h]
	switch at.stage {
	case stageIdle:
		if at.given == 0 || !at.control || m.leaving(s, h) {
			return
		}
		if at.unused || m.has(Living) && at.device && at.tag < at.given || (!at.device && !at.primary) {
			try(stageBegins, func(n *state) bool {
				if !m.mayStage(n, h, at.given) {
					return false
				}
				n.host[h].stage, n.host[h].epoch, n.host[h].writes, n.host[h].alike = stageRead, at.given, n.rec.inCache, n.rec.uncached
				return true
			})
		}
	case stageRead:
		try(stageConnects, func(n *state) bool {
			switch {
			case n.host[h].device && n.host[h].epoch >= n.host[h].tag && m.dropFenced(n, h):
				n.endStage(h) // and begins again
			case n.host[h].device && n.host[h].epoch >= n.host[h].tag:
				n.host[h].tag, n.host[h].stage = n.host[h].epoch, stagePromoted // the device is there already
			case !n.host[h].device && m.compared(n, h) && m.stageConnect(n, h):
				n.host[h].stage = stageMapped
				if n.host[h].plain {
					n.host[h].stage = stagePromoted // there is nothing to promote
				}
			default:
				n.endStage(h)
			}
			return true
		})
	case stageMapped:
		try(stagePromotes, func(n *state) bool {
			if m.promote(n, h) {
				n.host[h].stage = stagePromoted
			} else {
				n.unmapAndDemote(h)
				n.endStage(h)
			}
			return true
		})
	case stagePromoted:
		try(stageUses, func(n *state) bool {
			if !m.stageUse(n, h) {
				n.unmapAndDemote(h)
			}
			n.endStage(h)
			return true
		})
	}
}

func (s *state) endStage(h uint8) {
	n := &s.host[h]
	n.stage, n.epoch, n.writes, n.alike = stageIdle, 0, false, false
}

// count takes a peer that is current again off the outdated. The record is read first and the
// peer's state after it.
func (m *Model) count(s *state, h uint8, try func(kind, func(*state) bool)) { //nolint:cyclop // a list of moves
	at := &s.host[h]
	if !at.primary || at.peer == nobody || !at.control {
		return
	}
	may := func(n *state) bool {
		r := &n.rec
		return r.attached == h && r.epoch == n.host[h].tag && !r.outdated.has(h) && r.outdated.has(at.peer)
	}
	looks := func(n *state) bool {
		return (n.connected(h) && n.host[at.peer].upToDate && !n.host[at.peer].syncing && !at.diskless) || !m.on(ResyncBeforeCounted)
	}
	if m.has(Permits) {
		looks = func(n *state) bool { return m.current(n, h) || !m.on(ResyncBeforeCounted) }
	}
	first, second := may, looks
	if !m.on(RecordReadBeforePeer) {
		first, second = looks, may
	}
	switch at.restore {
	case restoreIdle:
		if !at.device || !s.rec.outdated.has(at.peer) {
			return
		}
		try(restoreBegins, func(n *state) bool {
			n.host[h].restore, n.host[h].unread = restoreFirst, false
			return first(n)
		})
	case restoreFirst:
		if m.has(Permits) {
			// The two halves of the status, one after the other.
			half := func(n *state) bool { return m.countsPermit(n, h) }
			if !m.on(PermitReadBeforeLink) {
				half = second
			}
			try(restoreReads, func(n *state) bool { n.host[h].restore = restoreHalf; return half(n) })
			return
		}
		try(restoreLooks, func(n *state) bool {
			if !m.on(RecordReadBeforePeer) {
				n.host[h].unread = false // it is read only now
			}
			n.host[h].restore = restoreBoth
			if !second(n) {
				n.host[h].restore, n.host[h].unread = restoreIdle, false
			}
			return true
		})
	case restoreHalf:
		half := second
		if !m.on(PermitReadBeforeLink) {
			half = func(n *state) bool { return m.countsPermit(n, h) }
		}
		try(restoreLooks, func(n *state) bool {
			n.host[h].restore = restoreBoth
			if !half(n) {
				n.host[h].restore, n.host[h].unread = restoreIdle, false
			}
			return true
		})
	case restoreBoth:
		try(restoreWrites, func(n *state) bool {
			swap := !n.host[h].unread || !m.on(CompareAndSwap)
			n.host[h].restore, n.host[h].unread = restoreIdle, false
			if swap {
				n.rec.outdated = n.rec.outdated.without(at.peer)
				n.wrote()
				n.countedAgain(at.peer)
			}
			return true
		})
	}
}

// countedAgain looks at a copy that counts from now on. An empty one can harm nobody.
func (s *state) countedAgain(h uint8) {
	usable := s.host[h].current != 0 && !s.knowsFailed(h)
	if usable && s.rec.inCache && s.ceph.value < s.acked && s.host[h].dirty < s.acked {
		s.breaks(2, whyCounted)
	}
}
