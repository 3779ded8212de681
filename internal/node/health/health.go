// Package health finds what is wrong with a volume, from the status that escached reports on its
// node. It does no I/O.
package health

import (
	"fmt"
	"slices"

	"github.com/escache/escache-csi/api/v1alpha1"

	"github.com/escache/escache-csi/api/escache"
)

// Severity of a finding, in the words of CSI's volume health.
type Severity int

// Severities.
const (
	Degraded     Severity = iota // usable, but not as it should be
	Inaccessible                 // reads or writes fail or hang here
	DataLoss                     // data is lost, or that is strongly suspected
)

// Reason is the name of a kind of finding, in CamelCase, for conditions and Events. It never
// changes.
type Reason string

// Reasons.
const (
	PeerLost           Reason = v1alpha1.ReasonPeerLost
	PeerOutdated       Reason = v1alpha1.ReasonPeerOutdated
	PeerDiskLost       Reason = v1alpha1.ReasonPeerDiskLost
	LocalDiskLost      Reason = v1alpha1.ReasonLocalDiskLost
	Resyncing          Reason = "Resyncing"
	IOFrozen           Reason = "IOFrozen"
	CephUnavailable    Reason = "CephUnavailable"
	CephStalled        Reason = "CephStalled"
	CacheNearlyFull    Reason = "CacheNearlyFull"
	CacheError         Reason = "CacheError"
	CacheCorrupt       Reason = "CacheCorrupt"
	FilesystemReadOnly Reason = "FilesystemReadOnly"
	EscachedSilent     Reason = "EscachedSilent"
	SecretMissing      Reason = "SecretMissing"
)

// Finding is one thing that is wrong.
type Finding struct {
	Reason   Reason
	Severity Severity
	// Condition is the type of the CacheVolume's condition that the finding makes false.
	Condition string
	Message   string
}

// nearlyFullPercent is the dirty share of a cache from which on writes may soon wait for Ceph.
const nearlyFullPercent = 90

// Findings returns what is wrong with a volume that is connected on this node. The caller sets
// stalled if I/O to Ceph is in flight and does not end, which takes several statuses to know.
func Findings(s escache.VolumeStatus, stalled bool) []Finding {
	var all []Finding
	add := func(reason Reason, severity Severity, condition, format string, args ...any) {
		all = append(all, Finding{reason, severity, condition, fmt.Sprintf(format, args...)})
	}
	frozen := s.IOSuspended && s.Error != nil && s.Error.Code == escache.CodePeerUnavailable // reported below as IOFrozen
	if s.Error != nil && !frozen {
		reason, severity := classify(s.Error.Code)
		add(reason, severity, v1alpha1.ConditionHealthy, "%s (%s)", s.Error.Detail, s.Error.Code)
	}
	if s.IOSuspended {
		add(IOFrozen, Inaccessible, v1alpha1.ConditionHealthy,
			"reads and writes wait: the other replica is lost and is not yet on record as outdated. I/O goes on by itself when the "+
				"replica is back or the Kubernetes API answers; after a long cut, csi-controller and Ceph must answer, too")
	}
	if stalled && (s.Error == nil || s.Error.Code != escache.CodeCephUnavailable) {
		add(CephStalled, Degraded, v1alpha1.ConditionHealthy,
			"I/O to Ceph is in flight, but none completes; check Ceph's health (ceph -s)")
	}
	if s.DirtyBytes != nil && s.CacheBytes > 0 && *s.DirtyBytes >= s.CacheBytes/100*nearlyFullPercent {
		add(CacheNearlyFull, Degraded, v1alpha1.ConditionHealthy, "%s of %s are dirty: writes will soon wait for Ceph",
			v1alpha1.HumanBytes(*s.DirtyBytes), v1alpha1.HumanBytes(s.CacheBytes))
	}
	for _, f := range redundancy(s) {
		add(f.Reason, f.Severity, f.Condition, "%s", f.Message)
	}
	return all
}

// classify returns the reason and the severity of an error code of escached.
func classify(code escache.Code) (Reason, Severity) {
	switch code { //nolint:exhaustive // all others are errors of the cache
	case escache.CodeCephUnavailable:
		return CephUnavailable, Degraded
	case escache.CodeCacheCorrupt, escache.CodeIdentityMismatch:
		return CacheCorrupt, DataLoss
	case escache.CodeSecretMissing:
		return SecretMissing, Degraded
	default:
		return CacheError, Inaccessible
	}
}

