package authority

import (
	"fmt"
	"slices"

	"github.com/escache/escache-csi/api/escache"
	"github.com/escache/escache-csi/api/v1alpha1"
)

// RepairClaim is the owner of the claim that has a volume write through while a copy of it is replaced.
const RepairClaim = "repair"

// Substitutable decides whether the replica of a lost node may be replaced in this attachment, and
// returns the holder. The holder must have a current copy to make another from. The lost replica
// must be on record as outdated: then the holder goes on without it, and nobody will ever take it
// for current. Errors wrap ErrRefused.
func Substitutable(v *v1alpha1.CacheVolume, epoch int64, lost string) (holder string, err error) {
	holder, err = Beside(v, epoch, lost)
	if err == nil && !v.Status.IsOutdated(lost) {
		return "", unfit(v, "the copy on %s is not on record as outdated: the holder waits, or the copy is current", lost)
	}
	return holder, err
}

// CopyMayLeave decides whether the replica of a node may be replaced although the record counts it, and
// returns the attached node. All data must be in Ceph, and stay there until the new copy counts: the claim of
// RepairClaim sees to that, whoever ends another one. The holder must say so itself, and work on its own disk,
// because the new copy is made from that. Read the record before asking the holder, and write it by
// compare-and-swap: whoever lets it write back again writes the record first. Errors wrap ErrRefused.
func CopyMayLeave(v *v1alpha1.CacheVolume, epoch int64, from string, holder Report) (at string, err error) {
	at, err = Beside(v, epoch, from)
	switch {
	case err != nil:
		return "", err
	case !InCeph(v) || !slices.Contains(Claims(v), RepairClaim):
		return "", unfit(v, "not everything is in Ceph and stays there, so the copy on %s is needed", from)
	case !Drained(v, holder):
		return "", unfit(v, "node %s does not say that it writes through and has nothing that is not in Ceph", at)
	case !WorksOnItsOwn(holder):
		return "", unfit(v, "node %s has no current copy on its own disk to make another from", at)
	}
	return at, nil
}

func unfit(v *v1alpha1.CacheVolume, format string, args ...any) error {
	return fmt.Errorf("volume %s: %s: %w", v.Name, fmt.Sprintf(format, args...), ErrRefused)
}

// Beside returns the holder of a volume in this attachment. By the record it must have a current copy, and
// the other replica must be that of the given node. Errors wrap ErrRefused.
func Beside(v *v1alpha1.CacheVolume, epoch int64, other string) (holder string, err error) {
	s := &v.Status
	refuse := func(format string, args ...any) (string, error) { return "", unfit(v, format, args...) }
	switch {
	case s.AttachedNode == "" || s.Epoch != epoch:
		return refuse("it is attached to %q in epoch %d, and the replica was to be replaced in epoch %d", s.AttachedNode, s.Epoch, epoch)
	case !v.Spec.HasReplica(s.AttachedNode) || s.IsOutdated(s.AttachedNode):
		return refuse("its holder %s has no current copy", s.AttachedNode)
	case other == s.AttachedNode || !v.Spec.HasReplica(other):
		return refuse("its replicas are on %v and %s has it: %s is not the other one", v.Spec.Replicas, s.AttachedNode, other)
	}
	return s.AttachedNode, nil
}

// Partner returns the first replica node other than the given one, or "".
func Partner(v *v1alpha1.CacheVolume, node string) string {
	for _, other := range v.Spec.Replicas {
		if other != node {
			return other
		}
	}
	return ""
}

// Resynced reports whether the holder's answer proves that the peer's copy is current. The link must
// be connected and idle, and both ends up to date, in this same attachment. The holder must not go on
// without the peer unasked. Read the record before asking the holder, and write it by compare-and-swap:
// if the peer is lost in between, the arbiter records that first, and the write fails.
func Resynced(v *v1alpha1.CacheVolume, holder Report, peer string) bool {
	s := holder.status
	holds := holder.known && s.Role == escache.RolePrimary && s.Epoch == v.Status.Epoch
	if !holds || s.DiskState != escache.DiskUpToDate || s.IOSuspended || s.MayGoOnAlone || s.SyncedPercent < 100 {
		return false
	}
	for _, p := range s.Peers {
		if p.Name == peer {
			return p.ConnectionState == escache.LinkConnected && p.DiskState == escache.DiskUpToDate
		}
	}
	return false
}

// CopiesTo reports whether the holder replicates to the peer, or is the source of a resync to it.
// It is a narrower question than Peer.Linked: a holder that is the target fills itself, not the new
// copy.
func CopiesTo(holder Report, peer string) bool {
	for _, p := range holder.status.Peers {
		if p.Name == peer {
			return slices.Contains([]escache.LinkState{
				escache.LinkConnected, escache.LinkSyncSource, escache.LinkPausedSyncS, escache.LinkVerifyS, escache.LinkWFBitMapS,
			}, p.ConnectionState)
		}
	}
	return false
}

// Filled returns those of the copies that the holder fills now, or has filled, from its own.
func Filled(holder Report, copies []string) []string {
	return slices.DeleteFunc(slices.Clone(copies), func(node string) bool { return !CopiesTo(holder, node) })
}
