package v1alpha1

import metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

// CacheVolume is the record of intent of one volume: it is written before the first side effect, and every change of who
// may write is a compare-and-swap on it. Its name is the CSI volume id.
//
// +kubebuilder:object:root=true
// +kubebuilder:subresource:status
// +kubebuilder:resource:scope=Cluster,shortName=cv
// +kubebuilder:printcolumn:name="Phase",type=string,JSONPath=`.status.phase`
// +kubebuilder:printcolumn:name="Claim",type=string,JSONPath=`.metadata.annotations.escache\.io/claim`
// +kubebuilder:printcolumn:name="Size",type=string,JSONPath=`.status.summary.size`
// +kubebuilder:printcolumn:name="Cache",type=string,JSONPath=`.status.summary.cache`
// +kubebuilder:printcolumn:name="Group",type=string,JSONPath=`.spec.group`
// +kubebuilder:printcolumn:name="Replicas",type=string,JSONPath=`.spec.replicas`
// +kubebuilder:printcolumn:name="Attached",type=string,JSONPath=`.status.attachedNode`
// +kubebuilder:printcolumn:name="Truth",type=string,JSONPath=`.status.authority`
// +kubebuilder:printcolumn:name="Dirty",type=string,JSONPath=`.status.summary.dirty`
// +kubebuilder:printcolumn:name="Redundant",type=string,JSONPath=`.status.conditions[?(@.type=="Redundant")].status`
// +kubebuilder:printcolumn:name="Healthy",type=string,JSONPath=`.status.conditions[?(@.type=="Healthy")].status`
// +kubebuilder:printcolumn:name="Pool",type=string,priority=1,JSONPath=`.spec.pool`
// +kubebuilder:printcolumn:name="Image",type=string,priority=1,JSONPath=`.spec.image`
// +kubebuilder:printcolumn:name="Epoch",type=integer,priority=1,JSONPath=`.status.epoch`
// +kubebuilder:printcolumn:name="Outdated",type=string,priority=1,JSONPath=`.status.outdated`
// +kubebuilder:printcolumn:name="Age",type=date,JSONPath=`.metadata.creationTimestamp`
type CacheVolume struct {
	metav1.TypeMeta   `json:",inline"`
	metav1.ObjectMeta `json:"metadata,omitempty"`

	// +required
	Spec   CacheVolumeSpec   `json:"spec"`
	Status CacheVolumeStatus `json:"status,omitempty"`
}

// CacheMode says where a volume's writes are acknowledged.
//
// +kubebuilder:validation:Enum=writeback;writethrough
type CacheMode string

// Modes of a cache; they are those of the escache HTTP API.
const (
	CacheModeWriteback    CacheMode = "writeback"
	CacheModeWritethrough CacheMode = "writethrough"
)

// CacheVolumeSpec is what was asked for and where it was placed.
//
// +kubebuilder:validation:XValidation:rule="has(self.dataPool) == has(oldSelf.dataPool)",message="dataPool is immutable"
// +kubebuilder:validation:XValidation:rule="has(self.layout) == has(oldSelf.layout)",message="layout is immutable"
// +kubebuilder:validation:XValidation:rule="has(self.fromSnapshot) == has(oldSelf.fromSnapshot)",message="fromSnapshot is immutable"
type CacheVolumeSpec struct {
	// ClusterID names the Ceph cluster.
	//
	// +required
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=63
	// +kubebuilder:validation:XValidation:rule="self == oldSelf",message="clusterID is immutable"
	ClusterID string `json:"clusterID"`

	// Pool holds the image, or its header where DataPool has the data.
	//
	// +required
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=128
	// +kubebuilder:validation:XValidation:rule="self == oldSelf",message="pool is immutable"
	Pool string `json:"pool"`

	// DataPool holds the image's data where that is not Pool, for example an erasure-coded one.
	//
	// +kubebuilder:validation:MaxLength=128
	// +kubebuilder:validation:XValidation:rule="self == oldSelf",message="dataPool is immutable"
	DataPool string `json:"dataPool,omitempty"`

	// Image is the RBD image's name.
	//
	// +required
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=253
	// +kubebuilder:validation:XValidation:rule="self == oldSelf",message="image is immutable"
	Image string `json:"image"`

	// SizeBytes of the image. It can grow.
	//
	// +required
	// +kubebuilder:validation:Minimum=1048576
	// +kubebuilder:validation:Maximum=1125899906842624
	// +kubebuilder:validation:XValidation:rule="self % 4096 == 0",message="sizeBytes is a multiple of 4096"
	// +kubebuilder:validation:XValidation:rule="self >= oldSelf",message="a volume cannot shrink"
	SizeBytes int64 `json:"sizeBytes"`

	// CacheBytes is the cache's size on each of the two replicas.
	//
	// +required
	// +kubebuilder:validation:Minimum=16777216
	// +kubebuilder:validation:Maximum=70368744177664
	// +kubebuilder:validation:XValidation:rule="self % 4194304 == 0",message="cacheBytes is a multiple of 4 MiB"
	// +kubebuilder:validation:XValidation:rule="self == oldSelf",message="cacheBytes is immutable"
	CacheBytes int64 `json:"cacheBytes"`

	// +required
	// +kubebuilder:validation:XValidation:rule="self == oldSelf",message="cacheMode is immutable"
	CacheMode CacheMode `json:"cacheMode"`

	CacheOptions CacheOptions `json:"cacheOptions,omitempty"`

	// Layout of the image in Ceph; absent fields are the driver's defaults at the time of creation.
	//
	// +kubebuilder:validation:XValidation:rule="self == oldSelf",message="layout is immutable"
	Layout *ImageLayout `json:"layout,omitempty"`

	// FromSnapshot is the name of the CacheSnapshot that the image was made of; empty for an image that was empty.
	//
	// +kubebuilder:validation:MaxLength=253
	// +kubebuilder:validation:XValidation:rule="self == oldSelf",message="fromSnapshot is immutable"
	FromSnapshot string `json:"fromSnapshot,omitempty"`

	// Group is the NodeGroup the volume lives in.
	//
	// +required
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=253
	// +kubebuilder:validation:XValidation:rule="self == oldSelf",message="group is immutable"
	Group string `json:"group"`

	// Replicas are the two nodes that hold the cache; placement's choice of primary comes first.
	//
	// +required
	// +listType=atomic
	// +kubebuilder:validation:MinItems=2
	// +kubebuilder:validation:MaxItems=2
	// +kubebuilder:validation:items:MinLength=1
	// +kubebuilder:validation:items:MaxLength=253
	// +kubebuilder:validation:XValidation:rule="self[0] != self[1]",message="the replicas are on two different nodes"
	Replicas []string `json:"replicas"`

	// Port is the TCP port of the replication link, unique within the group.
	//
	// +required
	// +kubebuilder:validation:Minimum=1024
	// +kubebuilder:validation:Maximum=65535
	// +kubebuilder:validation:XValidation:rule="self == oldSelf",message="port is immutable"
	Port int32 `json:"port"`

	// Minor is the minor number of the DRBD device, unique within the group.
	//
	// +required
	// +kubebuilder:validation:Minimum=0
	// +kubebuilder:validation:Maximum=1048575
	// +kubebuilder:validation:XValidation:rule="self == oldSelf",message="minor is immutable"
	Minor int32 `json:"minor"`
}

