package model

// Guard is one precaution of the protocol. The explorer can go without any of them.
type Guard int

// The guards.
const (
	FenceBeforeDetach Guard = iota
	FenceForYears
	FenceKeptWhileMapped
	HandlerAsks
	ArbiterComparesAttachment
	OutdatedRefused
	EpochCompared
	ClientOnRecordBeforeUse
	AuthorityReadByAttach
	AuthorityCacheBeforeWriteBack
	CleanReadBeforeAuthorityCeph
	SettledAsksEveryReplica
	ResyncBeforeCounted
	RecordReadBeforePeer
	GrantAlwaysWrites
	StopOnlyClean
	OldReplicasDropped
	CompareAndSwap
	NoForce
	SilentBeforeRecovery
	OnlyTheHostItself
	OwnCopyConfirmed
	FailedDiskMarked
	FailedDiskReported
	FailedDiskRefilled
	LastCopyStays
	WaitsForCsiNode
	PrimaryPeerSeen
	PeerHasWhatIsGivenUp
	FencedMapNotUsed
	DrainedInOneAnswer
	CacheBeforeRestore
	DiscardOfThatEpoch
	DiscardOutOfReach
	DiscardFences
	DiscardOutdatesAll
	EpochsReported
	DirtyKept
	DiscardedUpTo
	EntryReplaced
	OutsidersLeft
	SameMachineUnfences
	ModeOfTheRecord
	LostOutdatedFirst
	CopyLeavesOnlyFromCeph
	DrainedUntilNewCounts
	NewCopyOutdated
	PermitFromArbiter
	PermitInStatus
	AskedIsAPermit
	FreezesBeforeDropped
	PermitReadBeforeLink
	PermitEndsWithAttachment
	RenewedOutdated
	MovedOnlyFromCeph
	LeftoversDropped
	ResizedAfterDrop
	OutsideOnlyFromCeph
	OutsideOutdatesAll
	OutsideMachineKnown
	CephHasWhatIsGivenUp
	MissingOutdated
	RenewedTogether
	FencedWithoutClient
	LateFenced
	UnstageWaits
	LateFencedInUse
	FencesKept
	NoteReadByAttach
	NoteReadByStage
	NotedBeforeUse
	NoLaterKnown
	TrimOnlyFromCeph
	TrimOutdatesAll
	BootedOnRecordFirst
	BootedAlwaysWrites
	BootedWaitsForUser
	BootedWaitsForFenced
	PeerWaitsForBooted
	guardsEnd
)

