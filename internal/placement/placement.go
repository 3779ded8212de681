// Package placement decides which group, and which two hosts of it, hold the cache of a volume.
//
// It is pure: no I/O, no clock, no randomness. The same State and Request always give the same
// Placement, in whatever order the state was built. So a decision that was lost in a crash is made
// again.
package placement

// Member is a host of a group.
type Member struct {
	Name string
	// Ready means that the host may get new replicas now. A member that is not ready still counts
	// in the balance, so that a reboot does not drive the next volumes away from its group.
	Ready bool
	// Cordoned tells why a member is not ready. Placement itself does not look at it.
	Cordoned bool
	// Well means that the host answers and is healthy, also if it is cordoned and so not ready. Placement
	// itself does not look at it.
	Well bool
	// CapacityBytes is the size of the whole cache device. While the host does not answer, it is
	// the last known size.
	CapacityBytes int64
	// OtherBytes is the part of the capacity that is used by something other than volumes of the
	// State. For a host that reports free and allocated bytes it is capacity - free - allocated, if
	// positive.
	OtherBytes int64
	// MaxVolumes is the largest number of replicas for the host. 0 means no limit.
	MaxVolumes int
	// ConnectableBytes is the size of the caches for which the host has memory if they are connected at
	// the same time. Each replica counts: any of them may have to be connected there after the loss of
	// another host. nil means no limit.
	ConnectableBytes *int64
	// ConnectedBytes is the size of the caches that are connected there. Placement itself does not look
	// at it.
	ConnectedBytes int64
	// Engines are the cache engines that the host can run, beside the one that every host has.
	Engines []string
}

// Group is a NodeGroup. A node is a member of at most one group.
type Group struct {
	Name     string
	Cordoned bool
	Members  []Member
}

// Volume is a volume with its place. It counts on both hosts from the moment of the decision.
type Volume struct {
	Name    string
	Group   string
	Primary string
	Partner string
	// CacheBytes is the space of one replica on its host, metadata and rounding included.
	CacheBytes int64
	// Engine is that of a Request.
	Engine string
}

// Request asks where a volume should go.
type Request struct {
	Volume string
	// CacheBytes is the space that one replica will take, metadata and rounding included. It is
	// above zero.
	CacheBytes int64
	// Engine is the cache engine that both hosts must have. Empty means the one that every host has.
	Engine string
	// Groups are the names of the allowed groups. Empty means all.
	Groups []string
	// Primary is the host that the scheduler chose. Empty means that any host will do.
	Primary string
	// Partner is the host that is to be the partner of Primary. Empty means that any other host will
	// do.
	Partner string
	// Without are hosts that may not be the partner.
	Without []string
	// Stays means that the volume is in the group of Primary already. Then a cordoned group takes it
	// too, and hosts without memory for it are the last ones, and not ruled out: a copy that cannot be
	// connected is better than none.
	Stays bool
}

// Placement is the answer to a Request.
type Placement struct {
	Group   string
	Primary string
	Partner string
}
