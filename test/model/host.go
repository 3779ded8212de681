package model

// powerOff takes everything that is not on a disk.
func (s *state) powerOff(h uint8) {
	n := &s.host[h]
	if n.laid && n.peer != nobody {
		s.disconnect(pair(h, n.peer))
	}
	n.up, n.diskless, n.telling, n.exposed = false, false, false, 0
	n.wasPrimary = n.wasPrimary || n.primary
	n.upToDate, n.primary, n.frozen, n.alone = false, false, false, false
	n.stopDevice()
	n.client = 0
	n.unmapPlain()
	n.stage, n.epoch, n.writes, n.alike = stageIdle, 0, false, false
	n.restore, n.unread = restoreIdle, false
	n.early = false
	n.permit.off()
}

// replaceDisk puts an empty disk into a host that has no power.
func (s *state) replaceDisk(h uint8) {
	s.host[h].forgetReplica()
	s.stale[h] = 0
	s.lost = s.lost || !s.survives()
}

func (n *host) stopDevice() {
	n.device, n.through, n.unused, n.pending, n.onlyPeer, n.back, n.landed = false, false, false, 0, false, 0, false
}

// mapImage maps the image as krbd does. A holder that answers keeps its lock; one that is silent
// for 30 s loses it, and is blocklisted by krbd itself for one hour.
func (m *Model) mapImage(s *state, h uint8) bool {
	n := &s.host[h]
	if !n.storage {
		return false
	}
	if holder := s.ceph.lock; holder != 0 && !s.ceph.blocked.has(holder) {
		if at := s.mappedAt(holder); at != nobody && s.host[at].storage {
			return false
		}
		if !m.breaksLock(s, holder) {
			return false
		}
		s.ceph.blocked, s.ceph.brief = s.ceph.blocked.with(holder), s.ceph.brief.with(holder)
	}
	c := s.newClient()
	if c == 0 {
		return false
	}
	n.client, s.ceph.lock = c, c
	return true
}

func (s *state) mappedAt(client uint8) uint8 {
	for i := range s.host {
		if s.host[i].client == client {
			return uint8(i)
		}
	}
	return nobody
}

// unmapAndDemote gives back whatever there is of a connect.
func (s *state) unmapAndDemote(h uint8) {
	n := &s.host[h]
	if n.client != 0 && s.ceph.lock == n.client && n.storage && !s.ceph.blocked.has(n.client) {
		s.ceph.lock = 0
	}
	n.client, n.primary, n.alone, n.frozen = 0, false, false, false
	n.unmapPlain()
	n.stopDevice()
	n.permit.settling = settleNothing // the lock is this verb's
}

// mayStage is the question that csi-node asks of the record.
func (m *Model) mayStage(s *state, h, epoch uint8) bool {
	seen := s.rec
	if !m.on(EpochCompared) {
		seen.attached, seen.epoch = h, epoch
	}
	if !m.on(OutdatedRefused) {
		seen.outdated = seen.outdated.without(h)
	}
	return m.real.mayStage(seen, h, epoch)
}

// stageConnect is escached's first half: the epoch goes to the disk, the copy is looked at, the
// image is mapped.
func (m *Model) stageConnect(s *state, h uint8) bool {
	n := &s.host[h]
	if n.alike {
		return m.mapPlain(s, h)
	}
	if !n.laid || n.epoch < n.tag {
		return false
	}
	n.tag = n.epoch
	if !s.promotable(h) || !m.refilled(s, h) {
		return false
	}
	m.dropPermit(s, h)
	return m.mapImage(s, h)
}

// stageUse assembles the cache and mounts it.
func (m *Model) stageUse(s *state, h uint8) bool {
	n := &s.host[h]
	if s.cacheOf(h) == nil {
		return false
	}
	if m.on(ClientOnRecordBeforeUse) {
		if !n.control || !m.mayStage(s, h, n.epoch) || m.on(FencedMapNotUsed) && s.rec.isFenced(n.client) ||
			n.writes && !s.rec.inCache && m.on(ModeOfTheRecord) {
			return false
		}
		s.rec.client = n.client
		s.wrote()
	}
	if s.rec.attached != h || s.rec.epoch != n.epoch {
		s.breaks(1, whyStagedWithoutRight)
	}
	n.device, n.unused, n.through = true, false, !n.writes && m.on(AuthorityCacheBeforeWriteBack)
	m.uses(s, n.epoch)
	if s.visible(h) < s.acked {
		s.breaks(3, whyStaleRead)
	}
	if s.gone.has(s.visible(h)) {
		s.breaks(4, whyRisen)
	}
	if s.ceph.blocked.has(n.client) && s.rec.isFenced(n.client) {
		s.breaks(3, whyFencedUsed)
	}
	return true
}

