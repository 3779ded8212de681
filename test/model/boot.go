package model

// onlyConsistent reports whether a copy does not know if it is current: its host was booted, or its disk worked
// again, and it has had no peer since.
func (n *host) onlyConsistent() bool {
	return n.laid && n.current != 0 && !n.upToDate && !n.inconsistent && !n.syncing && !n.outdated && !n.diskless
}

// turnsAway reports whether a Primary drops the link again at once. What was under way when its peer was lost is not
// sent again to a peer that was booted meanwhile. The Primary completes those writes, which only it may have, and
// begins a new generation. It stays frozen. The peer has seen the link, and takes itself for current.
func (s *state) turnsAway(h, to uint8) bool {
	n, peer := &s.host[h], &s.host[to]
	if !n.primary || !n.frozen || n.diskless || n.current != peer.current || !peer.onlyConsistent() {
		return false
	}
	peer.upToDate = true
	if n.pending != 0 {
		lacks := n.peer
		if n.onlyPeer {
			lacks = nobody
		}
		value := n.pending
		n.dirty, n.pending, n.onlyPeer = value, 0, false
		s.acknowledge(h, value, lacks)
	}
	s.leaveBehind(h)
	return true
}

// turnedAway reports whether one of two hosts turns the other away.
func (s *state) turnedAway(a, b uint8) bool { return s.turnsAway(a, b) || s.turnsAway(b, a) }

// What has to be done before a copy that does not know whether it is current is connected.
const (
	joinAtOnce uint8 = iota
	joinOnRecord
	joinLater
)

// joins is what escached finds of such a copy. It needs an answer from the arbiter. A record that was set back says
// nothing of the copy. Who was given up by force may live, and be frozen. A host that is attached and has no client on record
// is about to use the volume, or cannot: it is not known whether it has to lose this copy.
func (m *Model) joins(s *state, h uint8) uint8 {
	n, r := &s.host[h], &s.rec
	switch {
	case !m.on(BootedOnRecordFirst) || !n.onlyConsistent() || n.primary:
		return joinAtOnce
	case !n.control || n.early:
		return joinLater
	case r.epoch < n.tag:
		return joinAtOnce
	case m.on(BootedWaitsForFenced) && (r.fenced[n.peer] != 0 || r.coming.has(n.peer)) && !r.outdated.has(h):
		return joinLater
	case r.attached != n.peer || r.outdated.has(n.peer):
		return joinAtOnce
	case m.on(BootedWaitsForUser) && r.client == 0 && !r.outdated.has(h):
		return joinLater
	}
	return joinOnRecord
}

// mayConnect reports whether escached lets a copy connect.
func (m *Model) mayConnect(s *state, h uint8) bool {
	how := m.joins(s, h)
	return how == joinAtOnce || how == joinOnRecord && s.rec.outdated.has(h)
}

// connects is how two hosts connect their copies. Before it, a copy that was booted is put on record also if it is there.
func (m *Model) connects(s *state, a, b uint8) {
	for _, h := range []uint8{a, b} {
		if m.on(BootedAlwaysWrites) && m.joins(s, h) == joinOnRecord {
			m.writeOutdated(s, h)
		}
	}
	s.join(a, b)
}

// booted puts such a copy on record, if its peer waits for the link.
func (m *Model) booted(s *state, h uint8, try func(kind, func(*state) bool)) {
	n := &s.host[h]
	if n.peer == nobody || !n.laid || s.rec.outdated.has(h) || m.joins(s, h) != joinOnRecord ||
		m.on(PeerWaitsForBooted) && !m.waitsForLink(s, h) {
		return
	}
	try(outdateBooted, func(n *state) bool {
		answer := m.mayBeOutdated(n, h, true)
		if answer.ok {
			m.writeOutdated(n, h)
		}
		return answer.ok
	})
}

// waitsForLink reports whether the peer takes a link, as soon as this host makes it.
func (m *Model) waitsForLink(s *state, h uint8) bool {
	to := s.host[h].peer
	peer := &s.host[to]
	return peer.up && peer.laid && !s.cut.has(pair(h, to)) && m.mayConnect(s, to)
}
