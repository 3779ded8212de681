package model

// root is a state from which an exploration begins.
type root struct {
	text  string
	state state
}

func (m *Model) roots() []root {
	if m.has(Outside) {
		return []root{
			{"a clean volume that was used in its group, and that nobody has", usedBefore()},
			{"a volume in use on n4, which is not in its group, without a cache; it was used in its group before", m.usedOutside()},
			{"a volume that nobody has, dirty on n1 and n2", dirtyBefore()},
		}
	}
	if m.has(Trimming) {
		return []root{
			{"a clean volume that was used in its group, and that nobody has", usedBefore()},
			{"a volume that n3 trims, and that was used in its group before", m.beingTrimmed()},
			{"a volume that nobody has, dirty on n1 and n2", dirtyBefore()},
		}
	}
	if m.has(GivenBack) {
		return []root{{"a volume that is dirty on n1 and n2, and that n1 writes back", beingWrittenBack()}}
	}
	if m.has(Late) {
		return []root{{"a volume that is published to n1 and dirty; n1 is cut off while it connects", published()}}
	}
	if m.has(Removed) {
		return []root{
			{"a clean volume that nobody has; its copy on n2 was removed, and what removed it died", halfRemoved()},
			{"a clean volume that nobody has; its copy on n2 is on record as outdated", halfOutdated()},
		}
	}
	if m.has(Permits | SetBack) {
		return []root{{"a volume in use on n1, which has a permit: the disk of n2 has failed; etcd was backed up before", permitStored()}}
	}
	if m.has(Permits) {
		return []root{
			{"a volume in use on n1; the disk of n2 has failed, and that is on record", afterFailure(true)},
			{"a volume in use on n1; the disk of n2 has failed without a mark on its root disk, and that is on record",
				afterFailure(false)},
			{"a volume that is published to n1 and not staged yet; n1 has a permit of an earlier attachment", staleLeft()},
		}
	}
	all := []root{
		{"a volume in use on n1, with its copy on n2", begun()},
		{"a volume that was never attached", fresh()},
		{"a volume that nobody has, dirty on n1, with an outdated copy on n2", left()},
	}
	if m.has(SetBack) {
		all = append(all,
			root{"a volume that is dirty on n1, with an outdated copy on n2; both are off; etcd was backed up before that", storedBefore()},
			root{"a volume in use on n1, with its copy on n2; etcd was backed up while it was drained", storedDrained()},
			root{"a volume that n2 has taken over from n1, and that is dirty there; both are off; etcd was backed up while n1 had it",
				m.storedAttached()})
	}
	if m.has(Detached) {
		all = append(all, root{"a volume that nobody has, dirty on n1 and n2", bothDirty()})
	}
	if m.has(Detached | SetBack) {
		all = append(all, root{"a volume that nobody has, dirty on n1, with an outdated copy on n2; etcd was backed up while both were " +
			"dirty and current", storedDirty()})
	}
	if m.has(Repairing | Draining) {
		all = append(all, root{"a drained volume in use on n1, with its copy on n2", drained()})
	}
	if m.has(Moving) {
		all = append(all, root{"a clean volume in a group of n3 and n4, which has left an outdated, dirty copy on n1", movedBefore()})
	}
	return all
}

// movedBefore is a clean volume whose replicas are to be laid on n3 and n4. When it left n1 and n2, n1 did not
// answer, and was on record as outdated. n1 will be told to remove what it has.
func movedBefore() state {
	s := fresh()
	s.rec.epoch, s.rec.replicas = 1, set(0).with(2).with(3)
	s.acked, s.last, s.ceph.value, s.faults = 2, 2, 2, 1
	n1 := &s.host[0]
	n1.laid, n1.peer, n1.current, n1.tag, n1.dirty, n1.wasPrimary = true, 1, 1, 1, 1, true
	s.stale[0] = 2
	return s
}

// begun is a volume in use on n1, with its copy on n2.
func begun() state {
	s := fresh()
	s.rec.attached, s.rec.epoch, s.rec.inCache, s.rec.client = 0, 1, true, 1
	s.ceph.lock = 1
	for i := range uint8(2) {
		n := &s.host[i]
		n.laid, n.peer, n.current, n.upToDate, n.tag = true, 1-i, 1, true, 1
	}
	n1 := &s.host[0]
	n1.primary, n1.device, n1.client, n1.given = true, true, 1, 1
	s.conn = s.conn.with(pair(0, 1))
	return s
}

// drained is a volume in use on n1 that writes through, with its copy on n2. All is in Ceph.
func drained() state {
	s := begun()
	s.rec.inCache, s.rec.claim, s.host[0].through = false, true, true
	return s
}

// left is a volume that nobody has, with what was acknowledged only on n1: n2 had missed it, and
// then n1 lost its power and returned.
func left() state {
	s := fresh()
	s.rec.epoch, s.rec.inCache, s.rec.outdated = 1, true, set(0).with(1)
	s.acked, s.last, s.faults = 1, 1, 1
	for i := range uint8(2) {
		n := &s.host[i]
		n.laid, n.peer, n.current, n.tag = true, 1-i, 1, 1
	}
	n1 := &s.host[0]
	n1.dirty, n1.current, n1.bitmap, n1.wasPrimary, n1.given = 1, 2, 1, true, 1
	s.cut = s.cut.with(pair(0, 1))
	return s
}

// bothDirty is a volume that nobody has, with what was acknowledged on n1 and n2. It was in use on n1, which has
// lost its power and was given up.
func bothDirty() state {
	s := begun()
	n1, n2 := &s.host[0], &s.host[1]
	s.rec.attached, s.rec.client, s.ceph.lock = nobody, 0, 0
	s.rec.fenced[0], s.ceph.blocked = set(0).with(1), set(0).with(1)
	s.acked, s.last, s.faults = 1, 1, 1
	n1.primary, n1.device, n1.client, n1.given, n1.upToDate, n1.wasPrimary, n1.up = false, false, 0, 0, false, true, false
	n1.dirty, n2.dirty = 1, 1
	s.disconnect(pair(0, 1))
	return s
}

// beingWrittenBack is a volume that no pod has, dirty on n1 and n2. n1 has its device to write it back.
func beingWrittenBack() state {
	s := begun()
	s.rec.epoch, s.rec.client, s.rec.flush = 2, 0, true
	s.acked, s.last = 1, 1
	n1, n2 := &s.host[0], &s.host[1]
	n1.tag, n1.given, n1.unused, n1.dirty, n2.dirty = 2, 0, true, 1, 1
	return s
}

// storedDirty is such a volume that n1 has had again since, without n2. There is a record from before that.
func storedDirty() state {
	s := left()
	s.saved, s.faults = s.rec, 0
	s.saved.outdated = 0
	s.rec.epoch, s.acked, s.last = 2, 2, 2
	n1, n2 := &s.host[0], &s.host[1]
	n1.tag, n1.dirty, n2.dirty = 2, 2, 1
	return s
}

// fresh is a volume that was never attached.
func fresh() state {
	s := state{}
	s.rec.attached, s.rec.replicas = nobody, set(0).with(0).with(1)
	for i := range s.host {
		s.host[i] = unused()
	}
	return s
}

// unused is a host without a replica.
func unused() host { return host{up: true, control: true, storage: true, peer: nobody} }