// usable reports whether writes to the device are taken. Without a cache Ceph has to take them.
func (s *state) usable(h uint8) bool {
	n := &s.host[h]
	if n.plain && s.ceph.blocked.has(n.client) {
		return false
	}
	return n.up && n.device && n.primary && !n.frozen && !n.unused && s.cacheOf(h) != nil && !n.telling
}

// acknowledge is when the writer is told. The copy that lacks the write is given, or nobody.
func (s *state) acknowledge(h, value, lacks uint8) {
	if s.gone != 0 && s.ceph.blocked.has(s.host[h].client) {
		s.gone = s.gone.with(value) // its cache was discarded, whether it knows or not
		return
	}
	s.acked = max(s.acked, value)
	if lacks != nobody && s.rec.inCache && s.rec.replicas.has(lacks) && !s.rec.outdated.has(lacks) && !s.knowsFailed(lacks) {
		s.breaks(2, whyCounted)
	}
	if !s.rec.inCache && s.ceph.value < value {
		s.breaks(3, whyAckedOnlyInCache)
	}
}

// writeBoth is a write that both copies take, or the only one that there is, and that is
// acknowledged.
func (s *state) writeBoth(h, value uint8) {
	n := &s.host[h]
	lacks := n.peer
	if s.connected(h) {
		peer := &s.host[n.peer]
		if !peer.syncing && !peer.diskless {
			peer.dirty = value
		}
		if !peer.diskless {
			lacks = nobody
		}
	}
	if n.diskless {
		lacks = h
	} else {
		n.dirty = value
	}
	n.pending, n.onlyPeer = 0, false
	s.acknowledge(h, value, lacks)
}

// land brings what is written back to Ceph, if Ceph takes it.
func (s *state) land(h uint8) bool {
	n := &s.host[h]
	if !n.storage || s.ceph.blocked.has(n.client) {
		return false
	}
	if s.rec.attached != h && s.harms(h) {
		s.breaks(1, whyOldWriteBack)
	}
	s.ceph.value, n.landed = n.back, true
	return true
}

// commit notes in the cache that Ceph has it.
func (s *state) commit(h uint8) {
	n := &s.host[h]
	if at := s.cacheOf(h); at != nil && at.dirty == n.back {
		if !n.diskless {
			s.clean(n)
		}
		if s.connected(h) {
			if peer := &s.host[n.peer]; !peer.syncing && !peer.diskless && peer.dirty == n.back {
				s.clean(peer)
			}
		}
	}
	n.back, n.landed = 0, false
}

func (n *host) forgetReplica() {
	n.laid, n.size, n.peer, n.tag, n.dirty, n.kept, n.current, n.bitmap = false, 0, nobody, 0, 0, 0, 0, 0
	n.wasPrimary, n.inconsistent, n.upToDate, n.syncing, n.marked, n.outdated = false, false, false, false, false, false
	n.diskless, n.telling, n.spoilt, n.exposed = false, false, false, 0
	n.permit = permitted{}
}

// survives reports whether what was acknowledged can still be had, unless a disk is gone with it.
func (s *state) survives() bool {
	if s.lost || s.ceph.value >= s.acked {
		return true
	}
	for i := range s.host {
		n := &s.host[i]
		if !n.laid || !s.rec.replicas.has(uint8(i)) || s.rec.outdated.has(uint8(i)) {
			continue
		}
		if n.spoilt && n.inconsistent {
			// Its disk had failed, and its peer fills it. If the peer is lost too, both were.
			n = &s.host[n.peer]
		}
		if n.laid && !n.inconsistent && !n.outdated && n.dirty >= s.acked {
			return true
		}
	}
	return false
}
