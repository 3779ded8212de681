package escache

// DiskState is DRBD's state of a replica's disk, as DRBD 8.4 spells it.
type DiskState string

// States of a disk. Others may come.
const (
	DiskUpToDate     DiskState = "UpToDate"     // has all acknowledged writes, as far as DRBD knows
	DiskConsistent   DiskState = "Consistent"   // usable, but whether it is current only the peer knows
	DiskOutdated     DiskState = "Outdated"     // usable, and known to lack acknowledged writes
	DiskInconsistent DiskState = "Inconsistent" // new, or half resynchronised
	DiskAttaching    DiskState = "Attaching"    // its metadata is being read
	DiskNegotiating  DiskState = "Negotiating"  // its worth is being worked out with the peer
	DiskFailed       DiskState = "Failed"       // has had an I/O error and is about to be Diskless
	DiskDiskless     DiskState = "Diskless"     // there is no disk
	DiskUnknown      DiskState = "DUnknown"     // a peer's, while there is no link
)

// Lost reports whether the disk's data cannot be read.
func (s DiskState) Lost() bool { return s == DiskDiskless || s == DiskFailed }

// LinkState is DRBD's state of the replication link, as DRBD 8.4 spells it.
type LinkState string

// States of a link. The S side of a resync is its source, the T side its target.
const (
	LinkUnconfigured   LinkState = "Unconfigured" // escached's own word: DRBD does not run the replica
	LinkStandAlone     LinkState = "StandAlone"   // given up until somebody connects it again
	LinkDisconnecting  LinkState = "Disconnecting"
	LinkUnconnected    LinkState = "Unconnected"
	LinkTimeout        LinkState = "Timeout"
	LinkBrokenPipe     LinkState = "BrokenPipe"
	LinkNetworkFailure LinkState = "NetworkFailure"
	LinkProtocolError  LinkState = "ProtocolError"
	LinkTearDown       LinkState = "TearDown"
	LinkWFConnection   LinkState = "WFConnection"   // the peer does not answer
	LinkWFReportParams LinkState = "WFReportParams" // TCP is up, the handshake is not over

	LinkConnected     LinkState = "Connected"
	LinkStartingSyncS LinkState = "StartingSyncS"
	LinkStartingSyncT LinkState = "StartingSyncT"
	LinkWFBitMapS     LinkState = "WFBitMapS"
	LinkWFBitMapT     LinkState = "WFBitMapT"
	LinkWFSyncUUID    LinkState = "WFSyncUUID"
	LinkSyncSource    LinkState = "SyncSource"
	LinkSyncTarget    LinkState = "SyncTarget"
	LinkVerifyS       LinkState = "VerifyS"
	LinkVerifyT       LinkState = "VerifyT"
	LinkPausedSyncS   LinkState = "PausedSyncS"
	LinkPausedSyncT   LinkState = "PausedSyncT"
	LinkAhead         LinkState = "Ahead"
	LinkBehind        LinkState = "Behind"
)

// Linked reports whether the two replicas have shaken hands and exchange data: Connected, or a step
// of a resync or verification. DRBD's kernel code asks the same by cs >= C_CONNECTED. A word that
// is not known is no link. A linked peer need not be current.
func (s LinkState) Linked() bool {
	switch s {
	case LinkConnected, LinkStartingSyncS, LinkStartingSyncT, LinkWFBitMapS, LinkWFBitMapT, LinkWFSyncUUID, LinkSyncSource,
		LinkSyncTarget, LinkVerifyS, LinkVerifyT, LinkPausedSyncS, LinkPausedSyncT, LinkAhead, LinkBehind:
		return true
	case LinkUnconfigured, LinkStandAlone, LinkDisconnecting, LinkUnconnected, LinkTimeout, LinkBrokenPipe, LinkNetworkFailure,
		LinkProtocolError, LinkTearDown, LinkWFConnection, LinkWFReportParams:
	}
	return false
}

// Linked reports whether this node exchanges data with the peer. See LinkState.Linked.
func (p Peer) Linked() bool { return p.ConnectionState.Linked() }
