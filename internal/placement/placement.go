// Package placement decides which group, and which two hosts of it, hold the cache of a volume.
//
// It is pure: no I/O, no clock, no randomness. The same State and Request give the same Placement, in whatever order the
// state was built, so a decision that was lost in a crash is found again.
package placement

// Member is a host of a group as placement sees it.
type Member struct {
	Name string
	// Ready means that the host may get new replicas now. A member that is not ready keeps its place in the balance, so
	// that a reboot does not pull the next volumes away from its group.
	Ready bool
	// CapacityBytes is the whole cache device, the last known figure while the host does not answer.
	CapacityBytes int64
	// OtherBytes is what something else than the volumes of the State takes of the capacity, for a host that reports
	// free and allocated bytes: capacity - free - allocated, if positive.
	OtherBytes int64
	// MaxVolumes is the most replicas the host takes; 0 is no limit.
	MaxVolumes int
}

// Group is a NodeGroup as placement sees it. A node is a member of at most one group.
type Group struct {
	Name     string
	Cordoned bool
	Members  []Member
}

// Volume is a placed volume: what it takes on its two hosts, from the moment of the decision on.
type Volume struct {
	Name    string
	Group   string
	Primary string
	Partner string
	// CacheBytes is what one replica takes on its host, metadata and rounding included.
	CacheBytes int64
}

// Request asks where a volume should go.
type Request struct {
	Volume string
	// CacheBytes is what one replica will take, metadata and rounding included. It is above zero.
	CacheBytes int64
	// Groups are the names of the allowed groups; empty allows all.
	Groups []string
	// Primary is the host that the scheduler chose; empty leaves the choice free.
	Primary string
}

// Placement answers a Request.
type Placement struct {
	Group   string
	Primary string
	Partner string
}