// Precautions tells what each guard is.
var Precautions = map[Guard]string{
	FenceBeforeDetach:             "a node that is given up is on Ceph's blocklist before the record says that it is detached",
	FenceForYears:                 "a blocklist entry has a life of years",
	FenceKeptWhileMapped:          "a blocklist entry is removed only when that map is known to be gone",
	HandlerAsks:                   "DRBD's handler asks the arbiter before I/O goes on, or a promotion is made, without the peer",
	ArbiterComparesAttachment:     "the arbiter compares attached node and epoch",
	OutdatedRefused:               "a copy that is on record as outdated is refused by attach, by NodeStage and by the arbiter",
	EpochCompared:                 "NodeStage compares attached node and epoch with the record",
	ClientOnRecordBeforeUse:       "the client's address is on record, by compare-and-swap, before the device is used",
	AuthorityReadByAttach:         "attach asks where the truth is before replicas are laid anew",
	AuthorityCacheBeforeWriteBack: "authority Cache is on record before anything is acknowledged by a cache",
	CleanReadBeforeAuthorityCeph:  "authority Ceph is recorded only after a positive zero was read",
	SettledAsksEveryReplica:       "a detached volume is clean only when each replica has answered or is on record as outdated",
	ResyncBeforeCounted:           "a returned copy counts only after a completed resync",
	RecordReadBeforePeer:          "before a peer is counted again the record is read, and after it the peer's state",
	GrantAlwaysWrites:             "a grant writes the record also where the peer is outdated already",
	StopOnlyClean:                 "a device is stopped only when nothing is dirty",
	OldReplicasDropped:            "old replicas are dropped before a volume is laid anew",
	CompareAndSwap:                "the record is written only as it was read",
	NoForce:                       "a promotion is never forced",
	SilentBeforeRecovery:          "what escached says before it has recovered is not believed",
	OnlyTheHostItself:             "what another machine says in a host's place is not believed",
	OwnCopyConfirmed:              "a take-over lays no replica in place of the copy that it is to read from",
	FailedDiskMarked:              "a copy whose disk has failed is marked, and then not promoted alone unless it is the only one",
	FailedDiskReported:            "a host whose disk has failed is on record, or has left its peer, before writes go on with one copy",
	FailedDiskRefilled:            "a copy whose disk had failed is filled by its peer before DRBD compares the two",
	LastCopyStays:                 "a host whose disk has failed is not put on record as outdated if it has the only current copy",
	WaitsForCsiNode:               "a host whose disk fails acknowledges nothing before the record counts its current peer",
	PrimaryPeerSeen:               "nothing is settled, and nobody is clean, while a standby's linked peer is Primary",
	PeerHasWhatIsGivenUp:          "a fenced holder whose link is up gives its device up only if the peer is current, and counted",
	CephHasWhatIsGivenUp:          "a fenced holder gives its device up, whatever its peer has, only if by the record Ceph has all",
	FencedMapNotUsed:              "a device on a fenced map is not given out again",
	DrainedInOneAnswer:            "an attached volume is drained when one answer says both: it writes through, and nothing is dirty",
	CacheBeforeRestore:            "authority Cache is on record before write-back returns",
	DiscardOfThatEpoch:            "a discard is carried out only in the epoch by whose record it was ordered",
	DiscardOutOfReach:             "nothing is discarded while a current copy is within reach",
	DiscardFences:                 "who has the image open is fenced before a discard is on record",
	DiscardOutdatesAll:            "after a discard all replicas are on record as outdated",
	EpochsReported:                "no attachment begins while a host has seen a later one than the record",
	DirtyKept:                     "a dirty copy is dropped only if the record does not count it",
	DiscardedUpTo:                 "a dirty copy is dropped only if its host has seen no attachment that the record does not know",
	EntryReplaced:                 "an entry that the blocklist had before the fence, and that ends too early, is replaced",
	OutsidersLeft:                 "an entry that was on the blocklist before the fence stays until its own end",
	SameMachineUnfences:           "only the machine that was fenced can say that its map is gone",
	ModeOfTheRecord:               "a device that writes back is used only if authority is still Cache when its client goes on record",
	LostOutdatedFirst:             "a repair replaces only a copy that is on record as outdated",
	CopyLeavesOnlyFromCeph:        "a copy that is moved off its host stops counting only once all is in Ceph, as its holder shows, too",
	DrainedUntilNewCounts:         "a volume whose copy is moved writes through until the new copy counts",
	NewCopyOutdated:               "a copy that is to be made is on record as outdated before it is one of the volume's",
	PermitFromArbiter:             "DRBD goes on without a frozen peer only after the arbiter has put the peer on record",
	PermitInStatus:                "no peer is counted again while its host may go on without it",
	AskedIsAPermit:                "a permit that is being taken or dropped counts as one",
	FreezesBeforeDropped:          "DRBD freezes I/O again before the permit is gone from the status",
	PermitReadBeforeLink:          "a status is made of the permit first, and of DRBD's state after it",
	RenewedOutdated:               "a copy that is laid anew beside one that is kept counts only after that has filled it",
	MovedOnlyFromCeph: "a volume leaves its replicas for those of another group only while nobody has it and the truth is " +
		"in Ceph",
	ResizedAfterDrop:         "the record has another size of the cache only after the replicas of the former one are dropped",
	LeftoversDropped:         "what an earlier stay has left is removed before a volume is placed in a group again",
	OutsideOnlyFromCeph:      "a host outside the group gets a volume only while the truth is in Ceph",
	OutsideOutdatesAll:       "with an attachment without a cache all copies are on record as outdated, in the same write",
	OutsideMachineKnown:      "only the machine that has a volume without a cache can say that it has no map any more",
	MissingOutdated:          "a copy that is missing beside one that is kept is on record as outdated before it is laid again",
	RenewedTogether:          "with the node's own copy the other one is laid anew, too",
	FencedWithoutClient:      "a node that is given up stays on record without a client if none of it is known and one may come",
	LateFenced:               "a client that has the image open late is fenced before its lock is broken",
	UnstageWaits:             "a node has unstaged a volume only when no dev_connect runs there",
	LateFencedInUse:          "such a client is fenced also if the holder's client is on record",
	FencesKept:               "a client on record as fenced that is not on the blocklist, or not for long enough, is fenced again",
	NoteReadByAttach:         "no attachment begins, or is repeated, while the image tells of a later one than the record",
	NoteReadByStage:          "no host connects before its record was compared with what the image tells",
	NotedBeforeUse:           "no host connects before the image tells of the attachment",
	NoLaterKnown:             "nothing is written back while a host has seen a later attachment than the record",
	TrimOnlyFromCeph:         "a host without a copy gets a volume to trim it only while the truth is in Ceph",
	TrimOutdatesAll:          "with an attachment for a trim all copies are on record as outdated, in the same write",
	BootedOnRecordFirst:      "a copy that was booted is on record as outdated before it connects to a host that uses the volume",
	BootedAlwaysWrites:       "before it connects, a copy that was booted writes the record also if it is outdated already",
	BootedWaitsForUser:       "a copy that was booted waits while its peer has the volume without a client on record",
	BootedWaitsForFenced:     "a copy that was booted does not connect while a map of its peer is on record as fenced",
	PeerWaitsForBooted:       "a copy that was booted goes on counting as long as its peer does not wait for the link",
	PermitEndsWithAttachment: "a connect drops the permit that an earlier attachment has left",
}

