package v1alpha1

import metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

// CacheVolume is the record of one volume. It is written before the first side effect, and every
// change of who may write is a compare-and-swap on it. Its name is the CSI volume id.
//
// +kubebuilder:object:root=true
// +kubebuilder:subresource:status
// +kubebuilder:resource:scope=Cluster,shortName=cv
// +kubebuilder:printcolumn:name="Phase",type=string,JSONPath=`.status.phase`
// +kubebuilder:printcolumn:name="Claim",type=string,JSONPath=`.metadata.annotations.escache\.io/claim`
// +kubebuilder:printcolumn:name="Size",type=string,JSONPath=`.status.summary.size`
// +kubebuilder:printcolumn:name="Cache",type=string,JSONPath=`.status.summary.cache`
// +kubebuilder:printcolumn:name="Group",type=string,JSONPath=`.spec.group`
// +kubebuilder:printcolumn:name="Replica1",type=string,JSONPath=`.spec.replicas[0]`
// +kubebuilder:printcolumn:name="Replica2",type=string,JSONPath=`.spec.replicas[1]`
// +kubebuilder:printcolumn:name="Attached",type=string,JSONPath=`.status.attachedNode`
// +kubebuilder:printcolumn:name="Truth",type=string,JSONPath=`.status.authority`
// +kubebuilder:printcolumn:name="Dirty",type=string,JSONPath=`.status.summary.dirty`
// +kubebuilder:printcolumn:name="Redundant",type=string,JSONPath=`.status.conditions[?(@.type=="Redundant")].status`
// +kubebuilder:printcolumn:name="Healthy",type=string,JSONPath=`.status.conditions[?(@.type=="Healthy")].status`
// +kubebuilder:printcolumn:name="Pool",type=string,priority=1,JSONPath=`.spec.pool`
// +kubebuilder:printcolumn:name="Image",type=string,priority=1,JSONPath=`.spec.image`
// +kubebuilder:printcolumn:name="Engine",type=string,priority=1,JSONPath=`.spec.cacheEngine`
// +kubebuilder:printcolumn:name="Epoch",type=integer,priority=1,JSONPath=`.status.epoch`
// +kubebuilder:printcolumn:name="Outdated",type=string,priority=1,JSONPath=`.status.summary.outdated`
// +kubebuilder:printcolumn:name="Age",type=date,JSONPath=`.metadata.creationTimestamp`
// +kubebuilder:validation:XValidation:rule="self.spec.group == oldSelf.spec.group || has(self.status) && has(self.status.move) && self.spec.group == self.status.move.group && self.spec.replicas == self.status.move.replicas && self.spec.port == self.status.move.port && self.spec.minor == self.status.move.minor",message="group is changed by csi-controller only: to move the volume, set spec.moveTo"
// +kubebuilder:validation:XValidation:rule="self.spec.port == oldSelf.spec.port || self.spec.group != oldSelf.spec.group",message="port is immutable within a group"
// +kubebuilder:validation:XValidation:rule="self.spec.minor == oldSelf.spec.minor || self.spec.group != oldSelf.spec.group",message="minor is immutable within a group"
// +kubebuilder:validation:XValidation:rule="self.spec.cacheBytes == oldSelf.spec.cacheBytes || has(oldSelf.spec.wantedCacheBytes) && self.spec.cacheBytes == oldSelf.spec.wantedCacheBytes && !has(self.spec.wantedCacheBytes) && has(self.spec.linkGeneration) && self.spec.linkGeneration > (has(oldSelf.spec.linkGeneration) ? oldSelf.spec.linkGeneration : 0) && !(has(self.status) && has(self.status.authority) && self.status.authority == 'Cache')",message="cacheBytes is changed by csi-controller only, while all data are in Ceph: to change the size, give the claim a VolumeAttributesClass with cacheSize"
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

// Modes of a cache, the same as in the escache HTTP API.
const (
	CacheModeWriteback    CacheMode = "writeback"
	CacheModeWritethrough CacheMode = "writethrough"
)

