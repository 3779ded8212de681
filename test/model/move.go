package model

import "fmt"

// kind of a move.
type kind uint8

const (
	powerOff kind = iota
	powerOn
	cutLink
	healLink
	cutControl
	healControl
	cutStorage
	takeAddress
	returnAddress
	restartEscached
	recoverEscached
	replaceDisk
	failDisk
	failBoth
	tellArbiter
	leavePeer
	refillCopy
	outdateBooted
	swapCounted
	healStorage
	expire
	controllerDies
	connect
	resyncEnds
	askArbiter
	answerLost
	followGivenBack
	write
	writeHere
	writeThere
	writeEnds
	readBack
	backLands
	backCommits
	stageBegins
	stageConnects
	stagePromotes
	stageUses
	unstage
	watchSeesClient
	restoreBegins
	restoreLooks
	restoreWrites
	publishBegins
	detachBegins
	giveUpBegins
	settleBegins
	controllerStep
	controllerMoves
	unfence
	controllerGivesUp
	controllerFlushes
	giveUpDevice
	drainBegins
	drainSettles
	drainEnds
	discardOrdered
	discardBegins
	backUp
	setBack
	cleanUp
	outsiderBlocks
	outsideEnds
	doubleAnswers
	doubleGone
	repairBegins
	copyLeaves
	repairGoesOn
	permitAsks
	permitIsGranted
	permitUnfreezes
	permitEnds
	permitFreezes
	permitGone
	permitStops
	lateAnswer
	diskWorks
	restoreReads
	transferBegins
	transferGoesOn
	resizeWanted
	controllerDrops
	fenceLate
	forgetHost
	recordLate
	outsiderRemoves
	fenceAgain
	flushBegins
	publishesDrained
	trimBegins
	trimGoesOn
	kinds
)

// move is one step of somebody. Host is a host, a pair of them or a client, as the kind says.
type move struct {
	kind kind
	host uint8
}