// redundancy finds whether an acknowledged write is only on one host and not in Ceph, and whether a
// replica is catching up.
func redundancy(s escache.VolumeStatus) []Finding {
	inCeph := s.Mode == escache.ModeWritethrough && s.DirtyBytes != nil && *s.DirtyBytes == 0
	lost := func(reason Reason, format string, args ...any) []Finding {
		if inCeph {
			return nil
		}
		return []Finding{{reason, Degraded, v1alpha1.ConditionRedundant, fmt.Sprintf(format, args...)}}
	}
	var peer escache.Peer
	if len(s.Peers) > 0 {
		peer = s.Peers[0]
	}
	switch {
	case IsResyncing(s):
		resyncing := Finding{Resyncing, Degraded, v1alpha1.ConditionSynced, fmt.Sprintf(
			"a resync between this node and %s is running", peer.Name)}
		copies := lost(PeerOutdated, "the replica on %s is catching up; until then this node has the only current copy", peer.Name)
		return append(copies, resyncing)
	case s.DiskState != "" && s.DiskState != escache.DiskUpToDate:
		return lost(LocalDiskLost, "the local replica is %s: reads and writes go to %s over the network; check this host's NVMe device",
			s.DiskState, peer.Name)
	case peer.Name == "":
		return lost(PeerLost, "the volume has no second replica: this node has the only current copy")
	case !peer.Linked():
		return lost(PeerLost, "the replica on %s does not answer (%s): this node has the only current copy", peer.Name,
			peer.ConnectionState)
	case peer.DiskState.Lost():
		return lost(PeerDiskLost, "the replica on %s is %s: this node has the only current copy; check that host's NVMe device", peer.Name,
			peer.DiskState)
	case peer.DiskState != escache.DiskUpToDate:
		return lost(PeerOutdated, "the replica on %s is %s: this node has the only current copy", peer.Name, peer.DiskState)
	default:
		return nil
	}
}

// IsResyncing reports whether one replica is being copied to the other.
func IsResyncing(s escache.VolumeStatus) bool {
	return s.SyncedPercent < 100 && s.DiskState != "" && s.DiskState != escache.DiskDiskless &&
		len(s.Peers) > 0 && s.Peers[0].Name != "" && s.Peers[0].Linked()
}

// IsConnected reports whether this node has the volume's device, or is Primary without one. An image that
// may be mapped without a cache at any moment has no device yet.
func IsConnected(s escache.VolumeStatus) bool {
	notMapped := s.Uncached && s.ClientAddress == ""
	return s.Device != "" && !notMapped || s.Role == escache.RolePrimary
}

// IsRedundant reports whether every acknowledged write is on two hosts or in Ceph.
func IsRedundant(s escache.VolumeStatus) bool {
	for _, f := range redundancy(s) {
		if f.Condition == v1alpha1.ConditionRedundant {
			return false
		}
	}
	return true
}

// IsCurrent reports whether the status proves that the peer's copy is current: connected, idle and
// up to date at both ends. While this node may go on alone without being frozen, the peer's copy does
// not count yet: it would not be known that this node has gone on.
func IsCurrent(s escache.VolumeStatus, peer string) bool {
	p, linked := idlePeer(s, peer)
	return linked && p.DiskState == escache.DiskUpToDate && s.DiskState == escache.DiskUpToDate && !s.IOSuspended && !s.MayGoOnAlone &&
		s.SyncedPercent >= 100
}

// IsDiskless reports whether the status proves, over a link that is up, that the peer has lost its
// disk and this node's copy is current.
func IsDiskless(s escache.VolumeStatus, peer string) bool {
	p, linked := idlePeer(s, peer)
	return linked && p.DiskState.Lost() && s.DiskState == escache.DiskUpToDate
}

// IsWhole reports whether this node writes to both copies.
func IsWhole(s escache.VolumeStatus) bool {
	whole := func(p escache.Peer) bool { return p.Linked() && p.DiskState == escache.DiskUpToDate }
	return s.Role == escache.RolePrimary && s.DiskState == escache.DiskUpToDate && !s.IOSuspended && slices.ContainsFunc(s.Peers, whole)
}

// GoesOnWithout reports whether the status proves that this node writes to its own copy alone. DRBD calls a
// peer that it cannot reach Outdated once the arbiter has agreed to that, or if the peer has left in good order and
// has marked itself so.
func GoesOnWithout(s escache.VolumeStatus, peer string) bool {
	without := func(p escache.Peer) bool { return p.Name == peer && !p.Linked() && p.DiskState == escache.DiskOutdated }
	return s.DiskState == escache.DiskUpToDate && !s.IOSuspended && slices.ContainsFunc(s.Peers, without)
}

// LivesOnPeer reports whether the status proves that this node has lost its disk, and the peer's
// copy is current. While the disk is Failed, DRBD's handler keeps I/O frozen until the record says so.
func LivesOnPeer(s escache.VolumeStatus, peer string) bool {
	p, linked := idlePeer(s, peer)
	frozen := s.IOSuspended && s.DiskState != escache.DiskFailed
	return linked && p.DiskState == escache.DiskUpToDate && s.DiskState.Lost() && !frozen && !s.MayGoOnAlone
}

// idlePeer returns the peer of that name, if the link is up and neither a resync nor a step towards
// one runs over it. That is a narrower question than Peer.Linked: while the ends work out what a
// copy has missed, what they report of each other may be about to change.
func idlePeer(s escache.VolumeStatus, name string) (peer escache.Peer, linked bool) {
	i := slices.IndexFunc(s.Peers, func(p escache.Peer) bool { return p.Name == name && p.ConnectionState == escache.LinkConnected })
	if i < 0 {
		return escache.Peer{}, false
	}
	return s.Peers[i], true
}
