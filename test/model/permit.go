package model

import (
	"github.com/escache/escache-csi/api/escache"
	"github.com/escache/escache-csi/internal/authority"
)

// permitted is a permit to go on without the peer, at one host.
type permitted struct {
	// file is what is in the run directory. It need not survive a reboot, but here it does.
	file uint8
	// unfrozen: the kernel does not freeze I/O when the peer is lost.
	unfrozen bool
	// settling is how far escached has got with taking or dropping the permit.
	settling uint8
	// late: a question to the arbiter is under way whose asker does not wait for it.
	late bool
}

// What the file says.
const (
	noPermit uint8 = iota
	permitAsked
	permitGranted
)

// Steps of taking a permit, and of dropping it.
const (
	settleNothing uint8 = iota
	settleAsked
	settleGranted
	settleDrop
	settleFreezes
)

// off is a power loss. The file of the resource, which the kernel reads when the disk is attached, says
// what the permit's file says.
func (p *permitted) off() {
	p.settling, p.late, p.unfrozen = settleNothing, false, p.file == permitGranted
}

// goesOn is a Primary that loses its peer and is not to freeze. Its handler asks all the same, and
// nothing waits for the answer.
func (s *state) goesOn(h uint8) {
	s.newAlone(h)
	s.host[h].permit.late = true
}

// permits is what escached does about a permit. It is killed, or gives up, between any two steps.
func (m *Model) permits(s *state, h uint8, try func(kind, func(*state) bool)) { //nolint:cyclop // a list of moves
	at := &s.host[h]
	if !m.has(Permits) || !at.laid || at.peer == nobody {
		return
	}
	peer := &s.host[at.peer]
	holds := at.primary && at.upToDate && !at.diskless
	current := s.connected(h) && peer.upToDate && !peer.syncing && !peer.diskless
	p := at.permit
	set := func(k kind, change func(p *permitted)) {
		try(k, func(n *state) bool { change(&n.host[h].permit); return true })
	}
	if p.late && at.control {
		try(lateAnswer, func(n *state) bool {
			n.host[h].permit.late = false
			return m.granted(n, h) || true
		})
	}
	if p.settling != settleNothing {
		set(permitStops, func(p *permitted) {
			p.late = p.late || p.settling == settleAsked
			p.settling = settleNothing
		})
	}
	switch p.settling {
	case settleNothing:
		switch {
		case at.stage >= stageMapped:
			// dev_connect has the lock.
		case holds && s.connected(h) && peer.diskless && !at.frozen && (p.file != permitGranted || !p.unfrozen):
			set(permitAsks, func(p *permitted) { p.settling, p.file = settleAsked, permitAsked })
		case p.file != noPermit && (!holds || current):
			set(permitEnds, func(p *permitted) { p.settling, p.file = settleDrop, permitAsked })
		}
	case settleAsked:
		if m.on(PermitFromArbiter) && !at.control {
			return
		}
		try(permitIsGranted, func(n *state) bool {
			is := &n.host[h].permit
			if m.on(PermitFromArbiter) && !m.granted(n, h) {
				is.settling = settleDrop // if DRBD was told nothing, that is the same
				return true
			}
			is.settling, is.file = settleGranted, permitGranted
			return true
		})
	case settleGranted:
		set(permitUnfreezes, func(p *permitted) { p.settling, p.unfrozen = settleNothing, !at.diskless })
	case settleDrop:
		set(permitFreezes, func(p *permitted) {
			p.settling, p.unfrozen = settleFreezes, false
			if !m.on(FreezesBeforeDropped) {
				p.file, p.unfrozen = noPermit, at.permit.unfrozen
			}
		})
	case settleFreezes:
		set(permitGone, func(p *permitted) { p.settling, p.file, p.unfrozen = settleNothing, noPermit, false })
	}
}

// mayGoOn is what the status tells of a permit.
func (m *Model) mayGoOn(s *state, h uint8) bool {
	file := s.host[h].permit.file
	return m.on(PermitInStatus) && (file == permitGranted || file == permitAsked && m.on(AskedIsAPermit))
}

// countQuestion is whether a status of the holder proves that its peer is current.
type countQuestion struct {
	rec          record
	holder, peer uint8
	epoch        uint8
	// What DRBD says, and what the permit's file says.
	primary, linked, current, peerCurrent, frozen, permit bool
}

