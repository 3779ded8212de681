package model

import "math/bits"

// hosts of the group; the replicas start on the first two. With two others there is a choice where a
// replica goes, and a pair that shares no host with the first one, as in every larger group.
const hosts = 4

// names of the hosts, as the real functions get them.
var names = [hosts]string{"n1", "n2", "n3", "n4"}

// set is a set of hosts, or of Ceph clients, as bits.
type set uint8

func (s set) has(i uint8) bool    { return s&(1<<i) != 0 }
func (s set) with(i uint8) set    { return s | 1<<i }
func (s set) without(i uint8) set { return s &^ (1 << i) }
func (s set) size() int           { return bits.OnesCount8(uint8(s)) }
func (s set) each(do func(uint8)) {
	for i := range uint8(8) {
		if s.has(i) {
			do(i)
		}
	}
}

// outsider is the host that is not in the group, in explorations with the family Outside.
const outsider = uint8(hosts - 1)

// nobody is no host.
const nobody = uint8(255)

// record is the CacheVolume.
type record struct {
	attached  uint8 // a host, or nobody
	epoch     uint8
	replicas  set
	outdated  set
	inCache   bool  // authority
	flush     bool  // the attachment is the controller's own, to have the cache written back
	began     uint8 // the write-back on whose device the attachment of a pod began; 0: none
	client    uint8
	fenced    [hosts + 1]set // clients on record as fenced, by their host; the last are those of whom nobody knows it
	fencedNow set            // those of the running epoch
	coming    set            // hosts that may still map the image, and of which no client was known when they were fenced
	comingNow set            // those of the running epoch
	earlier   set            // those that were on the blocklist before they were fenced
	uncached  bool           // the attachment has no cache
	claim     bool           // it is to write through in this attachment
	repairs   bool           // that claim is the repair's
	moving    set            // the pair of another group that it goes to; 0: it stays
	cleared   bool           // and it has left its replicas
	size      uint8          // of the cache: one of two
	wants     bool           // it is to get the other one
	discarded uint8          // what only caches had up to this epoch was discarded; 0: nothing was
}

// ceph is the image. What is written is a number: a later write has a higher one.
type ceph struct {
	value   uint8
	lock    uint8 // client that holds the exclusive lock; 0: none
	blocked set   // clients on the blocklist
	brief   set   // those of them whose entry ends by itself
	outside set   // those that somebody else shut out, for a time that is not over
	lapsed  set   // clients on record as fenced that are not on the blocklist for years, and that nobody has looked for since
}

// host is one machine.
type host struct {
	up, control, storage bool // has power, reaches the control plane, reaches Ceph
	early                bool // escached was started again and does not know yet what is here
	elsewhere            bool // at its address the controller gets the peer's escached
	double               bool // another machine, an empty one, answers under its name

	// On its disk.
	laid         bool
	size         uint8
	peer         uint8
	tag          uint8 // newest epoch that its escached has seen
	dirty        uint8 // what its cache holds that may not be in Ceph; 0: the cache is clean
	current      uint8 // DRBD's identifier of the data generation; 0: never used
	bitmap       uint8 // the generation that the peer was left behind with; 0: none
	outdated     bool  // DRBD's metadata says so, because it gave its device up
	wasPrimary   bool
	inconsistent bool
	kept         uint8 // what its clean cache still has of the image, and would show; 0: nothing
	spoilt       bool  // its disk has failed, and has had no resync since; nobody looks at this

	// On its root disk.
	marked bool // its disk has failed

	// In its kernel.
	upToDate bool // DRBD's UpToDate; without it the copy is only Consistent
	primary  bool
	frozen   bool
	alone    bool // was allowed to go on without the peer
	syncing  bool // is the target of a resync
	client   uint8
	device   bool
	through  bool  // writes through to Ceph
	plain    bool  // the image is mapped without a cache
	unused   bool  // nobody has opened the device: it was made to write back
	pending  uint8 // a write that is under way and not acknowledged
	onlyPeer bool  // the pending write has arrived at the peer only
	back     uint8 // what is being written back
	landed   bool  // it has arrived in Ceph

	// NodeStage.
	given  uint8 // epoch of the newest publish context that the kubelet has; 0: none
	stage  uint8
	epoch  uint8 // of the running stage
	writes bool  // authority was Cache when it read the record
	alike  bool  // the record said that the attachment has no cache

	// The cache watch's restoring of the peer.
	restore uint8
	unread  bool // the record was written since it read it

	// A disk that has failed since the host was started.
	diskless bool
	telling  bool  // DRBD's handler is about to put this copy on record as outdated
	exposed  uint8 // the generation that a Primary without a disk writes at its peer

	permit permitted
}

// Steps of NodeStage.
const (
	stageIdle uint8 = iota
	stageRead
	stageMapped
	stagePromoted
)

// Steps of restoring the peer.
const (
	restoreIdle uint8 = iota
	restoreFirst
	restoreHalf
	restoreBoth
)

// controller is the one operation that the controller runs.
type controller struct {
	op      uint8
	pc      uint8
	node    uint8
	stale   bool // the record was written since it was read
	held    bool
	fence   bool
	given   bool // Kubernetes has given the node up
	comes   bool // the node may still map the image
	clean   bool
	flushed bool
	over    bool // a take-over: nothing is laid again
	outside bool // the node gets the volume without a cache
	renew   set
	move    set   // the new pair of replicas; 0: they stay
	clients set   // to be fenced
	lost    uint8 // whose they are
}

// Operations of the controller.
const (
	opNone uint8 = iota
	opPublish
	opUnpublish
	opSettle
	opFlush
	opDrain
	opDiscard
	opRepair
	opTransfer
)