// Reasons why a promise is broken, by number.
const (
	whyNone uint8 = iota
	whyTwoPrimaries
	whyOldWriteBack
	whyStagedWithoutRight
	whyAloneWithoutRight
	whyStalePromoted
	whyCounted
	whyNothingHoldsIt
	whyAckedOnlyInCache
	whyCleanWhileDirty
	whyStoppedDirty
	whyStaleRead
	whyDropped
	whyFencedUsed
	whyLaterDiscarded
	whyReachableDiscarded
	whyRisen
	whyOutsider
	whyOtherSize
)

var reasons = [...]string{
	whyNone:               "",
	whyTwoPrimaries:       "two hosts have the device and neither is frozen or fenced",
	whyOldWriteBack:       "a host that is not attached any more writes to the image",
	whyStagedWithoutRight: "a host begins to use the volume that, by the record, may not",
	whyAloneWithoutRight:  "a host that is not attached goes on without its peer",
	whyStalePromoted:      "a copy is promoted that lacks acknowledged writes",
	whyCounted:            "the record counts a copy as current that lacks an acknowledged write",
	whyNothingHoldsIt:     "neither Ceph nor a copy that the record counts has what was acknowledged",
	whyAckedOnlyInCache:   "a write is acknowledged by the cache while the record says that Ceph has everything",
	whyCleanWhileDirty:    "the record says that Ceph has everything, and Ceph has not",
	whyStoppedDirty:       "a stop succeeds with dirty data",
	whyStaleRead:          "the device shows older data than was acknowledged",
	whyDropped:            "a replica is removed that held the only copy of acknowledged data",
	whyFencedUsed:         "the volume is used on a map that is fenced: nothing can be written back",
	whyLaterDiscarded:     "what was acknowledged in a later attachment is discarded by an earlier order",
	whyReachableDiscarded: "what a host that answers still has is discarded",
	whyRisen:              "the device shows what was discarded",
	whyOtherSize:          "a copy is used, or counted, that has not the size on record",
	whyOutsider:           "a client is let in again that somebody else has shut out",
}
