// Package escache holds the types of the escache HTTP API v1, as they go over the wire.
//
// openapi.yaml and arbiter.yaml beside this file are the contract; a test compares these types with
// them. Sizes are in bytes, durations in whole seconds if the name says so. Package conformance
// tests an implementation.
package escache

import "time"

// Paths of the API's calls.
const (
	PathNode       = "/v1/node"
	PathStatus     = "/v1/status"
	PathReplica    = "/v1/replica"
	PathDevConnect = "/v1/dev_connect"
	PathFlush      = "/v1/flush"
	PathStop       = "/v1/stop"
	PathMode       = "/v1/mode"
	PathOptions    = "/v1/options"
	PathHold       = "/v1/hold"
	PathRelease    = "/v1/release"
	PathResize     = "/v1/resize"
	PathAbandon    = "/v1/abandon"
	PathMap        = "/v1/map"
	PathUnmap      = "/v1/unmap"
	PathTrim       = "/v1/trim"
)

// Paths of the arbiter's calls. csi-node serves them, escached calls them.
const (
	PathOutdatePeer = "/v1/outdate-peer"
	PathOutdateSelf = "/v1/outdate-self"
	PathRecord      = "/v1/record"
)

// VolumeRef identifies a volume by its RBD image.
type VolumeRef struct {
	Pool  string `json:"pool"`
	Image string `json:"image"`
}

// HeaderHostID is the header of every answer in which a host gives its identity, the same as
// Node.HostID. It is missing while escached has not read its volume group yet.
//
// In a request that changes something it is the identity of the host that is meant. Another one
// refuses with CodeOtherHost, and changes nothing. Without it whoever gets the request carries
// it out: so a caller leaves it out that does not know the identity, or calls over the host's own socket.
const HeaderHostID = "Escache-Host-Id"

// Node is the answer to GET /v1/node.
type Node struct {
	Name string `json:"name"`
	// HostID identifies the disks of this host: another machine of the same name has another one.
	// It is made with the volume group of the caches and kept there. Empty while escached has not
	// read the volume group yet.
	HostID  string `json:"hostID,omitempty"`
	Version string `json:"version"`
	Healthy bool   `json:"healthy"`
	// Reasons says why the node is not healthy, one sentence each. Empty if it is healthy.
	Reasons            []string `json:"reasons,omitempty"`
	CacheCapacityBytes int64    `json:"cacheCapacityBytes"`
	// CacheAllocatedBytes is the space used by replicas. Capacity that is neither allocated nor
	// free is used by something other than escached.
	CacheAllocatedBytes int64 `json:"cacheAllocatedBytes"`
	CacheFreeBytes      int64 `json:"cacheFreeBytes"`
	// CacheReadSecondsAgo is the age of the three sizes. They include the changes of every finished
	// call of this API.
	CacheReadSecondsAgo int64 `json:"cacheReadSecondsAgo,omitempty"`
	// ConnectedBytes is the total size of the caches connected on this node.
	ConnectedBytes int64 `json:"connectedBytes,omitempty"`
	// ConnectableBytes is the total size of the caches that this node's memory allows to be connected
	// at the same time: those that are, and more. It is nil if the node does not know, or if its memory
	// sets no limit.
	ConnectableBytes *int64 `json:"connectableBytes,omitempty"`
	// CacheMemoryBytes is the memory that the connected caches take. It cannot be swapped out.
	CacheMemoryBytes int64 `json:"cacheMemoryBytes,omitempty"`
	// CacheMemoryFreeBytes is the memory that more connected caches may take. The rest of what is
	// available is kept for everything else on the node.
	CacheMemoryFreeBytes int64 `json:"cacheMemoryFreeBytes,omitempty"`
	// DirtyBytes is the sum over all volumes connected on this node.
	DirtyBytes int64  `json:"dirtyBytes"`
	Volumes    int    `json:"volumes"`
	Primaries  int    `json:"primaries"`
	MaxVolumes int    `json:"maxVolumes"`
	Kernel     Kernel `json:"kernel"`
	// Engines are the cache engines that the host can run now. An implementation that does not say so
	// has EngineWritecache only.
	Engines []Engine `json:"engines,omitempty"`
	// CertificateEnd is when the certificate ends that the host shows to those who call it over TCP. It is
	// nil if there is none, or if the host does not say.
	CertificateEnd *time.Time `json:"certificateEnd,omitempty"`
}

// Kernel lists the parts that escache needs of the running kernel. A missing part has version "".
type Kernel struct {
	Release    string `json:"release"`
	DRBD       string `json:"drbd"`
	Writecache string `json:"writecache"`
	RBD        bool   `json:"rbd"`
}

