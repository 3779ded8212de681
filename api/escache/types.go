// Package escache holds the wire types of the escache HTTP API v1.
//
// openapi.yaml beside this file is the contract; these types follow it. Sizes are bytes, durations are whole seconds
// where the name says so. An implementation is checked by the conformance package below this one.
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
	PathHold       = "/v1/hold"
	PathRelease    = "/v1/release"
	PathResize     = "/v1/resize"
	PathAbandon    = "/v1/abandon"
)

// Paths of the arbiter's calls: escached asks, csi-node serves.
const (
	PathOutdatePeer = "/v1/outdate-peer"
	PathRecord      = "/v1/record"
)

// VolumeRef names a volume by the RBD image behind it.
type VolumeRef struct {
	Pool  string `json:"pool"`
	Image string `json:"image"`
}

// Node answers GET /v1/node.
type Node struct {
	Name    string `json:"name"`
	Version string `json:"version"`
	Healthy bool   `json:"healthy"`
	// Reasons says, a sentence each, why the node is not healthy. Empty when it is.
	Reasons            []string `json:"reasons,omitempty"`
	CacheCapacityBytes int64    `json:"cacheCapacityBytes"`
	// CacheAllocatedBytes is what replicas take. What is neither that nor free has somebody else taken of the cache's disks.
	CacheAllocatedBytes int64 `json:"cacheAllocatedBytes"`
	CacheFreeBytes      int64 `json:"cacheFreeBytes"`
	// CacheReadSecondsAgo is how old the three sizes are. Whatever a finished call of this API changed is in them.
	CacheReadSecondsAgo int64 `json:"cacheReadSecondsAgo,omitempty"`
	// DirtyBytes is the sum over the volumes connected here.
	DirtyBytes int64  `json:"dirtyBytes"`
	Volumes    int    `json:"volumes"`
	Primaries  int    `json:"primaries"`
	MaxVolumes int    `json:"maxVolumes"`
	Kernel     Kernel `json:"kernel"`
}

// Kernel lists the kernel parts an escache host needs, as found on the running kernel. An absent part has version "".
type Kernel struct {
	Release    string `json:"release"`
	DRBD       string `json:"drbd"`
	Writecache string `json:"writecache"`
	RBD        bool   `json:"rbd"`
}

// State is what a node has of a volume.
type State string

// States of a volume on a node.
const (
	StateAbsent    State = "absent"    // no replica here
	StateStandby   State = "standby"   // a replica, not connected here
	StateConnected State = "connected" // the device exists here
	StateFlushing  State = "flushing"  // connected, a flush is running
	StateDraining  State = "draining"  // connected, new writes pass through to Ceph
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

// Mode says where new writes go.
type Mode string

// Modes of a cache.
const (
	ModeWriteback    Mode = "writeback"
	ModeWritethrough Mode = "writethrough"
)

// Status answers GET /v1/status.
type Status struct {
	Volumes []VolumeStatus `json:"volumes"`
}

// VolumeStatus is one volume as one node sees it.
type VolumeStatus struct {
	VolumeRef

	ImageID    string `json:"imageID,omitempty"`
	State      State  `json:"state"`
	Role       Role   `json:"role"`
	Epoch      int64  `json:"epoch"`
	Mode       Mode   `json:"mode,omitempty"`
	CacheBytes int64  `json:"cacheBytes"`
	// DirtyBytes is nil where it is not known: on a standby, only its peer or a look at the disk can tell.
	DirtyBytes *int64 `json:"dirtyBytes"`
	SizeBytes  int64  `json:"sizeBytes"`
	Device     string `json:"device,omitempty"`
	Port       int    `json:"port,omitempty"`
	Minor      int    `json:"minor"`
	// DiskState is DRBD's state of the local disk: UpToDate, Outdated, Inconsistent, Diskless, …
	DiskState string `json:"diskState,omitempty"`
	Peers     []Peer `json:"peers,omitempty"`
	// SyncedPercent is 100 unless a resync is running.
	SyncedPercent float64 `json:"syncedPercent"`
	// IOSuspended is true while DRBD keeps I/O frozen until its arbiter has answered.
	IOSuspended bool `json:"ioSuspended,omitempty"`
	// ClientAddress is the Ceph client of this volume's own map, "IP:0/NONCE", as `ceph osd blocklist` takes it.
	ClientAddress string     `json:"clientAddress,omitempty"`
	HeldUntil     *time.Time `json:"heldUntil,omitempty"`
	Error         *Fault     `json:"error,omitempty"`
}

// Peer is the other replica as seen from here.
type Peer struct {
	Name            string `json:"name"`
	Address         string `json:"address"`
	ConnectionState string `json:"connectionState"`
	DiskState       string `json:"diskState"`
}

// Fault is a lasting error of a volume.
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

	// ImageID is Ceph's own id of the image; empty where the caller does not know it yet.
	ImageID    string        `json:"imageID,omitempty"`
	SizeBytes  int64         `json:"sizeBytes"`
	CacheBytes int64         `json:"cacheBytes"`
	Nodes      []ReplicaNode `json:"nodes"`
	Port       int           `json:"port"`
	Minor      int           `json:"minor"`
	// Join says that this copy starts empty beside one that holds the volume, and must be synchronised from it before it counts. It means
	// nothing to a replica that is here already and was used.
	Join bool `json:"join,omitempty"`
}

