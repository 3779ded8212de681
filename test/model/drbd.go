package model

// disconnect is what both sides of a replication link notice. A Primary freezes; a resync stops
// where it is.
func (s *state) disconnect(p uint8) {
	if !s.conn.has(p) {
		return
	}
	s.conn = s.conn.without(p)
	for i := range s.host {
		h := uint8(i)
		n := &s.host[i]
		if !n.laid || n.peer == nobody || pair(h, n.peer) != p {
			continue
		}
		n.syncing = false
		switch {
		case !n.up || !n.primary:
		case n.permit.unfrozen && !n.diskless:
			s.goesOn(h)
		default:
			n.frozen = true
		}
	}
}

// direction of a handshake.
const (
	inSync int8 = iota
	fromFirst
	fromSecond
	never
)

// handshake compares two copies as DRBD does.
func handshake(a, b *host) int8 {
	switch {
	case a.primary && b.primary:
		return never
	case a.current == 0 && b.current == 0:
		return inSync // both were just made, and neither is used
	case b.current == 0, !a.inconsistent && b.inconsistent:
		return guarded(b, fromFirst)
	case a.current == 0, a.inconsistent && !b.inconsistent:
		return guarded(a, fromSecond)
	case a.current == b.current:
		return equals(a, b)
	case a.bitmap == b.current:
		return guarded(b, fromFirst)
	case b.bitmap == a.current:
		return guarded(a, fromSecond)
	}
	return never
}

// equals is for copies of one generation: the one that was Primary may have more.
func equals(a, b *host) int8 {
	switch {
	case a.primary || (a.wasPrimary && !b.primary):
		return guarded(b, fromFirst)
	case b.primary || b.wasPrimary:
		return guarded(a, fromSecond)
	}
	return inSync
}

// guarded refuses to overwrite a Primary.
func guarded(target *host, d int8) int8 {
	if target.primary {
		return never
	}
	return d
}

// join connects two replicas. What is equal but for writes under way is brought together at once.
func (s *state) join(a, b uint8) {
	x, y := &s.host[a], &s.host[b]
	p := pair(a, b)
	d := handshake(x, y)
	if x.diskless || y.diskless {
		if x.diskless && y.diskless || x.primary && y.primary || !accepts(x, y) || !accepts(y, x) {
			return // they try again
		}
		s.conn = s.conn.with(p)
		x.upToDate, y.upToDate = !x.diskless, !y.diskless
		x.frozen, y.frozen = false, false
		s.newWithout(a, b)
		s.newWithout(b, a)
		x.writesAt(y)
		y.writesAt(x)
		return
	}
	if d == never {
		if !x.primary || !y.primary {
			s.split = s.split.with(p)
		}
		return
	}
	if s.turnedAway(a, b) {
		return
	}
	s.conn = s.conn.with(p)
	switch d {
	case fromFirst:
		s.sync(x, y)
	case fromSecond:
		s.sync(y, x)
	default:
		x.upToDate, y.upToDate = x.current != 0, y.current != 0
		x.spoilt, y.spoilt = false, false
		x.outdated, y.outdated = x.outdated && y.outdated, x.outdated && y.outdated
		x.upToDate, y.upToDate = x.upToDate && !x.outdated, y.upToDate && !y.outdated
	}
	// A Primary that was frozen goes on: what it could not send before, it sends now.
	x.frozen, y.frozen = false, false
}

func (s *state) sync(source, target *host) {
	source.upToDate, source.outdated, target.outdated = true, false, false
	if source.current == target.current {
		// Only what was under way differs: too short to be seen.
		target.kept = source.kept
		target.dirty, target.upToDate, target.inconsistent, target.wasPrimary = source.dirty, true, false, false
		source.wasPrimary, source.spoilt, target.spoilt = false, false, false
		return
	}
	target.syncing, target.inconsistent, target.upToDate = true, true, false
}

// synced ends a resync.
func (s *state) synced(h uint8) {
	target := &s.host[h]
	source := &s.host[target.peer]
	target.dirty, target.kept, target.current = source.dirty, source.kept, source.current
	target.bitmap, source.bitmap = 0, 0
	target.syncing, target.inconsistent, target.wasPrimary, target.upToDate = false, false, false, true
	source.wasPrimary, source.alone = false, false
	source.spoilt, target.spoilt = false, false
}

// goAlone begins a new generation.
func (s *state) goAlone(h uint8) {
	if s.rec.attached != h {
		s.breaks(1, whyAloneWithoutRight)
	}
	s.newAlone(h)
}

func (s *state) newAlone(h uint8) {
	n := &s.host[h]
	n.alone, n.frozen, n.upToDate = true, false, true
	s.leaveBehind(h)
}

// leaveBehind begins a new generation, unless one has begun already that the peer does not have.
func (s *state) leaveBehind(h uint8) {
	if n := &s.host[h]; n.bitmap == 0 {
		n.bitmap = n.current
		n.current = 0
		n.current = s.newGeneration()
	}
}

// granted is the handler of a host that has lost its peer, or is to be promoted without it.
func (m *Model) granted(s *state, h uint8) bool {
	n := &s.host[h]
	if !m.on(HandlerAsks) {
		return true
	}
	if !n.control {
		return false
	}
	seen := s.rec
	if !m.on(ArbiterComparesAttachment) {
		seen.attached, seen.epoch = h, n.tag
	}
	if !m.on(OutdatedRefused) {
		seen.outdated = seen.outdated.without(h)
	}
	if n.marked && !n.primary && !m.onlyCurrent(s, h) {
		return false
	}
	if !m.real.mayGoOnAlone(seen, h, n.peer, n.tag) {
		return false
	}
	m.writeOutdated(s, n.peer)
	return true
}

// promotable is escached's look before it maps: DRBD has to say that the copy is current, or that
// it does not know.
func (s *state) promotable(h uint8) bool {
	n := &s.host[h]
	if n.primary {
		return true
	}
	if n.diskless {
		return false
	}
	if s.connected(h) {
		other := &s.host[n.peer]
		if other.primary {
			return false
		}
		if n.current == 0 && other.current == 0 {
			return true // both are new: the first resync is skipped
		}
	}
	return n.current != 0 && !n.inconsistent && !n.syncing && !n.outdated
}

// promote makes a copy Primary. It returns false if that is refused.
func (m *Model) promote(s *state, h uint8) bool {
	n := &s.host[h]
	if !s.promotable(h) || !m.refilled(s, h) {
		return false
	}
	if s.connected(h) {
		if n.current == 0 {
			g := s.newGeneration()
			other := &s.host[n.peer]
			n.current, other.current = g, g
			n.inconsistent, other.inconsistent, n.upToDate, other.upToDate = false, false, true, true
		}
		n.primary = true
		s.newWithout(h, n.peer)
	} else {
		if m.on(NoForce) && !m.granted(s, h) {
			return false
		}
		n.primary = true
		s.goAlone(h)
	}
	if s.rec.inCache && s.visible(h) < s.acked {
		s.breaks(2, whyStalePromoted)
	}
	return true
}