// State is the state of a volume on one node.
type State string

// States of a volume on a node.
const (
	StateAbsent    State = "absent"    // no replica on this node
	StateStandby   State = "standby"   // a replica, not connected here
	StateConnected State = "connected" // the device exists on this node
	StateFlushing  State = "flushing"  // connected, and a flush is running
	StateDraining  State = "draining"  // connected, and new writes go straight to Ceph
	StateError     State = "error"     // Error says what is wrong
)

// Role is DRBD's role of the replica.
type Role string

// Roles of a replica.
const (
	RolePrimary   Role = "Primary"
	RoleSecondary Role = "Secondary"
	RoleUnknown   Role = "Unknown"
)

// Mode says where new writes go: into the cache, or straight to Ceph.
type Mode string

// Modes of a cache.
const (
	ModeWriteback    Mode = "writeback"
	ModeWritethrough Mode = "writethrough"
)

// Engine is the name of a cache engine: a way to build the cache, and a format of its disks.
type Engine string

// Engines of a cache. An implementation need not have all of them; every one has EngineWritecache.
const (
	// EngineWritecache is what a request means that names none.
	EngineWritecache Engine = "writecache"
	// EngineLog is experimental.
	EngineLog Engine = "log"
)

// Status is the answer to GET /v1/status.
type Status struct {
	Volumes []VolumeStatus `json:"volumes"`
}

// VolumeStatus is the status of one volume on one node.
type VolumeStatus struct {
	VolumeRef

	// Node and HostID say who answers. They are Name and HostID of GET /v1/node.
	Node    string `json:"node,omitempty"`
	HostID  string `json:"hostID,omitempty"`
	ImageID string `json:"imageID,omitempty"`
	State   State  `json:"state"`
	Role    Role   `json:"role"`
	Epoch   int64  `json:"epoch"`
	Mode    Mode   `json:"mode,omitempty"`
	// Uncached means that the device here is the image alone, and that there is no replica.
	Uncached bool `json:"uncached,omitempty"`
	// Engine is that of the replica. It is empty if there is none, and from implementations that have
	// only EngineWritecache.
	Engine     Engine `json:"engine,omitempty"`
	CacheBytes int64  `json:"cacheBytes"`
	// Connecting means that a dev_connect has not ended here, also one whose caller has gone, or that a
	// command of one may still map the image. A standby that says so may have a device at any moment.
	Connecting bool `json:"connecting,omitempty"`
	// DirtyBytes is nil if it is not known: a standby must ask its peer or read the disk to find
	// out.
	DirtyBytes *int64 `json:"dirtyBytes"`
	SizeBytes  int64  `json:"sizeBytes"`
	Device     string `json:"device,omitempty"`
	Port       int    `json:"port,omitempty"`
	Minor      int    `json:"minor"`
	// DiskState is DRBD's state of the local disk. If DRBD does not run the replica, it is empty, or Diskless if the disk
	// has failed.
	DiskState DiskState `json:"diskState,omitempty"`
	Peers     []Peer    `json:"peers,omitempty"`
	// SyncedPercent is the progress of a resync, 100 if none is running.
	SyncedPercent float64 `json:"syncedPercent"`
	// Resync is nil unless a resync is running, and from implementations that do not say how it goes on.
	Resync *Resync `json:"resync,omitempty"`
	// IOSuspended is true while DRBD freezes I/O until the arbiter has answered.
	IOSuspended bool `json:"ioSuspended,omitempty"`
	// MayGoOnAlone is true if I/O may go on without being frozen when the peer is lost: the peer has
	// no disk and is on record as outdated. It must stay on record until this is false.
	MayGoOnAlone bool `json:"mayGoOnAlone,omitempty"`
	// ClientAddress is the Ceph client that maps this volume's image, "IP:0/NONCE", in the form
	// that `ceph osd blocklist` takes.
	ClientAddress string     `json:"clientAddress,omitempty"`
	HeldUntil     *time.Time `json:"heldUntil,omitempty"`
	Error         *Fault     `json:"error,omitempty"`
}

// Peer is the other replica as this node sees it.
type Peer struct {
	Name            string    `json:"name"`
	Address         string    `json:"address"`
	ConnectionState LinkState `json:"connectionState"`
	DiskState       DiskState `json:"diskState"`
	// Role is the peer's role, Unknown if it is not linked. A linked Primary writes to both copies,
	// or to this one alone if its own disk has failed.
	Role Role `json:"role,omitempty"`
}