// CacheOptions tune the cache; zero means escached's default.
type CacheOptions struct {
	// HighWatermark and LowWatermark are percent of the cache: write-back starts above the one and stops below the other.
	//
	// +kubebuilder:validation:Minimum=0
	// +kubebuilder:validation:Maximum=100
	HighWatermark int32 `json:"highWatermark,omitempty"`
	// +kubebuilder:validation:Minimum=0
	// +kubebuilder:validation:Maximum=100
	LowWatermark int32 `json:"lowWatermark,omitempty"`
	// MaxDirtyAgeSeconds bounds how long a written block stays only in the cache.
	//
	// +kubebuilder:validation:Minimum=0
	MaxDirtyAgeSeconds int32 `json:"maxDirtyAgeSeconds,omitempty"`
}

// ImageLayout is how the image is laid out in Ceph.
type ImageLayout struct {
	// Features are RBD's names of image features.
	//
	// +listType=atomic
	// +kubebuilder:validation:MaxItems=16
	// +kubebuilder:validation:items:MaxLength=32
	Features []string `json:"features,omitempty"`
	// ObjectSizeBytes is a power of two between 4 KiB and 32 MiB.
	ObjectSizeBytes int64 `json:"objectSizeBytes,omitempty"`
	StripeUnitBytes int64 `json:"stripeUnitBytes,omitempty"`
	StripeCount     int64 `json:"stripeCount,omitempty"`
}

// VolumePhase is where in its life a volume is.
type VolumePhase string

// Phases of a volume. An empty phase is Pending.
const (
	VolumePending  VolumePhase = "Pending"  // placed; the image may not be there yet
	VolumeReady    VolumePhase = "Ready"    // the image is there
	VolumeDeleting VolumePhase = "Deleting" // nothing may attach it any more
)

// Authority says where the truth about a volume's data is.
type Authority string

// Places of the truth. An empty authority is Ceph: nothing was ever written.
const (
	// AuthorityCeph: the cache is clean and stays so. Any node may have the volume; replicas can be laid or dropped at will.
	AuthorityCeph Authority = "Ceph"
	// AuthorityCache: there may be dirty data. Only a node whose replica is current may have the volume.
	AuthorityCache Authority = "Cache"
)