// CacheVolumeSpec says what the StorageClass and the claim asked for, and where the volume was
// placed.
//
// +kubebuilder:validation:XValidation:rule="has(self.dataPool) == has(oldSelf.dataPool)",message="dataPool is immutable"
// +kubebuilder:validation:XValidation:rule="has(self.layout) == has(oldSelf.layout)",message="layout is immutable"
// +kubebuilder:validation:XValidation:rule="has(self.fromSnapshot) == has(oldSelf.fromSnapshot)",message="fromSnapshot is immutable"
// +kubebuilder:validation:XValidation:rule="has(self.fromVolume) == has(oldSelf.fromVolume)",message="fromVolume is immutable"
// +kubebuilder:validation:XValidation:rule="has(self.cacheEngine) == has(oldSelf.cacheEngine)",message="cacheEngine is immutable"
// +kubebuilder:validation:XValidation:rule="has(self.adoption) == has(oldSelf.adoption) || has(self.adoption) && !(has(self.adoption.formatIfBlank) && self.adoption.formatIfBlank)",message="adoption cannot be removed, nor be added with formatIfBlank"
type CacheVolumeSpec struct {
	// ClusterID names the Ceph cluster.
	//
	// +required
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=63
	// +kubebuilder:validation:XValidation:rule="self == oldSelf",message="clusterID is immutable"
	ClusterID string `json:"clusterID"`

	// Pool holds the image, or only its header if DataPool is set.
	//
	// +required
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=128
	// +kubebuilder:validation:XValidation:rule="self == oldSelf",message="pool is immutable"
	Pool string `json:"pool"`

	// DataPool holds the image's data if that is not Pool, for example an erasure-coded pool.
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

	// SizeBytes is the size of the image. It can grow.
	//
	// +required
	// +kubebuilder:validation:Minimum=1048576
	// +kubebuilder:validation:Maximum=1125899906842624
	// +kubebuilder:validation:XValidation:rule="self % 4096 == 0",message="sizeBytes is a multiple of 4096"
	// +kubebuilder:validation:XValidation:rule="self >= oldSelf",message="a volume cannot shrink"
	SizeBytes int64 `json:"sizeBytes"`

	// MaxOvercommit is how many times as large as its pool the volume may become by an expansion. A
	// volume without it may become ten times as large.
	//
	// +kubebuilder:validation:Minimum=1
	// +kubebuilder:validation:Maximum=1000
	MaxOvercommit int64 `json:"maxOvercommit,omitempty"`

	// CacheBytes is the size of the cache on each of the two replicas. Only csi-controller changes it, when
	// it creates both again.
	//
	// +required
	// +kubebuilder:validation:Minimum=16777216
	// +kubebuilder:validation:Maximum=70368744177664
	// +kubebuilder:validation:XValidation:rule="self % 4194304 == 0",message="cacheBytes is a multiple of 4 MiB"
	CacheBytes int64 `json:"cacheBytes"`

	// WantedCacheBytes is the size that the cache is to get. The next attachment that finds all data in
	// Ceph creates both replicas again, with this size if there is room for it. It is absent when nothing
	// is to change. It equals CacheBytes if a change was taken back.
	//
	// +kubebuilder:validation:Minimum=16777216
	// +kubebuilder:validation:Maximum=70368744177664
	// +kubebuilder:validation:XValidation:rule="self % 4194304 == 0",message="wantedCacheBytes is a multiple of 4 MiB"
	WantedCacheBytes int64 `json:"wantedCacheBytes,omitempty"`

	// CacheEngine is the engine of the cache on both hosts. A volume without it has writecache.
	//
	// +kubebuilder:validation:XValidation:rule="self == oldSelf",message="cacheEngine is immutable"
	CacheEngine CacheEngine `json:"cacheEngine,omitempty"`

	// +required
	CacheMode CacheMode `json:"cacheMode"`

	CacheOptions CacheOptions `json:"cacheOptions,omitempty"`

	// Modifications counts how often a VolumeAttributesClass has changed the volume. status.applied
	// says which change the attached node has.
	//
	// +kubebuilder:validation:Minimum=0
	// +kubebuilder:validation:XValidation:rule="self >= oldSelf",message="modifications only grows"
	Modifications int64 `json:"modifications,omitempty"`

	// Layout of the image in Ceph. Fields that are not set had the driver's default when the image
	// was created.
	//
	// +kubebuilder:validation:XValidation:rule="self == oldSelf",message="layout is immutable"
	Layout *ImageLayout `json:"layout,omitempty"`

	// FromSnapshot is the name of the CacheSnapshot that the image was created from, and FromVolume
	// that of the CacheVolume that it is a clone of. If both are empty, the image began empty.
	//
	// +kubebuilder:validation:MaxLength=253
	// +kubebuilder:validation:XValidation:rule="self == oldSelf",message="fromSnapshot is immutable"
	FromSnapshot string `json:"fromSnapshot,omitempty"`
	// +kubebuilder:validation:MaxLength=253
	// +kubebuilder:validation:XValidation:rule="self == oldSelf",message="fromVolume is immutable"
	FromVolume string `json:"fromVolume,omitempty"`

	// UncachedFallback lets a node outside the volume's group attach it without a cache, while all its data
	// is in Ceph. The PersistentVolume must allow such a node, too.
	UncachedFallback bool `json:"uncachedFallback,omitempty"`

	// Adoption is set if the image was there before the volume, or before its record.
	Adoption *Adoption `json:"adoption,omitempty"`

	// Release gives the volume up and leaves its image, complete, in Ceph: csi-controller writes the
	// cache back, removes the replicas, and then this object. The volume cannot be attached
	// meanwhile. It can be set back to false until the phase is Releasing.
	Release bool `json:"release,omitempty"`

	// Group is the NodeGroup of the volume. Only csi-controller changes it, in a move to another group.
	//
	// +required
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=253
	Group string `json:"group"`

	// MoveTo asks csi-controller to move the volume to another NodeGroup. It does so while no node has
	// the volume, after the cache is written back, and then removes this field. Until the move is on
	// record in status.move the request can be taken back.
	MoveTo *MoveTarget `json:"moveTo,omitempty"`

	// Replicas are the two nodes that hold the cache. Placement's choice for the primary comes
	// first.
	//
	// +required
	// +listType=atomic
	// +kubebuilder:validation:MinItems=2
	// +kubebuilder:validation:MaxItems=2
	// +kubebuilder:validation:items:MinLength=1
	// +kubebuilder:validation:items:MaxLength=253
	// +kubebuilder:validation:XValidation:rule="self[0] != self[1]",message="the replicas are on two different nodes"
	Replicas []string `json:"replicas"`

	// LinkGeneration counts how often replicas were created again. The secret of the replication link is
	// derived from it. 0: the replicas were created by a version whose links have no secret.
	//
	// +kubebuilder:validation:Minimum=0
	LinkGeneration int64 `json:"linkGeneration,omitempty"`

	// Port is the TCP port of the replication link, unique within the group.
	//
	// +required
	// +kubebuilder:validation:Minimum=1024
	// +kubebuilder:validation:Maximum=65535
	Port int32 `json:"port"`

	// Minor is the minor number of the DRBD device, unique within the group.
	//
	// +required
	// +kubebuilder:validation:Minimum=0
	// +kubebuilder:validation:Maximum=1048575
	Minor int32 `json:"minor"`
}