// texts of moves; %s is the host, or the pair, %d the client.
var texts = map[kind]string{
	resizeWanted:      "the cache is to get another size",
	powerOff:          "%s loses its power",
	powerOn:           "%s boots",
	cutLink:           "the link between %s is cut",
	healLink:          "the link between %s works again",
	cutControl:        "%s is cut off from the control plane",
	healControl:       "%s reaches the control plane again",
	cutStorage:        "%s is cut off from Ceph",
	healStorage:       "%s reaches Ceph again",
	takeAddress:       "at the address of %s the controller gets its peer's escached",
	returnAddress:     "at the address of %s the controller gets its own escached again",
	restartEscached:   "escached on %s is started again, and does not know yet what is here",
	recoverEscached:   "escached on %s has recovered",
	replaceDisk:       "%s gets an empty disk",
	failDisk:          "the disk of %s fails",
	failBoth:          "the disk of %s fails, and its root disk takes no mark",
	tellArbiter:       "%s tells the arbiter that its disk has failed",
	leavePeer:         "%s leaves its peer, because nobody has put its failed disk on record",
	refillCopy:        "escached on %s gives a copy whose disk had failed fresh metadata",
	outdateBooted:     "%s was booted, and puts its copy on record as outdated before it connects",
	swapCounted:       "csi-node on %s counts the peer in place of its own failed disk",
	expire:            "the blocklist entry of client %d ends by itself",
	controllerDies:    "the controller dies",
	connect:           "the replicas on %s connect",
	resyncEnds:        "%s has been resynchronised",
	askArbiter:        "%s asks its arbiter whether it may go on without its peer",
	answerLost:        "%s asks its arbiter, which writes the record, and the answer is lost",
	followGivenBack:   "%s lost the volume by force and has it again: its arbiter is asked in the new attachment, which goes to the disk",
	write:             "a write on %s is acknowledged",
	writeHere:         "a write on %s arrives at its own disk only, and is not acknowledged",
	writeThere:        "a write on %s arrives at the peer's disk only, and is not acknowledged",
	writeEnds:         "the write on %s that was under way ends, and is acknowledged",
	readBack:          "%s begins to write back to Ceph",
	backLands:         "what %s writes back arrives in Ceph",
	backCommits:       "the cache on %s notes that Ceph has it",
	stageBegins:       "NodeStage on %s reads the record",
	stageConnects:     "dev_connect on %s maps the image",
	stagePromotes:     "dev_connect on %s promotes the replica",
	stageUses:         "dev_connect on %s assembles the cache, and the volume is used",
	unstage:           "%s stops the device",
	watchSeesClient:   "csi-node on %s puts the client's address on record",
	restoreBegins:     "csi-node on %s begins to count its peer again",
	restoreLooks:      "csi-node on %s makes the second of its two looks",
	restoreWrites:     "csi-node on %s takes its peer off the outdated",
	publishBegins:     "ControllerPublish to %s begins",
	detachBegins:      "ControllerUnpublish from %s begins",
	giveUpBegins:      "ControllerUnpublish from %s begins; Kubernetes has given the node up",
	settleBegins:      "the controller asks the replicas whether all is in Ceph",
	controllerStep:    "the controller goes on: %s",
	controllerMoves:   "the controller lays the volume anew with %s",
	unfence:           "the blocklist entry of client %d is removed",
	controllerGivesUp: "the controller goes on: Kubernetes has given up %s, which was to write back",
	giveUpDevice:      "%s gives up the device that was taken from it",
	drainBegins:       "somebody wants the volume to write through on %s",
	drainSettles:      "the controller asks %s whether it is drained",
	drainEnds:         "nobody wants the volume to write through on %s any more",
	discardOrdered:    "an operator orders that the cache is discarded",
	discardBegins:     "the controller begins to discard the cache",
	backUp:            "etcd is backed up",
	setBack:           "etcd is restored",
	cleanUp:           "the controller removes the replica on %s, which is not the volume's any more",
	outsiderBlocks:    "somebody else puts client %d on the blocklist for an hour",
	outsideEnds:       "the hour for which somebody else has shut out client %d is over",
	doubleAnswers:     "another machine with the name of %s answers",
	doubleGone:        "%s itself answers again",
	repairBegins:      "the controller begins to replace the lost copy by one on %s",
	copyLeaves:        "the controller begins to move the second copy, which counts, to %s",
	repairGoesOn:      "the controller goes on with the new copy on %s",
	permitAsks:        "escached on %s begins to take a permit to go on without its peer",
	permitIsGranted:   "the arbiter answers %s whether it may go on without its peer",
	permitUnfreezes:   "DRBD on %s is told not to freeze I/O when the peer is lost",
	permitEnds:        "escached on %s begins to drop its permit",
	permitFreezes:     "DRBD on %s is told to freeze I/O again when the peer is lost",
	permitGone:        "%s has no permit any more",
	permitStops:       "escached on %s is killed while it takes or drops a permit",
	lateAnswer:        "%s asks its arbiter whether it may go on without its peer, and nothing waits for the answer",
	diskWorks:         "the disk of %s works again, and DRBD uses it",
	restoreReads:      "csi-node on %s has read one half of the status",
	transferBegins:    "the controller begins to move the volume to a group with %s",
	transferGoesOn:    "the controller goes on with the move to another group",
	controllerDrops:   "the controller removes the copy on %s, the first of those that it was to remove, and dies",
	fenceLate:         "client %d, which has opened the image late, is put on record and on the blocklist",
	recordLate:        "client %d, which has opened the image late, is put on record, and the controller dies",
	outsiderRemoves:   "somebody removes the blocklist entry of client %d, which is fenced",
	fenceAgain:        "client %d, which is on record as fenced, is put on the blocklist again, for years",
	forgetHost:        "nobody waits for a map of %s any more",
	flushBegins:       "the controller has %s write back a volume that no pod has",
	publishesDrained:  "the record says that the volume is drained from the beginning; it is published to %s",
	trimBegins:        "the controller begins to have %s trim the volume",
	trimGoesOn:        "the controller goes on with the trim on %s",
	controllerFlushes: "ControllerPublish begins, and has %s write back first",
}