// CacheVolumeStatus is who may write, and what was seen of the volume.
type CacheVolumeStatus struct {
	Phase VolumePhase `json:"phase,omitempty"`
	// ImageID is Ceph's own id of the image, read at the first attach.
	ImageID string `json:"imageID,omitempty"`

	Authority Authority `json:"authority,omitempty"`
	// AttachedNode is the only node that may write; empty while nobody may.
	AttachedNode string `json:"attachedNode,omitempty"`
	// Epoch grows by one with every attach. escached refuses an older one.
	Epoch int64 `json:"epoch,omitempty"`
	// FlushEpoch marks an attachment of csi-controller itself: while it equals Epoch, no pod has the volume, and AttachedNode
	// has it only to write its cache back, so that a node without a current copy can have it.
	FlushEpoch int64 `json:"flushEpoch,omitempty"`
	// Outdated are replica nodes whose copy is not current. Only a completed resync, or a replica laid anew, takes one off.
	//
	// +listType=set
	Outdated []string `json:"outdated,omitempty"`
	// ClientAddress is the Ceph client of the attached node's map, "IP:0/NONCE": what to blocklist to fence it.
	ClientAddress string `json:"clientAddress,omitempty"`
	// Fenced are Ceph clients of earlier holders, on Ceph's blocklist or about to be. An entry leaves only when that
	// client's map is known to be gone: removing it earlier would revive the old writer.
	//
	// +listType=atomic
	Fenced []FencedClient `json:"fenced,omitempty"`

	// Repair is there while the replica of a lost host is being replaced.
	Repair *ReplicaRepair `json:"repair,omitempty"`
	// Discarded is the last loss that was accepted; see CacheDiscard.
	Discarded *DiscardedCache `json:"discarded,omitempty"`

	// WriteThrough lists who wants new writes to pass through to Ceph, each for one attachment. Write-back is restored when the
	// last of them has gone; a move of the volume ends them all. While somebody is on it, authority may be Ceph on an attached
	// volume. See internal/controller/drain, which alone changes it.
	//
	// +listType=map
	// +listMapKey=owner
	WriteThrough []WriteThroughClaim `json:"writeThrough,omitempty"`

	// DirtyBytes is written at most once in 10 s; the metrics have it live.
	DirtyBytes    int64        `json:"dirtyBytes,omitempty"`
	LastFlushTime *metav1.Time `json:"lastFlushTime,omitempty"`

	// +listType=map
	// +listMapKey=type
	Conditions []metav1.Condition `json:"conditions,omitempty"`

	Summary CacheVolumeSummary `json:"summary,omitempty"`
}

// FencedClient is a Ceph client that was shut out by a forced hand-over.
type FencedClient struct {
	// Node is the host of that client's map; empty where it is not known to be its own.
	Node    string      `json:"node"`
	Address string      `json:"address"`
	Epoch   int64       `json:"epoch"`
	Time    metav1.Time `json:"time"`
}

// ReplicaRepair is how a volume gets its second replica back without stopping I/O.
type ReplicaRepair struct {
	// Epoch is the attachment in which the repair runs. It ends with it: the next attach lays replicas anew where it can.
	Epoch int64 `json:"epoch"`
	// Lost is the node whose replica is replaced, Substitute the one that gets it; empty while that is not chosen.
	Lost       string `json:"lost"`
	Substitute string `json:"substitute,omitempty"`
	// Since is when the repair began.
	Since metav1.Time `json:"since"`
}

// DiscardedCache is a loss of acknowledged writes that somebody has accepted.
type DiscardedCache struct {
	// Request is the UID of the CacheDiscard, RequestedBy who made it.
	Request     string `json:"request"`
	RequestedBy string `json:"requestedBy"`
	// Nodes had the only current copies; BytesAtStake were dirty when that was last reported.
	//
	// +listType=atomic
	Nodes        []string    `json:"nodes,omitempty"`
	BytesAtStake int64       `json:"bytesAtStake"`
	Epoch        int64       `json:"epoch"`
	Time         metav1.Time `json:"time"`
}

// WriteThroughClaim is one reason for a volume to write through.
type WriteThroughClaim struct {
	// Owner is who asked, such as "cacheflush/NAME".
	//
	// +required
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=300
	Owner string `json:"owner"`
	// Epoch is the attachment it is for; in another one the claim counts for nothing.
	Epoch int64 `json:"epoch"`
	// Since is when it was made.
	Since metav1.Time `json:"since"`
}

// CacheVolumeSummary is for people who read `kubectl get`; nothing decides by it.
type CacheVolumeSummary struct {
	Size  string `json:"size,omitempty"`
	Cache string `json:"cache,omitempty"`
	Dirty string `json:"dirty,omitempty"`
}

// Condition types of a CacheVolume.
const (
	// ConditionReady is true once the image is there.
	ConditionReady = "Ready"
	// ConditionRedundant is true while every acknowledged write is on two hosts or in Ceph.
	ConditionRedundant = "Redundant"
	// ConditionSynced is false while a replica is catching up.
	ConditionSynced = "Synced"
	// ConditionRepairing is true while the replica of a lost host is being replaced, or waits for that; the message says how far.
	ConditionRepairing = "Repairing"
	// ConditionHealthy is false while the cache reports an error; the message says which.
	ConditionHealthy = "Healthy"
)

// ReasonPeerLost is the reason of ConditionRedundant False: the other replica does not answer, and
// the holder goes on without it.
const ReasonPeerLost = "PeerLost"

// CacheVolumeList is a list of CacheVolumes.
//
// +kubebuilder:object:root=true
type CacheVolumeList struct {
	metav1.TypeMeta `json:",inline"`
	metav1.ListMeta `json:"metadata,omitempty"`

	Items []CacheVolume `json:"items"`
}