// CacheOptions tune the cache. Zero means escached's default.
type CacheOptions struct {
	// HighWatermark and LowWatermark are percentages of the cache. Write-back starts when more than
	// HighWatermark is dirty and stops below LowWatermark.
	//
	// +kubebuilder:validation:Minimum=0
	// +kubebuilder:validation:Maximum=100
	HighWatermark int32 `json:"highWatermark,omitempty"`
	// +kubebuilder:validation:Minimum=0
	// +kubebuilder:validation:Maximum=100
	LowWatermark int32 `json:"lowWatermark,omitempty"`
	// MaxDirtyAgeSeconds limits how long a written block may stay in the cache only. More than a day
	// counts as a day.
	//
	// +kubebuilder:validation:Minimum=0
	MaxDirtyAgeSeconds int32 `json:"maxDirtyAgeSeconds,omitempty"`
	// WriteBackOrder is empty for merged, which may leave out what was overwritten since. Strict keeps the
	// image a state that the volume had at a flush; it needs the engine log.
	//
	// +kubebuilder:validation:Enum=strict
	WriteBackOrder WriteBackOrder `json:"writeBackOrder,omitempty"`
}

// WriteBackOrder says in which order write-back brings to Ceph what is dirty.
type WriteBackOrder string

// WriteBackOrderStrict is the only one on record: merged is what hosts do that know no order.
const WriteBackOrderStrict WriteBackOrder = "strict"

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

// VolumePhase is the stage of a volume's life.
type VolumePhase string

// Phases of a volume. An empty phase is Pending.
const (
	VolumePending  VolumePhase = "Pending"  // placed; the image may not exist yet
	VolumeReady    VolumePhase = "Ready"    // the image exists
	VolumeDeleting VolumePhase = "Deleting" // it cannot be attached any more
	// VolumeConflict: the record was lost and re-created, or was set back, and nothing proves which copy is
	// current. It cannot be attached before that is decided.
	VolumeConflict VolumePhase = "Conflict"
	// VolumeReleasing: everything is in Ceph, and the volume leaves its image. It cannot be attached
	// any more, and there is no way back.
	VolumeReleasing VolumePhase = "Releasing"
)

