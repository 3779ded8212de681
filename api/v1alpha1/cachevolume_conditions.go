package v1alpha1

// Condition types of a CacheVolume.
const (
	// ConditionReady is true once the image exists.
	ConditionReady = "Ready"
	// ConditionRedundant is true while every acknowledged write is on two hosts or in Ceph.
	ConditionRedundant = "Redundant"
	// ConditionSynced is false while a replica is being resynchronised.
	ConditionSynced = "Synced"
	// ConditionRepairing is true while the replica of a lost host is being replaced, or waits to
	// be. The same goes for a copy that an evacuation moves. The message says how far it is.
	ConditionRepairing = "Repairing"
	// ConditionHealthy is false while the cache reports an error. The message has the error.
	ConditionHealthy = "Healthy"
	// ConditionRecordBehindDisks is true if a host or the image has seen a later attachment than the
	// record speaks of, as after a restore of an old etcd. Nothing is attached, connected, moved or
	// deleted then. A rebuild of the record, or the next attachment that begins, removes it.
	ConditionRecordBehindDisks = "RecordBehindDisks"
	// ConditionCopyProven is false while the phase is Conflict. The message has what image and hosts say.
	ConditionCopyProven = "CopyProven"
	// ConditionModified is there once a VolumeAttributesClass has changed an attached volume. It is
	// false while the change has not reached the attached node. The message says why.
	ConditionModified = "Modified"
	// ConditionReleased is there while spec.release is set. It is never true: the object is gone
	// then. The message says what the release waits for.
	ConditionReleased = "Released"
	// ConditionUncached is there once a node outside the volume's group has had it without a cache, until
	// it is attached in its group again. It is true while such a node has it.
	ConditionUncached = "Uncached"
	// ConditionMoving is there while the volume is to go, or goes, to another group. It is true once the
	// move has begun. The message says what it waits for.
	ConditionMoving = "Moving"
	// ConditionCacheResized is there while the cache waits for another size. It is never true: the
	// condition goes when the cache has that size. The message says what it waits for.
	ConditionCacheResized = "CacheResized"
)

// ReasonNoOtherHost is a reason of ConditionRepairing while that is false: an evacuation wants the second copy
// on another host, and no other host of the group can take it. The volume writes through.
const ReasonNoOtherHost = "NoOtherHost"

// Reasons of ConditionCacheResized.
const (
	// ReasonResizeAttached: a node has the volume. The cache gets its size when it is attached again.
	ReasonResizeAttached = "Attached"
	// ReasonResizeDetached: no node has the volume, and all data are in Ceph. The next attachment makes the
	// change.
	ReasonResizeDetached = "NextAttachment"
	// ReasonResizeDirty: no node has the volume, and the cache may be dirty. The next attachment takes it
	// over as it is, and the one after it makes the change.
	ReasonResizeDirty = "NotInCeph"
	// ReasonResizeNoRoom: the attachment that was to make the change found no two hosts with room, and
	// kept the size.
	ReasonResizeNoRoom = "NoRoom"
	// ReasonResizeNoMemory: the node of that attachment has too little memory for the new size.
	ReasonResizeNoMemory = "NoMemory"
)

// Reasons of ConditionUncached.
const (
	// ReasonUncachedOutside: the attached node is not in the volume's group.
	ReasonUncachedOutside = "OutsideGroup"
	// ReasonUncachedDetached: no node has the volume. Its replicas are old, and are created again.
	ReasonUncachedDetached = "Detached"
)

// Reasons of ConditionMoving.
const (
	// ReasonMoveAttached: a node has the volume, or a pod that is about to run there will. The move is
	// made when it is detached.
	ReasonMoveAttached = "Attached"
	// ReasonMoveRefused: nothing was changed. It is tried again, but somebody has to act first.
	ReasonMoveRefused = "Refused"
	// ReasonMoveWaiting: nothing was changed yet. It is tried again, and what it waits for may pass.
	ReasonMoveWaiting = "Waiting"
	// ReasonMoveUnderWay: the move has begun, and goes on until it is done.
	ReasonMoveUnderWay = "UnderWay"
)

// Reasons of ConditionReleased.
const (
	// ReasonReleaseRefused: nothing was changed. It is tried again, but somebody has to act first.
	ReasonReleaseRefused = "Refused"
	// ReasonReleasePending: it is being done, or waits for something that may pass.
	ReasonReleasePending = "Pending"
)

// Reasons of ConditionModified.
const (
	// ReasonModificationApplied: the attached node has the newest change.
	ReasonModificationApplied = "Applied"
	// ReasonModificationPending: it is tried again until the attached node has it, or the volume is
	// attached again.
	ReasonModificationPending = "Pending"
	// ReasonModificationRefused: the node's escached does not take these values. It is not tried again
	// before the next change or attachment.
	ReasonModificationRefused = "Refused"
)

// Reasons of ConditionRedundant. All but ReasonTwoCopies say why a volume has one current copy. csi-node
// writes what the attached node sees; csi-controller puts the reason in the place of ReasonPeerLost if
// it knows more.
const (
	// ReasonTwoCopies: every acknowledged write is on two hosts or in Ceph.
	ReasonTwoCopies = "TwoCopies"
	// ReasonPeerLost: the other replica does not answer, and the attached node goes on without it. Why
	// is not known (yet).
	ReasonPeerLost = "PeerLost"
	// ReasonPeerOutdated: the other replica catches up, or is about to.
	ReasonPeerOutdated = "PeerOutdated"
	// ReasonLocalDiskLost: the disk below the attached node's own replica has failed.
	ReasonLocalDiskLost = "LocalDiskLost"
	// ReasonPeerDiskLost: the disk below the other replica has failed.
	ReasonPeerDiskLost = "PeerDiskLost"
	// ReasonHostSilent: the other replica's host has not answered for some time.
	ReasonHostSilent = "HostSilent"
	// ReasonHostDeleted: Kubernetes has no node of that name any more.
	ReasonHostDeleted = "HostDeleted"
	// ReasonHostLeft: the other replica's host is not in the volume's NodeGroup any more.
	ReasonHostLeft = "HostLeftGroup"
	// ReasonHostReinstalled: that host answers, and has other disks than those on which the replica was
	// created.
	ReasonHostReinstalled = "HostReinstalled"
	// ReasonReplicaMissing: that host has the same disks, and no replica on them.
	ReasonReplicaMissing = "ReplicaMissing"
	// ReasonCopyStaysAway: that host answers, and the replica has not come back for long.
	ReasonCopyStaysAway = "CopyStaysAway"
)
