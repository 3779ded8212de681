package model

import "github.com/escache/escache-csi/internal/authority"

// recordFence puts the clients on record that are about to be fenced.
func (m *Model) recordFence(s *state) bool {
	c := &s.ctl
	c.pc = unpublishFence
	found := c.clients
	whose := s.ownersOf(found, c.lost)
	coming := s.comesLater(whose)
	if found == 0 && !coming {
		if c.op != opUnpublish {
			c.pc = c.fenced()
		}
		return true
	}
	blocked := s.ceph.blocked
	return m.swap(s, func(r *record) {
		if coming {
			r.expect(s.ctl.lost)
		}
		for h := range whose {
			r.fenced[h] |= whose[h]
		}
		r.fencedNow |= found
		r.earlier |= found & blocked
	})
}

// fence puts the clients on the blocklist. Ceph does not change when an entry ends that is there
// already; such an entry is removed, and added again.
func (m *Model) fence(s *state) {
	now := s.rec.fencedNow
	if early := now & s.ceph.blocked & s.ceph.brief; early != 0 && m.has(Outsiders) {
		if m.on(EntryReplaced) {
			s.ceph.blocked, s.ceph.brief = s.ceph.blocked&^early, s.ceph.brief&^early
			s.ctl.pc = unpublishReplace
		}
		now &^= early
	}
	s.ceph.blocked |= now
	if m.on(FenceForYears) {
		s.ceph.brief &^= now
	} else {
		s.ceph.brief |= now
	}
}

// outsiders are others who put a client on the blocklist, for a time, or take one off it.
func (m *Model) outsiders(s *state, try func(kind, uint8, bool, func(*state))) {
	for i := range s.host {
		if c := s.host[i].client; c != 0 && !s.ceph.blocked.has(c) && !s.rec.isFenced(c) {
			try(outsiderBlocks, c, true, func(n *state) {
				n.ceph.blocked, n.ceph.brief, n.ceph.outside = n.ceph.blocked.with(c), n.ceph.brief.with(c), n.ceph.outside.with(c)
			})
		}
	}
	s.ceph.blocked.each(func(c uint8) {
		if s.rec.isFenced(c) {
			try(outsiderRemoves, c, true, func(n *state) { n.unblock(c); n.ceph.lapsed = n.ceph.lapsed.with(c) })
		}
	})
	(s.ceph.outside &^ s.ceph.brief).each(func(c uint8) {
		try(outsideEnds, c, false, func(n *state) { n.ceph.outside = n.ceph.outside.without(c) })
	})
}

// unfences takes clients off the blocklist and off the record. Entries that are somebody else's are
// only forgotten.
func (m *Model) unfences(s *state, try func(kind, uint8, func(*state) bool)) {
	for c := uint8(1); c <= clients; c++ {
		if !(s.ceph.blocked | s.ceph.lapsed).has(c) || !s.rec.isFenced(c) || !m.mayUnfence(s, c) {
			continue
		}
		try(unfence, c, func(n *state) bool {
			if !m.on(OutsidersLeft) || !m.real.foreign(n.rec.earlier.has(c), n.ceph.outside.has(c)) {
				if n.ceph.outside.has(c) {
					n.breaks(1, whyOutsider)
				}
				n.unblock(c)
			}
			for h := range n.rec.fenced {
				n.rec.fenced[h] = n.rec.fenced[h].without(c)
			}
			n.rec.fencedNow, n.rec.earlier, n.ceph.lapsed = n.rec.fencedNow.without(c), n.rec.earlier.without(c), n.ceph.lapsed.without(c)
			n.wrote()
			return true
		})
	}
}

// mayUnfence: an entry stays until its map is known to be gone.
func (m *Model) mayUnfence(s *state, c uint8) bool {
	if !m.on(FenceKeptWhileMapped) {
		return true
	}
	for h := range s.rec.fenced {
		if !s.rec.fenced[h].has(c) {
			continue
		}
		of := report{silent: true}
		if h < hosts {
			if at := &s.host[h]; at.stage >= stageMapped && at.client == c {
				return false // this dev_connect ends within the time that an entry stays in any case
			}
			of = m.report(s, uint8(h))
			if at := &s.host[h]; at.double {
				of.twin = m.on(SameMachineUnfences)
			}
		}
		return m.real.gone(s.rec, h, c, of)
	}
	return false
}