// Authority says where the truth about a volume's data is: in Ceph alone, or in the cache.
type Authority string

// Values of Authority. Empty means Ceph: nothing was ever written.
const (
	// AuthorityCeph: the cache is clean and stays clean. The volume can be attached to any node,
	// and replicas can be created and dropped freely.
	AuthorityCeph Authority = "Ceph"
	// AuthorityCache: the cache may hold dirty data. The volume can only be attached to a node
	// whose replica is current.
	AuthorityCache Authority = "Cache"
)

// CacheVolumeStatus says who may write to the volume, and in what state it was last seen.
type CacheVolumeStatus struct {
	Phase VolumePhase `json:"phase,omitempty"`
	// ImageID is Ceph's internal id of the image, read at the first attach.
	ImageID string `json:"imageID,omitempty"`

	Authority Authority `json:"authority,omitempty"`
	// AttachedNode is the only node that may write. Empty: no node may.
	AttachedNode string `json:"attachedNode,omitempty"`
	// Epoch is the number of the current or latest attachment: every attach adds one. escached
	// refuses an older epoch.
	Epoch int64 `json:"epoch,omitempty"`
	// Hosts are the identities of the machines on which the replicas were created. An answer of another
	// machine of the same name is not believed.
	//
	// +listType=map
	// +listMapKey=node
	Hosts []ReplicaHost `json:"hosts,omitempty"`
	// FlushEpoch marks an attachment that csi-controller made itself. While it equals Epoch, no pod
	// uses the volume: AttachedNode only writes the cache back, so that afterwards a node without a
	// current copy can attach the volume. Or, if Uncached is set too, it only gives the filesystem's free
	// space back to Ceph.
	FlushEpoch int64 `json:"flushEpoch,omitempty"`
	// UnstageEpoch is the attachment that Kubernetes wants to end while the attached node, which lives, still has the
	// device. A kubelet that was restarted does not know of a volume that no pod uses, and never unstages it. While this
	// equals Epoch, csi-node does so, if no pod uses the volume.
	UnstageEpoch int64 `json:"unstageEpoch,omitempty"`
	// Uncached is set while a node outside the group, or one that gives free space back to Ceph, has the
	// volume without a cache. All replicas are outdated then: they are created again by the next attachment in the group.
	Uncached *UncachedAttachment `json:"uncached,omitempty"`
	// Outdated lists the nodes whose replica is not current. A node leaves the list only after a
	// complete resync, or when its replica is created again.
	//
	// +listType=set
	Outdated []string `json:"outdated,omitempty"`
	// ClientAddress is the address of the Ceph client that the attached node maps the image with,
	// "IP:0/NONCE". Blocklisting it fences the node.
	ClientAddress string `json:"clientAddress,omitempty"`
	// Fenced lists Ceph clients of earlier holders that are on Ceph's blocklist or are about to be.
	// An entry is removed only when that client's map is known to be gone: removing it earlier
	// would let the old writer write again. A node of which no client was known has an entry without an
	// address, as long as it may still map the image: its client is fenced when it comes.
	//
	// +listType=atomic
	Fenced []FencedClient `json:"fenced,omitempty"`

	// Comparison is whether the record is as new as the image's metadata. The attached node asks for it.
	Comparison *RecordComparison `json:"comparison,omitempty"`

	// Applied says which change of cacheMode and cacheOptions has reached the attached node.
	Applied *AppliedModification `json:"applied,omitempty"`

	// Repair is set while the replica of a lost host is being replaced.
	Repair *ReplicaRepair `json:"repair,omitempty"`
	// Move is set while the volume goes to another group. It cannot be attached meanwhile, and the move
	// is finished whatever spec.moveTo says by then.
	Move *VolumeMove `json:"move,omitempty"`
	// Discarded describes the latest data loss that was accepted; see CacheDiscard.
	Discarded *DiscardedCache `json:"discarded,omitempty"`

	// WriteThrough lists the requests to send new writes straight to Ceph, each for one attachment.
	// Write-back returns when the last one is gone; a move of the volume ends them all. While there
	// is one, authority may be Ceph on an attached volume. Only internal/controller/drain changes
	// the list.
	//
	// +listType=map
	// +listMapKey=owner
	WriteThrough []WriteThroughClaim `json:"writeThrough,omitempty"`

	// DirtyBytes is updated at most every 10 s. The metrics have the current value.
	DirtyBytes    int64        `json:"dirtyBytes,omitempty"`
	LastFlushTime *metav1.Time `json:"lastFlushTime,omitempty"`
	// Resync is there while one replica is copied to the other, after an interruption or in a repair. It
	// is updated at most every 10 s.
	Resync *VolumeResync `json:"resync,omitempty"`

	// +listType=map
	// +listMapKey=type
	Conditions []metav1.Condition `json:"conditions,omitempty"`

	Summary CacheVolumeSummary `json:"summary,omitempty"`
}