// Fault is an error that a volume has until something is done about it.
type Fault struct {
	Code   Code   `json:"code"`
	Detail string `json:"detail"`
}

// ReplicaNode is one of a replica's two hosts.
type ReplicaNode struct {
	Name string `json:"name"`
	// Address is the IP address of the replication link, without a port.
	Address string `json:"address"`
}

// ReplicaRequest is the body of PUT /v1/replica.
type ReplicaRequest struct {
	VolumeRef

	// ImageID is Ceph's internal id of the image; empty if the caller does not know it yet.
	ImageID    string `json:"imageID,omitempty"`
	SizeBytes  int64  `json:"sizeBytes"`
	CacheBytes int64  `json:"cacheBytes"`
	// Engine is the cache engine for which the replica is laid; empty means EngineWritecache. A replica
	// keeps its engine as long as it exists: a request with another one is CodeReplicaMismatch. If this
	// host cannot run the engine, a new replica is CodeEngineMissing.
	Engine Engine `json:"engine,omitempty"`
	// Nodes are the two hosts. A replica that is current takes another peer. One that is not Primary and has no link
	// takes other addresses of the same two hosts, current or not.
	Nodes []ReplicaNode `json:"nodes"`
	Port  int           `json:"port"`
	Minor int           `json:"minor"`
	// Join says that this replica starts empty beside one that holds the data, and does not count
	// before it is synchronised from that one. It has no effect on a replica that exists already
	// and was used.
	Join bool `json:"join,omitempty"`
	// Epoch is the attachment for which the replica is laid or confirmed. The host stores it as the
	// newest that it has seen, unless the device is connected there. An older one than it has seen
	// is CodeStaleEpoch; 0 changes nothing.
	Epoch int64 `json:"epoch,omitempty"`
	// MustExist says that nothing may be laid: if this host has no complete replica, the answer is
	// CodeNotFound. It is for the copy that holds the data.
	MustExist bool `json:"mustExist,omitempty"`
	// Secret is the shared secret of the link, the same for both hosts. Empty: the ends of the link
	// know each other by their names only. No answer has it. A replica that has another one takes
	// this one, unless the volume is in use over a link that is up, or MustExist is given; with
	// a peer of another name, or if the host has lost its own, it always takes it. Without one, MustExist on a
	// host that has lost its own is CodeSecretMissing.
	Secret Secret `json:"secret,omitempty"`
}

// MaxDirtyAgeSeconds is the longest dirty age that dev_connect and options take.
const MaxDirtyAgeSeconds = 24 * 60 * 60

// WriteBackOrder says in which order write-back brings to Ceph what is dirty.
type WriteBackOrder string

// Orders of write-back. The default is OrderMerged. OrderStrict keeps the image a state that the volume
// had at a flush, or, while one of these is on its way, what a disk may be that loses power between two
// flushes. EngineWritecache does not have it.
const (
	OrderMerged WriteBackOrder = "merged"
	OrderStrict WriteBackOrder = "strict"
)

// CacheOptions tunes write-back. A field that is zero has the implementation's default.
type CacheOptions struct {
	// HighWatermark and LowWatermark are percentages of the cache. Write-back starts when more than
	// HighWatermark is dirty and stops below LowWatermark.
	HighWatermark int `json:"highWatermark,omitempty"`
	LowWatermark  int `json:"lowWatermark,omitempty"`
	// MaxDirtyAgeSeconds limits how long a written block may stay in the cache only, at most the
	// constant MaxDirtyAgeSeconds; 0 means no limit.
	MaxDirtyAgeSeconds int `json:"maxDirtyAgeSeconds,omitempty"`
	// WriteBackOrder is left out in answers if it is the default. An engine that does not have the order
	// refuses it with CodeInvalidRequest.
	WriteBackOrder WriteBackOrder `json:"writeBackOrder,omitempty"`
}

// ConnectOptions are the mode and the options that a cache begins with. The zero value means the
// implementation's defaults.
type ConnectOptions struct {
	CacheOptions

	Mode Mode `json:"mode,omitempty"`
}

// ConnectRequest is the body of POST /v1/dev_connect.
type ConnectRequest struct {
	VolumeRef

	ImageID string         `json:"imageID,omitempty"`
	Epoch   int64          `json:"epoch"`
	Options ConnectOptions `json:"options"`
	// Engine is the cache engine of the volume; empty means EngineWritecache. CodeReplicaMismatch: the
	// replica here was laid for another one. CodeEngineMissing: this host cannot run it. Both change
	// nothing.
	Engine Engine `json:"engine,omitempty"`
	// Uncached makes the device of the image alone, on a host without a replica. ImageID is required
	// then, and options and engine are left out.
	Uncached bool `json:"uncached,omitempty"`
	// Fenced lists Ceph clients that are on Ceph's blocklist, or are about to be. A device on the map
	// of such a client is re-created on another map: on the old one every write-back would fail.
	Fenced []string `json:"fenced,omitempty"`
}