func (m move) text(before *state) string {
	form := texts[m.kind]
	switch m.kind { //nolint:exhaustive // all others name a host
	case controllerDies, settleBegins, discardOrdered, discardBegins, backUp, setBack, transferGoesOn, resizeWanted:
		return form
	case cutLink, healLink, connect, controllerMoves, transferBegins:
		low, high := hostsOf(m.host)
		return fmt.Sprintf(form, names[low]+" and "+names[high])
	case expire, unfence, outsiderBlocks, outsideEnds, fenceLate, recordLate, outsiderRemoves, fenceAgain:
		return fmt.Sprintf(form, m.host)
	case controllerStep:
		return fmt.Sprintf(form, before.ctl.text())
	default:
		return fmt.Sprintf(form, names[m.host])
	}
}

// environment is what happens to the parts.
func (m *Model) environment(s *state, out emit) {
	fault := s.faults < m.Bounds.Faults
	try := func(k kind, who uint8, costs bool, act func(n *state)) {
		if costs && !fault || !m.allows(k) || k == powerOff && !m.has(Seconds) && s.host[who].telling && !s.survives() {
			return
		}
		n := *s
		if costs {
			n.faults++
		}
		act(&n)
		out(move{k, who}, &n)
	}
	for i := range s.host {
		hostTrouble(uint8(i), &s.host[i], try)
		m.failing(s, uint8(i), try)
	}
	for p := range uint8(pairs) {
		if s.conn.has(p) {
			try(cutLink, p, true, func(n *state) { n.cut = n.cut.with(p); n.disconnect(p) })
		} else if s.cut.has(p) {
			try(healLink, p, false, func(n *state) { n.cut = n.cut.without(p) })
		}
	}
	s.ceph.blocked.each(func(c uint8) {
		if s.ceph.brief.has(c) && m.expires(s) && !m.lapses(s, c) {
			try(expire, c, false, func(n *state) { n.unblock(c) })
		}
	})
	m.outsiders(s, try)
	m.backups(s, try)
	if s.ctl.op != opNone {
		try(controllerDies, 0, true, func(n *state) { n.ctl = controller{} })
	}
}

// hostTrouble is what happens to one host. What cannot matter is left out: the power of a host that
// has never had to do with the volume.
func hostTrouble(h uint8, at *host, try func(kind, uint8, bool, func(*state))) {
	switch {
	case at.up && (at.laid || at.given != 0 || at.plain):
		try(powerOff, h, true, func(n *state) { n.powerOff(h) })
	case !at.up:
		try(powerOn, h, false, func(n *state) { n.host[h].up = true })
		if at.laid {
			try(replaceDisk, h, false, func(n *state) { n.replaceDisk(h) })
		}
	}
	answerTrouble(h, at, try)
	if at.up && at.control && (at.given != 0 || at.plain) {
		try(cutControl, h, true, func(n *state) { n.host[h].control = false })
	} else if !at.control {
		try(healControl, h, false, func(n *state) { n.host[h].control = true })
	}
	if at.up && at.storage && at.client != 0 {
		try(cutStorage, h, true, func(n *state) { n.host[h].storage = false })
	} else if !at.storage {
		try(healStorage, h, false, func(n *state) { n.host[h].storage = true })
	}
}

// answerTrouble is what happens to the answers that the controller gets for one host.
func answerTrouble(h uint8, at *host, try func(kind, uint8, bool, func(*state))) {
	if at.up && at.laid && !at.early {
		try(restartEscached, h, true, func(n *state) { n.host[h].early = true })
	} else if at.early {
		try(recoverEscached, h, false, func(n *state) { n.host[h].early = false })
	}
	if at.laid && !at.elsewhere {
		try(takeAddress, h, true, func(n *state) { n.host[h].elsewhere = true })
	} else if at.elsewhere {
		try(returnAddress, h, false, func(n *state) { n.host[h].elsewhere = false })
	}
	if (at.laid || at.plain) && !at.double {
		try(doubleAnswers, h, true, func(n *state) { n.host[h].double = true })
	} else if at.double {
		try(doubleGone, h, false, func(n *state) { n.host[h].double = false })
	}
}

func (s *state) unblock(c uint8) {
	s.ceph.blocked, s.ceph.brief, s.ceph.outside = s.ceph.blocked.without(c), s.ceph.brief.without(c), s.ceph.outside.without(c)
	s.ceph.lapsed = s.ceph.lapsed.without(c)
}

