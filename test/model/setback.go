package model

// backups are backups of etcd, and what is restored from them. The controller is started again then. No host
// connects while etcd is restored.
func (m *Model) backups(s *state, try func(kind, uint8, bool, func(*state))) {
	if s.saved.replicas == 0 && !s.back {
		try(backUp, 0, false, func(n *state) { n.saved = n.rec })
	} else if s.saved.replicas != 0 && s.saved != s.rec && !s.connecting() {
		try(setBack, 0, true, func(n *state) {
			n.rec, n.saved, n.back, n.ctl = n.saved, record{}, true, controller{}
			n.behind = n.rec.epoch < n.used
			n.wrote()
		})
	}
}

// connecting reports whether a host has mapped the image, and does not use it yet.
func (s *state) connecting() bool {
	for i := range s.host {
		if s.host[i].stage >= stageMapped {
			return true
		}
	}
	return false
}

// note is what the controller writes into the image's metadata about an attachment.
func (m *Model) note(s *state) {
	if m.has(SetBack) && m.on(NotedBeforeUse) {
		s.noted = max(s.noted, s.rec.epoch)
	}
}

// compared is what csi-node asks the controller before it has a device connected. The answer may be the first
// that writes the note.
func (m *Model) compared(s *state, h uint8) bool {
	if !m.has(SetBack) || !m.on(NoteReadByStage) {
		return true
	}
	if !s.host[h].control || m.real.behind(s.rec, s.noted) || !m.mayStage(s, h, s.host[h].epoch) {
		return false
	}
	m.note(s)
	return true
}

// overruled reports whether the controller does not attach: what the image tells is newer than the record.
func (m *Model) overruled(s *state) bool {
	return m.on(NoteReadByAttach) && m.real.behind(s.rec, s.noted)
}

// uses notes that a device is used in an attachment.
func (m *Model) uses(s *state, epoch uint8) {
	if m.has(SetBack) {
		s.used = max(s.used, epoch)
	}
}

// storedAttached is a volume that n2 has taken over from n1, and that is dirty there. Both hosts are off. There
// is a record from before that, which says that n1 has it.
func (m *Model) storedAttached() state {
	s := begun()
	s.saved = s.rec
	s.rec.attached, s.rec.epoch, s.rec.outdated, s.rec.client = 1, 2, set(0).with(0), 2
	s.rec.fenced[0], s.rec.fencedNow = set(0).with(1), 0
	s.ceph.blocked, s.ceph.lock = set(0).with(1), 2
	s.acked, s.last, s.noted, s.used = 1, 1, 1, 2
	m.note(&s)
	n2 := &s.host[1]
	n2.tag, n2.dirty, n2.current, n2.bitmap, n2.given, n2.wasPrimary = 2, 1, 2, 1, 2, true
	s.powerOff(0)
	s.powerOff(1)
	return s
}

// storedBefore is a volume with what was acknowledged only on n1. Both hosts are off, and there is a
// record from before the volume was attached.
func storedBefore() state {
	s, before := left(), fresh()
	s.saved, s.faults = before.rec, 0
	s.host[0].up, s.host[1].up = false, false
	return s
}

// storedDrained is a volume in use of which there is a record from a time in which it was drained.
func storedDrained() state {
	s := begun()
	s.saved = s.rec
	s.saved.inCache, s.saved.claim = false, true
	return s
}

// contradicted notes that an attachment begins by a record that was set back, although a host that
// answers knows better.
func (s *state) contradicted(begins bool, node uint8) {
	if !begins || !s.back {
		return
	}
	s.rec.replicas.with(node).each(func(h uint8) {
		s.warned = s.warned || s.reaches(h) && s.host[h].laid && s.host[h].tag > s.rec.epoch
	})
}

// given is the newest attachment of which the record speaks when it says that a replica is not needed.
func (r *record) given() uint8 {
	if r.attached != nobody && !r.inCache {
		return r.epoch - 1
	}
	return r.epoch
}

// drop removes a replica. One that is dirty is removed only if the record does not count it, and its
// host has seen no later attachment than that.
func (m *Model) drop(s *state, h, upTo uint8) bool {
	n := &s.host[h]
	if n.device || n.primary || n.stage >= stageMapped {
		return false // escached is busy, or refuses
	}
	if !n.laid {
		s.stale[h] = 0
		return true
	}
	if n.dirty != 0 {
		if counted := s.rec.replicas.has(h) && !s.rec.outdated.has(h); counted && m.on(DirtyKept) || n.tag > upTo && m.on(DiscardedUpTo) {
			return false
		}
	}
	if n.peer != nobody {
		s.disconnect(pair(h, n.peer))
	}
	n.forgetReplica()
	s.stale[h] = 0
	if s.back && !s.anywhere() || !s.back && !s.survives() {
		s.breaks(4, whyDropped)
	}
	return true
}

// anywhere reports whether any disk has what was acknowledged, whatever the record says.
func (s *state) anywhere() bool {
	if s.lost || s.ceph.value >= s.acked {
		return true
	}
	for i := range s.host {
		if n := &s.host[i]; n.laid && n.dirty >= s.acked {
			return true
		}
	}
	return false
}

// dropOld drops every replica where one was or will be. Those on hosts that do not answer are
// dropped when they do.
func (m *Model) dropOld(s *state) {
	ok := true
	(s.rec.replicas | s.ctl.move).each(func(h uint8) {
		switch {
		case s.reaches(h):
			ok = (!m.on(OldReplicasDropped) || m.drop(s, h, s.rec.given())) && ok
		case s.ctl.move.has(h):
			ok = false
		case m.has(SetBack):
			s.stale[h] = s.rec.given() + 1
		}
	})
	s.ctl.pc = publishMove
	if !ok {
		s.ctl = controller{}
	}
}

// cleanUps removes replicas that are not the volume's any more from hosts that answer now.
func (m *Model) cleanUps(s *state, try func(kind, uint8, func(*state) bool)) {
	for h := range uint8(hosts) {
		if s.stale[h] != 0 && s.reaches(h) {
			try(cleanUp, h, func(n *state) bool {
				if n.rec.replicas.has(h) {
					n.stale[h] = 0
					return true
				}
				return m.drop(n, h, n.stale[h]-1)
			})
		}
	}
}

// lay makes a replica of the size on record where none is.
func (m *Model) lay(s *state, h, peer uint8) bool {
	n := &s.host[h]
	if !n.laid {
		n.size = s.rec.size
	}
	return s.lay(h, peer, s.rec.epoch)
}

// lay makes a replica where none is. Its host remembers the epoch.
func (s *state) lay(h, peer, epoch uint8) bool {
	n := &s.host[h]
	if n.laid {
		if n.tag > epoch {
			return false
		}
		if n.peer == peer && !n.device {
			n.tag = epoch
		}
		return n.peer == peer
	}
	n.laid, n.peer, n.inconsistent, n.tag = true, peer, true, epoch
	s.split = s.split.without(pair(h, peer))
	return true
}