// VolumeResync is how far a resync is, as the attached node saw it. No field is left out if it is zero: in
// a merge patch it would keep its old value.
type VolumeResync struct {
	// Node has the replica that is being made current.
	Node string `json:"node"`
	// Percent is rounded down.
	Percent int32 `json:"percent"`
	// LeftBytes is still to be copied. It is 0 if the node's escached does not say more than the percentage.
	LeftBytes int64 `json:"leftBytes"`
	// BytesPerSecond is the rate of the last moments; RemainingSeconds is the time left at this rate.
	BytesPerSecond   int64 `json:"bytesPerSecond"`
	RemainingSeconds int64 `json:"remainingSeconds"`
	// Seen is when that was so. While nothing changes it is not updated.
	Seen metav1.Time `json:"seen"`
}

// ReplicaHost is the machine on which a replica was created.
type ReplicaHost struct {
	Node string `json:"node"`
	// HostID identifies the disks of the machine (hostID of the escache API).
	HostID string `json:"hostID"`
}

// UncachedAttachment is an attachment without a cache.
type UncachedAttachment struct {
	// Epoch is the attachment. It says nothing of any other one.
	Epoch int64 `json:"epoch"`
	// HostID identifies the machine that has the volume, as in status.hosts.
	HostID string `json:"hostID"`
}

// FencedClient is a Ceph client that was blocklisted when its volume was taken over.
type FencedClient struct {
	// Node is the host that maps the image with this client. Empty if that is not certain.
	Node string `json:"node"`
	// HostID identifies the machine, as in status.hosts. Only that machine can prove that the map is
	// gone. Empty if it was not on record.
	HostID string `json:"hostID,omitempty"`
	// EarlierUntil is the end of an entry that the blocklist had of this client before it was fenced.
	// That entry is somebody else's: it is not removed before its end.
	EarlierUntil *metav1.Time `json:"earlierUntil,omitempty"`

	// Address is empty if no client of the node was known.
	Address string      `json:"address"`
	Epoch   int64       `json:"epoch"`
	Time    metav1.Time `json:"time"`
}

// ReplicaRepair describes the replacement of a lost replica while I/O goes on.
type ReplicaRepair struct {
	// Epoch is the attachment during which the repair runs. The repair ends with that attachment:
	// the next attach creates the replicas again if the cache is clean.
	Epoch int64 `json:"epoch"`
	// Lost is the node whose replica is being replaced. Substitute is the node that gets the new
	// one; empty until it is chosen.
	Lost       string `json:"lost"`
	Substitute string `json:"substitute,omitempty"`
	// Since is when the repair began.
	Since metav1.Time `json:"since"`
}

// WriteThroughClaim is one reason for a volume to write through.
type WriteThroughClaim struct {
	// Owner names who asked for it, such as "cacheflush/NAME".
	//
	// +required
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=300
	Owner string `json:"owner"`
	// Epoch is the attachment it is for. It has no effect in another one.
	Epoch int64 `json:"epoch"`
	// Since is the time of the request.
	Since metav1.Time `json:"since"`
}

// CacheVolumeSummary is shown by `kubectl get`. No program reads it.
type CacheVolumeSummary struct {
	Size  string `json:"size,omitempty"`
	Cache string `json:"cache,omitempty"`
	Dirty string `json:"dirty,omitempty"`
	// Outdated has the nodes of status.outdated: n1,n2.
	Outdated string `json:"outdated,omitempty"`
}

// CacheVolumeList is a list of CacheVolumes.
//
// +kubebuilder:object:root=true
type CacheVolumeList struct {
	metav1.TypeMeta `json:",inline"`
	metav1.ListMeta `json:"metadata,omitempty"`

	Items []CacheVolume `json:"items"`
}
