package model

// cacheOf returns the host on whose disk the cache of this host is: its own, or the peer's if its own
// has failed. It is nil if neither can be used.
func (s *state) cacheOf(h uint8) *host {
	n := &s.host[h]
	if !n.diskless {
		return n
	}
	if !s.connected(h) {
		return nil
	}
	if peer := &s.host[n.peer]; !peer.diskless && !peer.syncing && !peer.inconsistent {
		return peer
	}
	return nil
}

// failing is the failure of a disk under a host that runs. After a reboot the disk works again, as it
// was.
//
// The second disk does not fail before the first is on record: then no copy is left.
func (m *Model) failing(s *state, h uint8, try func(kind, uint8, bool, func(*state))) {
	at := &s.host[h]
	if at.peer != nobody && s.host[at.peer].spoilt && (s.host[at.peer].telling || !s.rec.outdated.has(at.peer)) {
		return
	}
	if !at.up || !at.laid || at.current == 0 || at.diskless || at.inconsistent || at.syncing {
		return
	}
	fail := func(n *state, mark bool) {
		n.host[h].telling = m.on(FailedDiskReported) // DRBD waits for its handler on a Primary
		n.loseDisk(h, mark)
	}
	try(failDisk, h, true, func(n *state) { fail(n, m.on(FailedDiskMarked)) })
	if s.faults+2 <= m.Bounds.Faults {
		try(failBoth, h, true, func(n *state) { n.faults++; fail(n, false) })
	}
}

// loseDisk is what DRBD does when the disk fails, and the first that its handler does.
func (s *state) loseDisk(h uint8, mark bool) {
	n := &s.host[h]
	n.diskless, n.upToDate, n.marked, n.spoilt = true, false, n.marked || mark, true
	n.exposed, n.permit.unfrozen = 0, false // what the kernel was told goes with the disk
	if n.primary {
		n.exposed = n.current
	}
	if s.connected(h) {
		s.host[n.peer].syncing = false // its source is gone
	}
	if !n.primary || !n.telling {
		s.tellPeer(h)
	}
}

// tellPeer is when the peer hears that the disk has failed. A Primary sends nothing before its handler
// has ended.
func (s *state) tellPeer(h uint8) {
	if !s.connected(h) {
		return
	}
	n := &s.host[h]
	peer := &s.host[n.peer]
	s.newWithout(n.peer, h)
	n.writesAt(peer)
}

// writesAt: a Primary without a disk knows by its generation the copy that it writes to.
func (n *host) writesAt(peer *host) {
	if n.diskless && n.primary && !peer.diskless && !peer.inconsistent {
		n.exposed = peer.current
	}
}

// refilled: a copy whose disk had failed is not used, and not compared with another, before its peer
// fills it. The exception is the only current one.
func (m *Model) refilled(s *state, h uint8) bool {
	n := &s.host[h]
	return !n.marked || n.diskless || !m.on(FailedDiskRefilled)
}

// refill gives such a copy fresh metadata, once it is on record.
func (m *Model) refill(s *state, h uint8) bool {
	n := &s.host[h]
	answer := m.mayBeOutdated(s, h, false)
	switch {
	case answer.ok:
		m.writeOutdated(s, h)
		n.dirty, n.current, n.bitmap, n.wasPrimary, n.inconsistent, n.outdated = 0, 0, 0, false, false, false
	case !answer.last:
		return false
	}
	n.marked = false
	return true
}

// newWithout begins a new generation on a copy that goes on, with the link up, without the peer's disk.
func (s *state) newWithout(h, peer uint8) {
	n, p := &s.host[h], &s.host[peer]
	if n.diskless || !p.diskless || n.inconsistent || !n.primary && !p.primary || n.bitmap != 0 {
		return
	}
	n.bitmap = n.current
	n.current = 0
	n.current = s.newGeneration()
}

// accepts: a Primary without a disk takes a link only to the copy that it has written to.
func accepts(n, to *host) bool {
	return !n.diskless || !n.primary || (to.current == n.exposed && !to.inconsistent)
}