// ConnectResponse is the answer to POST /v1/dev_connect.
type ConnectResponse struct {
	Device        string `json:"device"`
	ImageID       string `json:"imageID"`
	ClientAddress string `json:"clientAddress"`
}

// FlushRequest is the body of POST /v1/flush.
type FlushRequest struct {
	VolumeRef

	// Epoch is that of the attachment which the call is about. An older one than this host has seen is
	// CodeStaleEpoch. 0 is not checked: callers of a version without this field send none.
	Epoch int64 `json:"epoch,omitempty"`
	// TimeoutSeconds limits the call. When the time is up, the answer says how much is still dirty.
	TimeoutSeconds int `json:"timeoutSeconds"`
}

// FlushResponse is the answer to POST /v1/flush. Clean is false if the time was up first.
type FlushResponse struct {
	Clean      bool  `json:"clean"`
	DirtyBytes int64 `json:"dirtyBytes"`
}

// StopRequest is the body of POST /v1/stop.
type StopRequest struct {
	VolumeRef

	// Epoch is that of the attachment which the call is about. An older one than this host has seen is
	// CodeStaleEpoch. 0 is not checked: callers of a version without this field send none.
	Epoch int64 `json:"epoch,omitempty"`
}

// ModeRequest is the body of POST /v1/mode.
type ModeRequest struct {
	VolumeRef

	// Epoch is that of the attachment which the call is about. An older one than this host has seen is
	// CodeStaleEpoch. 0 is not checked: callers of a version without this field send none.
	Epoch int64 `json:"epoch,omitempty"`
	Mode  Mode  `json:"mode"`
}

// OptionsRequest is the body of POST /v1/options. Options replaces all options of the cache: what is
// left out gets the implementation's default. The mode stays.
type OptionsRequest struct {
	VolumeRef

	// Epoch is that of the attachment on record. An older one than this host has seen is
	// CodeStaleEpoch.
	Epoch   int64        `json:"epoch"`
	Options CacheOptions `json:"options"`
}

// OptionsResponse is the answer to POST /v1/options: the options that are in force now.
type OptionsResponse struct {
	Options CacheOptions `json:"options"`
}

// HoldRequest is the body of POST /v1/hold.
type HoldRequest struct {
	VolumeRef

	// Epoch is that of the attachment which the call is about. An older one than this host has seen is
	// CodeStaleEpoch. 0 is not checked: callers of a version without this field send none.
	Epoch int64 `json:"epoch,omitempty"`
	// MaxSeconds is the time after which the watchdog releases the volume. It counts from when the host has
	// written the volume back and begins to hold it.
	MaxSeconds int `json:"maxSeconds"`
	// Pause demands that I/O rests during the hold, also with an engine that could let it go on. An escached
	// of an older version refuses this field.
	Pause bool `json:"pause,omitempty"`
}

// HoldResponse is the answer to POST /v1/hold. Until HeldUntil the image holds every write that was
// acknowledged before the hold, and does not change. I/O is suspended, or goes on in the cache only.
type HoldResponse struct {
	HeldUntil time.Time `json:"heldUntil"`
	// Paused says that no write is acknowledged until HeldUntil. Without it nobody may rely on that: an escached
	// of an older version never says so.
	Paused bool `json:"paused,omitempty"`
}

// ReleaseRequest is the body of POST /v1/release.
type ReleaseRequest struct {
	VolumeRef

	// Epoch is that of the attachment which the call is about. An older one than this host has seen is
	// CodeStaleEpoch. 0 is not checked: callers of a version without this field send none.
	Epoch int64 `json:"epoch,omitempty"`
}

// ResizeRequest is the body of POST /v1/resize.
type ResizeRequest struct {
	VolumeRef

	// Epoch is that of the attachment which the call is about. An older one than this host has seen is
	// CodeStaleEpoch. 0 is not checked: callers of a version without this field send none.
	Epoch     int64 `json:"epoch,omitempty"`
	SizeBytes int64 `json:"sizeBytes"`
}

// OutdatePeerRequest asks the arbiter, after a replica has lost its peer, whether it may go on
// without it. The answer 204 means yes, and that the record now says that the peer is outdated. Any
// other answer, or none, means no.
type OutdatePeerRequest struct {
	VolumeRef

	ImageID string `json:"imageID"`
	Node    string `json:"node"`
	Peer    string `json:"peer"`
	Epoch   int64  `json:"epoch"`
}