// resynced asks that.
func (r *rules) resynced(q countQuestion) bool {
	answer, known := r.counted[q]
	if !known {
		s := escache.VolumeStatus{
			State: escache.StateConnected, Role: escache.RoleSecondary, DiskState: escache.DiskDiskless, HostID: machine,
			Epoch: int64(q.epoch), SyncedPercent: 100, IOSuspended: q.frozen, MayGoOnAlone: q.permit,
			Peers: []escache.Peer{{Name: names[q.peer], ConnectionState: escache.LinkUnconfigured, DiskState: escache.DiskUnknown}},
		}
		if q.primary {
			s.Role = escache.RolePrimary
		}
		if q.current {
			s.DiskState = escache.DiskUpToDate
		}
		if q.linked {
			s.Peers[0].ConnectionState = escache.LinkConnected
		}
		if q.peerCurrent {
			s.Peers[0].DiskState = escache.DiskUpToDate
		}
		v := q.rec.volume()
		answer = authority.Resynced(v, authority.Heard(v, names[q.holder], s, nil), names[q.peer])
		r.counted[q] = answer
	}
	return answer
}

// current is what DRBD says of the peer, in a status. The other half of it is without a permit.
func (m *Model) current(s *state, h uint8) bool {
	n := &s.host[h]
	peer := &s.host[n.peer]
	return m.real.resynced(countQuestion{
		rec: s.rec, holder: h, peer: n.peer, epoch: n.tag, primary: n.primary, linked: s.connected(h) && !n.syncing && !peer.syncing,
		current: n.upToDate && !n.diskless, peerCurrent: peer.upToDate && !peer.diskless, frozen: n.frozen,
	})
}

// countsPermit is what the permit's file says, in a status whose other half speaks for the peer.
func (m *Model) countsPermit(s *state, h uint8) bool {
	n := &s.host[h]
	return m.real.resynced(countQuestion{
		rec: s.rec, holder: h, peer: n.peer, epoch: n.tag, primary: true, linked: true, current: true, peerCurrent: true,
		permit: m.mayGoOn(s, h),
	})
}

// dropPermit is how a connect begins, and how a stop ends.
func (m *Model) dropPermit(s *state, h uint8) {
	if m.on(PermitEndsWithAttachment) {
		p := &s.host[h].permit
		p.file, p.unfrozen, p.settling = noPermit, false, settleNothing
	}
}

// disksBack is a standby's disk that works again. Its escached makes DRBD use it, after a look at the
// mark, while the link is up.
func (m *Model) disksBack(s *state, h uint8, try func(kind, func(*state) bool)) {
	at := &s.host[h]
	if !m.has(Permits) || !at.diskless || at.primary || at.telling || at.peer == nobody {
		return
	}
	try(diskWorks, func(n *state) bool {
		is := &n.host[h]
		if is.marked && m.on(FailedDiskRefilled) && (!is.control || !m.refill(n, h)) {
			return false
		}
		is.diskless = false
		p := pair(h, is.peer)
		if !n.conn.has(p) {
			return true
		}
		n.conn = n.conn.without(p)
		n.join(min(h, is.peer), max(h, is.peer))
		if !n.conn.has(p) {
			n.conn = n.conn.with(p)
			n.disconnect(p)
		}
		return true
	})
}

// afterFailure is a volume in use on n1 whose copy on n2 is on record as outdated: its disk has failed.
func afterFailure(mark bool) state {
	s := begun()
	s.loseDisk(1, mark)
	s.rec.outdated = s.rec.outdated.with(1)
	return s
}

// staleLeft is a volume that n1 has been given once more. escached was killed there when it had stopped
// the device and not yet dropped the permit.
func staleLeft() state {
	s := begun()
	s.unmapAndDemote(0)
	s.rec.client, s.rec.epoch = 0, 2
	n1 := &s.host[0]
	n1.given, n1.permit = 2, permitted{file: permitGranted, unfrozen: true}
	return s
}

// permitStored is a volume in use on n1, which has a permit, and of which there is a record from before
// the disk of n2 has failed.
func permitStored() state {
	s := afterFailure(true)
	s.saved = begun().rec
	s.host[0].permit = permitted{file: permitGranted, unfrozen: true}
	return s
}