// state is everything. It is compared and hashed as a whole, so it holds no pointer.
type state struct {
	rec   record
	ceph  ceph
	host  [hosts]host
	ctl   controller
	cut   set // pairs of hosts whose link is cut; see pair
	conn  set // pairs whose replicas are connected
	split set // pairs that DRBD keeps apart: both went on alone

	acked  uint8 // newest write that was acknowledged
	lost   bool  // a disk was replaced that had the only copy of it
	last   uint8 // newest write that was begun
	faults uint8 // so many have happened

	order   uint8        // an operator has ordered a discard by the record of this epoch, plus 1; 0: nobody
	ordered uint8        // the newest write that was acknowledged then
	gone    set          // writes that were given up
	saved   record       // a backup of the record
	stale   [hosts]uint8 // replicas to be cleaned up: the newest epoch that may be discarded, plus 1
	back    bool         // the record was set back
	noted   uint8        // the newest attachment that the image's metadata tells of; kept where etcd is restored
	used    uint8        // the newest one in which a device was used; kept where etcd is restored
	behind  bool         // the record was set back to before that
	keeps   bool         // clean caches show what they have kept
	warned  bool         // and an attachment began although a host that answers had seen a later one

	broken uint8 // the promise that is broken; 0: none
	why    uint8
}

// pair numbers two hosts.
func pair(a, b uint8) uint8 {
	low, high := min(a, b), max(a, b)
	return high*(high-1)/2 + low
}

// pairs is how many there are.
const pairs = hosts * (hosts - 1) / 2

// hostsOf is the reverse of pair.
func hostsOf(p uint8) (low, high uint8) {
	for high = 1; high*(high+1)/2 <= p; high++ {
	}
	return p - high*(high-1)/2, high
}

// pair is the two hosts of the replicas.
func (r *record) pair() uint8 {
	low := uint8(bits.TrailingZeros8(uint8(r.replicas)))
	return pair(low, uint8(bits.TrailingZeros8(uint8(r.replicas.without(low)))))
}

// untouched reports whether a host has never had to do with the volume.
func (s *state) untouched(h uint8) bool {
	anywhere := s.rec.replicas | s.rec.outdated | s.saved.replicas | s.saved.outdated | s.ctl.move | s.ctl.renew |
		s.rec.moving | s.saved.moving | s.rec.coming
	if s.host[h] != unused() || anywhere.has(h) || s.stale[h] != 0 || s.rec.fenced[h] != 0 || s.saved.fenced[h] != 0 {
		return false
	}
	for i := range uint8(hosts) {
		if i != h && (s.host[i].peer == h || (s.cut | s.conn | s.split).has(pair(h, i))) {
			return false
		}
	}
	running := s.ctl.op != opNone && (s.ctl.node == h || s.ctl.lost == h)
	return !running && s.rec.attached != h && (s.saved.replicas == 0 || s.saved.attached != h)
}

// likeAnother reports whether a host need not be tried: one before it is untouched, too, and whatever
// can be done with the one can be done with the other.
func (s *state) likeAnother(h uint8) bool {
	if !s.untouched(h) {
		return false
	}
	for i := range h {
		if s.untouched(i) {
			return true
		}
	}
	return false
}

// known reports whether a client's identity is still referred to anywhere, so that its number
// cannot be given again.
func (s *state) known(client uint8) bool {
	if s.ceph.lock == client || s.ceph.blocked.has(client) || s.rec.client == client || s.rec.isFenced(client) ||
		s.ctl.clients.has(client) {
		return true
	}
	for i := range s.host {
		if s.host[i].client == client {
			return true
		}
	}
	return false
}

// clients is how many maps can be told apart at a time.
const clients = 7

func (s *state) newClient() uint8 {
	for c := uint8(1); c <= clients; c++ {
		if !s.known(c) {
			return c
		}
	}
	return 0
}

func (s *state) newGeneration() uint8 {
	for g := uint8(1); ; g++ {
		used := false
		for i := range s.host {
			used = used || s.host[i].current == g || s.host[i].bitmap == g || s.host[i].exposed == g
		}
		if !used {
			return g
		}
	}
}

// wrote marks every reader of the record as behind.
func (s *state) wrote() {
	s.ctl.stale = s.ctl.op != opNone
	for i := range s.host {
		s.host[i].unread = s.host[i].restore != restoreIdle
	}
}

// visible is what a device on this host's cache would show.
func (s *state) visible(h uint8) uint8 {
	at := s.cacheOf(h)
	switch {
	case at == nil:
	case at.dirty != 0:
		return at.dirty
	case at.kept != 0:
		return at.kept
	}
	return s.ceph.value
}

func (s *state) connected(h uint8) bool {
	n := &s.host[h]
	return n.laid && n.peer != nobody && s.conn.has(pair(h, n.peer))
}

// reaches reports whether a host's escached carries out what the controller asks of it.
func (s *state) reaches(h uint8) bool {
	n := &s.host[h]
	return n.up && n.control && !n.early && !n.elsewhere && !n.double
}

// breaks notes a broken promise. With a record that was set back, less is promised.
func (s *state) breaks(promise, why uint8) {
	if s.back && !s.promisedStill(why) {
		return
	}
	if s.broken == 0 {
		s.broken, s.why = promise, why
	}
}

// promisedStill reports whether a promise counts with a record that was set back. No data is removed. No
// older data is used if a host that answers knows better. The same is true if the volume was used in a later
// attachment than the record tells of.
func (s *state) promisedStill(why uint8) bool {
	switch why {
	case whyDropped:
		return true
	case whyStaleRead, whyStalePromoted:
		return s.warned || s.behind
	case whyTwoPrimaries:
		return s.warned
	}
	return false
}

func (r *record) isFenced(client uint8) bool {
	for _, of := range r.fenced {
		if of.has(client) {
			return true
		}
	}
	return false
}