// mayJoin reports whether two hosts try to connect their copies, and reach each other.
func (m *Model) mayJoin(s *state, h, peer uint8) bool {
	other, p := &s.host[peer], pair(h, peer)
	return other.up && other.laid && other.peer == h && !(s.conn | s.cut | s.split).has(p) && m.refilled(s, h) && m.refilled(s, peer) &&
		m.mayConnect(s, h) && m.mayConnect(s, peer)
}

// kernel is what DRBD and dm-writecache do by themselves.
func (m *Model) kernel(s *state, h uint8, out emit) {
	at := &s.host[h]
	try := func(k kind, who uint8, act func(n *state) bool) {
		n := *s
		if act(&n) {
			out(move{k, who}, &n)
		}
	}
	if at.up && at.plain && at.device {
		m.data(s, h, try)
	}
	if !at.up || !at.laid {
		return
	}
	if peer := at.peer; peer > h && peer != nobody && m.mayJoin(s, h, peer) {
		p := pair(h, peer)
		try(connect, p, func(n *state) bool { m.connects(n, h, peer); return *n != *s })
	}
	if at.telling || at.marked {
		m.failedDisk(s, h, try)
	}
	if at.syncing {
		try(resyncEnds, h, func(n *state) bool { n.synced(h); return true })
	}
	if at.primary && at.frozen && !at.diskless {
		try(askArbiter, h, func(n *state) bool {
			if !m.granted(n, h) {
				return false
			}
			n.goAlone(h)
			return true
		})
		try(answerLost, h, func(n *state) bool { return m.granted(n, h) && n.rec != s.rec })
		try(followGivenBack, h, func(n *state) bool { return m.follows(n, h) })
	}
	if at.device || m.early(at) {
		m.data(s, h, try)
	}
}

// data is what a device does.
func (m *Model) data(s *state, h uint8, try func(kind, uint8, func(*state) bool)) { //nolint:cyclop // a list of moves
	at := &s.host[h]
	usable := s.usable(h) && !m.uncounted(s, h)
	// What was sent already may still be acknowledged while the handler runs.
	sent := at.telling && at.marked && at.primary && !at.frozen && at.onlyPeer && s.cacheOf(h) != nil
	if (usable || sent) && at.pending != 0 {
		try(writeEnds, h, func(n *state) bool { n.writeBoth(h, at.pending); return true })
	}
	if usable && at.pending == 0 && s.last < m.Bounds.Writes {
		try(write, h, func(n *state) bool { n.last++; return m.write(n, h, n.last) })
		if s.connected(h) && !at.through {
			if !at.diskless {
				try(writeHere, h, func(n *state) bool {
					n.last++
					n.host[h].pending, n.host[h].dirty = n.last, n.last
					return true
				})
			}
			if !s.host[at.peer].syncing && !s.host[at.peer].diskless {
				try(writeThere, h, func(n *state) bool {
					n.last++
					n.host[h].pending, n.host[h].onlyPeer, n.host[at.peer].dirty = n.last, true, n.last
					return true
				})
			}
		}
	}
	cache := s.cacheOf(h)
	if cache != nil && at.primary && !at.frozen && at.back == 0 && cache.dirty != 0 && at.pending == 0 {
		try(readBack, h, func(n *state) bool { n.host[h].back = cache.dirty; return true })
	}
	if at.back != 0 && !at.landed && (!m.has(Outsiders) || !m.lapses(s, at.client)) {
		try(backLands, h, func(n *state) bool { return n.land(h) })
	}
	if at.landed && !at.frozen && at.primary && cache != nil {
		try(backCommits, h, func(n *state) bool { n.commit(h); return true })
	}
}

func (m *Model) write(s *state, h, value uint8) bool {
	n := &s.host[h]
	if !n.through {
		s.writeBoth(h, value)
		return true
	}
	if !n.storage || s.ceph.blocked.has(n.client) || s.cacheOf(h).dirty != 0 {
		return false
	}
	s.ceph.value = value
	s.wroteThrough(h, value)
	if s.rec.attached != h {
		s.breaks(1, whyOldWriteBack)
	}
	s.acknowledge(h, value, nobody)
	return true
}