// ConnectOptions tune a cache. The zero value means the implementation's defaults.
type ConnectOptions struct {
	Mode Mode `json:"mode,omitempty"`
	// HighWatermark and LowWatermark are percent of the cache: write-back starts above the one, stops below the other.
	HighWatermark int `json:"highWatermark,omitempty"`
	LowWatermark  int `json:"lowWatermark,omitempty"`
	// MaxDirtyAgeSeconds bounds how long a written block stays only in the cache; 0 means no bound.
	MaxDirtyAgeSeconds int `json:"maxDirtyAgeSeconds,omitempty"`
}

// ConnectRequest is the body of POST /v1/dev_connect.
type ConnectRequest struct {
	VolumeRef

	ImageID string         `json:"imageID,omitempty"`
	Epoch   int64          `json:"epoch"`
	Options ConnectOptions `json:"options"`
}

// ConnectResponse answers POST /v1/dev_connect.
type ConnectResponse struct {
	Device        string `json:"device"`
	ImageID       string `json:"imageID"`
	ClientAddress string `json:"clientAddress"`
}

// FlushRequest is the body of POST /v1/flush.
type FlushRequest struct {
	VolumeRef

	// TimeoutSeconds bounds the call; when time is up the answer says what is left.
	TimeoutSeconds int `json:"timeoutSeconds"`
}

// FlushResponse answers POST /v1/flush, also when time was up first: then Clean is false.
type FlushResponse struct {
	Clean      bool  `json:"clean"`
	DirtyBytes int64 `json:"dirtyBytes"`
}

// StopRequest is the body of POST /v1/stop.
type StopRequest struct {
	VolumeRef
}

// ModeRequest is the body of POST /v1/mode.
type ModeRequest struct {
	VolumeRef

	Mode Mode `json:"mode"`
}

// HoldRequest is the body of POST /v1/hold.
type HoldRequest struct {
	VolumeRef

	// MaxSeconds is when the watchdog releases the volume by itself.
	MaxSeconds int `json:"maxSeconds"`
}

// HoldResponse answers POST /v1/hold: I/O is suspended and the image holds everything until then.
type HoldResponse struct {
	HeldUntil time.Time `json:"heldUntil"`
}

// ReleaseRequest is the body of POST /v1/release.
type ReleaseRequest struct {
	VolumeRef
}

// ResizeRequest is the body of POST /v1/resize.
type ResizeRequest struct {
	VolumeRef

	SizeBytes int64 `json:"sizeBytes"`
}

// OutdatePeerRequest is what escached asks its arbiter when a replica's peer is lost: may I go on without it?
// A 204 answer grants it: the peer is on record as outdated. Any other answer, or none, does not.
type OutdatePeerRequest struct {
	VolumeRef

	ImageID string `json:"imageID"`
	Node    string `json:"node"`
	Peer    string `json:"peer"`
	Epoch   int64  `json:"epoch"`
}

// VolumeRecord is what the arbiter has on record of a volume.
type VolumeRecord struct {
	VolumeRef

	ImageID string `json:"imageID,omitempty"`
	// AttachedNode may write; empty where none may.
	AttachedNode string `json:"attachedNode"`
	// Epoch is that of the newest attachment.
	Epoch int64 `json:"epoch"`
	// Replicas are the nodes that hold the cache; empty where the arbiter does not know.
	Replicas []string `json:"replicas,omitempty"`
	// Outdated are the nodes whose replica lacks acknowledged writes and must not be used.
	Outdated []string `json:"outdated"`
}

// AbandonRequest is the body of POST /v1/abandon.
type AbandonRequest struct {
	VolumeRef

	// Epoch of the attachment on record, newer than the one that this host's device is of.
	Epoch int64 `json:"epoch"`
}