// knowsFailed: the host never uses this copy as current again, although the record counts it, or is
// about to put it on record.
func (s *state) knowsFailed(h uint8) bool {
	n := &s.host[h]
	return n.marked || (n.diskless && n.telling && !n.primary)
}

// failedDisk is what DRBD's handler and escached do about a disk that has failed.
func (m *Model) failedDisk(s *state, h uint8, try func(kind, uint8, func(*state) bool)) {
	at := &s.host[h]
	if at.telling && at.control {
		try(tellArbiter, h, func(n *state) bool {
			is := &n.host[h]
			answer := m.mayBeOutdated(n, h, false)
			switch {
			case answer.ok:
				is.telling = false
				m.writeOutdated(n, h)
				n.tellPeer(h)
			case is.primary && m.uncounted(n, h):
				return false // it asks again
			case is.primary:
				is.telling = false
				n.tellPeer(h)
			default:
				is.telling = false
				if n.connected(h) {
					n.disconnect(pair(h, is.peer))
				}
			}
			return true
		})
	}
	if at.telling && !at.primary && s.connected(h) {
		try(leavePeer, h, func(n *state) bool { n.disconnect(pair(h, at.peer)); return true })
	}
	if !m.refilled(s, h) && at.control && !at.primary {
		try(refillCopy, h, func(n *state) bool { return m.refill(n, h) })
	}
}

// mayBeOutdated asks whether a host whose disk has failed, or that was booted, may be put on record.
func (m *Model) mayBeOutdated(s *state, h uint8, booted bool) selfAnswer {
	n := &s.host[h]
	if n.peer == nobody {
		return selfAnswer{}
	}
	seen := s.rec
	if !m.on(LastCopyStays) {
		seen.outdated = seen.outdated.without(n.peer)
	}
	return m.real.mayBeOutdated(seen, h, n.peer, booted)
}

// uncounted: all that is written goes to the peer, and the record does not count it yet. The handler
// waits for csi-node, which writes the record at its next look.
func (m *Model) uncounted(s *state, h uint8) bool {
	n := &s.host[h]
	return m.on(WaitsForCsiNode) && n.diskless && s.cacheOf(h) != nil && s.rec.outdated.has(n.peer)
}

// onlyCurrent: the disk here has failed before. The copy counts only if the record says that there is
// no other.
func (m *Model) onlyCurrent(s *state, h uint8) bool {
	answer := m.mayBeOutdated(s, h, false)
	if answer.ok {
		m.writeOutdated(s, h)
	}
	return answer.last
}

// onPeerOnly: a Primary's disk has failed, and only its peer has all that was acknowledged, which the
// record does not count. While that host lives, it sees to it that the record does.
func (s *state) onPeerOnly() bool {
	for i := range s.host {
		n := &s.host[i]
		if !n.up || !n.diskless || !n.primary || n.peer == nobody {
			continue
		}
		peer := &s.host[n.peer]
		if peer.laid && !peer.inconsistent && peer.dirty >= s.acked && peer.current == n.exposed {
			return true
		}
	}
	return false
}

// writeOutdated puts a host on record as outdated. The record changes also if it is there already.
func (m *Model) writeOutdated(s *state, h uint8) {
	if m.on(GrantAlwaysWrites) || !s.rec.outdated.has(h) {
		s.wrote()
	}
	s.rec.outdated = s.rec.outdated.with(h)
}

// countInstead: csi-node sees that this host has no disk and lives on its peer's, and puts that on
// record in one write. Nothing can be acknowledged without the peer, so one look is enough.
func (m *Model) countInstead(s *state, h uint8, try func(kind, func(*state) bool)) {
	at := &s.host[h]
	r := &s.rec
	if !at.diskless || !at.primary || at.frozen || !at.control || s.cacheOf(h) == nil ||
		r.attached != h || r.epoch != at.tag || r.outdated.has(h) || !r.replicas.has(at.peer) || m.mayGoOn(s, h) {
		return
	}
	try(swapCounted, func(n *state) bool {
		n.rec.outdated = n.rec.outdated.with(h).without(at.peer)
		n.wrote()
		return true
	})
}