// OutdateSelfRequest tells the arbiter that the disk below a node's replica has failed, or that the node was booted.
// The answer 204 means that the record now says that this replica is outdated. The arbiter refuses if the
// peer's replica is outdated too: at least one copy stays current.
type OutdateSelfRequest struct {
	VolumeRef

	ImageID string `json:"imageID"`
	Node    string `json:"node"`
	Peer    string `json:"peer"`
	// Booted: the disk is in order, and the replica is about to be linked with that of a peer that may be frozen. The
	// arbiter refuses unless the volume is attached to the peer.
	Booted bool `json:"booted,omitempty"`
}

// VolumeRecord is the arbiter's record of a volume.
type VolumeRecord struct {
	VolumeRef

	ImageID string `json:"imageID,omitempty"`
	// AttachedNode is the only node that may write. Empty: no node may.
	AttachedNode string `json:"attachedNode"`
	// AttachedHostID is the identity of the machine that has the attached node's replica. Empty if the arbiter does not know.
	AttachedHostID string `json:"attachedHostID,omitempty"`
	// Epoch is the number of the newest attachment.
	Epoch int64 `json:"epoch"`
	// Replicas are the nodes that hold the cache. Empty if the arbiter does not know.
	Replicas []string `json:"replicas,omitempty"`
	// Outdated lists the nodes whose replica lacks acknowledged writes and must not be used.
	Outdated []string `json:"outdated"`
	// InCeph means that the image has every acknowledged write, and that no cache has got another one
	// since. False also if the arbiter does not know.
	InCeph bool `json:"inCeph,omitempty"`
	// InUse means that the attached node has mapped the image for this attachment. False also if the arbiter does not know.
	InUse bool `json:"inUse,omitempty"`
	// Fenced lists the nodes with a fenced client whose map may still be there.
	Fenced []string `json:"fenced,omitempty"`
	// DiscardedEpoch is the newest epoch in which an operator gave up what only the caches had. Nothing that a host has
	// acknowledged up to that epoch is needed, unless it is in Ceph. 0: it never was so, or the arbiter does not know.
	DiscardedEpoch int64 `json:"discardedEpoch,omitempty"`
}

// AbandonRequest is the body of POST /v1/abandon. Processes that use the device of a volume whose I/O is frozen are
// killed.
type AbandonRequest struct {
	VolumeRef

	// Epoch is that of an attachment on record. It is not older than that of this host's device.
	Epoch int64 `json:"epoch"`
}

// MapRequest is the body of POST /v1/map: an image is used on this host without a cache. Such an image
// is not attached to anybody, so there is no epoch.
type MapRequest struct {
	VolumeRef

	// ImageID is Ceph's internal id of the image. An image of that name with another id is
	// CodeIdentityMismatch.
	ImageID string `json:"imageID"`
	// ReadOnly: the kernel lets nobody write to the device. Otherwise the map has the image's exclusive
	// lock.
	ReadOnly bool `json:"readOnly,omitempty"`
}

// MapResponse is the answer to POST /v1/map.
type MapResponse struct {
	Device string `json:"device"`
}

// UnmapRequest is the body of POST /v1/unmap.
type UnmapRequest struct {
	VolumeRef
}

// TrimRequest is the body of POST /v1/trim.
type TrimRequest struct {
	VolumeRef

	// Epoch is that of the attachment which the call is about. An older one than this host has seen is
	// CodeStaleEpoch.
	Epoch int64 `json:"epoch"`
	// FSType is ext4 or xfs, and MountOptions are those with which users mount the filesystem. Nothing is
	// ever formatted.
	FSType       string   `json:"fsType"`
	MountOptions []string `json:"mountOptions,omitempty"`
	// StartByte is where to begin: NextByte of the answer before, or 0.
	StartByte int64 `json:"startByte,omitempty"`
	// TimeoutSeconds limits the call. When the time is up, the answer says where to go on.
	TimeoutSeconds int `json:"timeoutSeconds"`
}

// TrimResponse is the answer to POST /v1/trim.
type TrimResponse struct {
	// Done: the whole filesystem was trimmed, from StartByte on.
	Done bool `json:"done"`
	// NextByte is where the next call begins, if it is not done.
	NextByte int64 `json:"nextByte"`
	// TrimmedBytes is what the filesystem has discarded in this call. Ceph gives back whole objects only, and
	// what was discarded may have been free there already.
	TrimmedBytes int64 `json:"trimmedBytes"`
}