// ownersOf sorts clients that are to be fenced by host: that of the node they are fenced for, or
// nobody's.
func (s *state) ownersOf(found set, node uint8) [hosts + 1]set {
	var whose [hosts + 1]set
	found.each(func(c uint8) {
		if node != nobody && (s.mappedAt(c) == node || s.rec.client == c) {
			whose[node] = whose[node].with(c)
		} else {
			whose[hosts] = whose[hosts].with(c)
		}
	})
	return whose
}

// othersGiveUp makes earlier holders that were fenced give their device up. It returns false if one
// keeps the node out.
func (m *Model) othersGiveUp(s *state, node uint8) bool {
	ok := true
	s.rec.replicas.without(node).each(func(h uint8) {
		if s.rec.fenced[h] == 0 && !s.rec.coming.has(h) {
			return
		}
		if s.reaches(h) && m.mayGiveUp(s, h, s.rec.given()) {
			s.giveUp(h, s.rec.given())
			return
		}
		v := s.rec.volume()
		ok = ok && !authority.KeepsOut(m.report(s, h).heard(v, names[h]))
	})
	return ok
}

// gives is what csi-node does with a device that was taken from its host.
func (m *Model) gives(s *state, h uint8, try func(kind, func(*state) bool)) {
	at := &s.host[h]
	if !m.has(Living) || !at.device || !at.control || at.stage != stageIdle {
		return
	}
	v := s.rec.volume()
	if !authority.IsSuperseded(v, names[h], int64(at.tag)) && !authority.IsTaken(v, names[h], address(at.client)) {
		return
	}
	epoch := uint8(authority.GivenUpIn(v, int64(at.tag)))
	if m.mayGiveUp(s, h, epoch) {
		try(giveUpDevice, func(n *state) bool { n.giveUp(h, epoch); return true })
	}
}

// mayGiveUp is escached's own rule: its copy has to be dispensable by the record, or by the link, or because
// Ceph has everything, or because what it has was discarded.
func (m *Model) mayGiveUp(s *state, h, epoch uint8) bool { //nolint:cyclop // a list of conditions
	n, r := &s.host[h], &s.rec
	if !n.device && !n.primary && n.client == 0 || n.stage != stageIdle || !n.control || n.pending != 0 && n.frozen && n.onlyPeer {
		return false
	}
	inCeph := !r.inCache && (n.through || !n.device || r.discards(h, n.tag))
	if (inCeph || !m.on(CephHasWhatIsGivenUp)) && epoch >= n.tag && r.attached != h && (r.epoch > n.tag || r.attached == nobody) {
		return true
	}
	if !n.primary || !s.connected(h) {
		return epoch > n.tag && r.attached != h && (r.outdated.has(h) || !r.replicas.has(h))
	}
	peer := &s.host[n.peer]
	has := peer.upToDate && !peer.syncing && !peer.diskless && r.replicas.has(n.peer) && !r.outdated.has(n.peer)
	return epoch >= n.tag && r.attached != h && (epoch > n.tag || r.attached == nobody) && (has || !m.on(PeerHasWhatIsGivenUp))
}

// discards reports whether what a host with this tag has was discarded, and does not count.
func (r *record) discards(h, tag uint8) bool {
	return r.discarded > 0 && tag <= r.discarded && (r.outdated.has(h) || !r.replicas.has(h))
}

// giveUp makes all I/O fail, removes the device, and marks the copy outdated. What was under way is on
// this disk, and is sent to the peer if that goes on from the same generation. What was discarded keeps its epoch.
func (s *state) giveUp(h, epoch uint8) {
	n := &s.host[h]
	if s.rec.discards(h, n.tag) {
		epoch = n.tag
	}
	if n.peer != nobody {
		s.disconnect(pair(h, n.peer))
	}
	n.wasPrimary = n.wasPrimary || n.primary
	s.unmapAndDemote(h)
	n.tag, n.upToDate, n.outdated, n.diskless, n.telling, n.exposed = epoch, false, true, false, false, 0
	n.restore, n.unread = restoreIdle, false
}

// dropFenced removes a device whose map is fenced, so that it is re-created.
func (m *Model) dropFenced(s *state, h uint8) bool {
	n := &s.host[h]
	if !m.has(Living) || !m.on(FencedMapNotUsed) || !s.rec.isFenced(n.client) || n.frozen {
		return false
	}
	s.unmapAndDemote(h)
	return true
}

// follows is how a frozen host that has the volume again comes to ask its arbiter in the new attachment.
func (m *Model) follows(s *state, h uint8) bool {
	n, r := &s.host[h], &s.rec
	if r.attached != h || r.epoch <= n.tag || r.fenced[h] == 0 && !r.coming.has(h) {
		return false
	}
	n.tag = r.epoch
	return m.granted(s, h)
}
