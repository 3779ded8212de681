package authority

import (
	"slices"

	"github.com/escache/escache-csi/api/escache"
	"github.com/escache/escache-csi/api/v1alpha1"
)

// Claims returns the owners who want the attached volume to write through. A claim ends with its
// attachment, so those of earlier epochs are left out.
func Claims(v *v1alpha1.CacheVolume) []string {
	var owners []string
	for _, c := range v.Status.WriteThrough {
		if v.Status.AttachedNode != "" && c.Epoch == v.Status.Epoch {
			owners = append(owners, c.Owner)
		}
	}
	return owners
}

// MayBegin decides whether an owner may claim write-through by this record. The repair may only while one is on record for
// this attachment: nobody would end its claim otherwise. The error wraps ErrRefused.
func MayBegin(v *v1alpha1.CacheVolume, owner string) error {
	if r := v.Status.Repair; owner == RepairClaim && (r == nil || r.Epoch != v.Status.Epoch) {
		return unfit(v, "no repair is on record for its attachment in epoch %d", v.Status.Epoch)
	}
	return nil
}

// MayEnd decides whether an owner's claim may end by this record. That of the repair stays until every replica
// counts: a copy that it has moved off its host may be the only one besides Ceph that had everything. The error wraps
// ErrRefused.
func MayEnd(v *v1alpha1.CacheVolume, owner string) error {
	if owner != RepairClaim || !slices.Contains(Claims(v), owner) {
		return nil
	}
	for _, node := range v.Spec.Replicas {
		if v.Status.IsOutdated(node) {
			return unfit(v, "it writes through until the copy on %s is current", node)
		}
	}
	return nil
}

// Drained decides whether the truth of an attached volume is in Ceph and stays there. For that,
// somebody must have claimed write-through on record, and the holder must report in one answer that it
// writes through and that nothing is dirty.
func Drained(v *v1alpha1.CacheVolume, holder Report) bool {
	s := holder.status
	// A lost secret keeps the peer away, and nothing else. A holder whose own disk has failed has its
	// cache on the peer's, and knows as well what of it is dirty.
	onPeer := s.DiskState == escache.DiskDiskless && !s.IOSuspended
	sound := s.Error == nil || s.Error.Code == escache.CodeSecretMissing || s.Error.Code == escache.CodeCacheError && onPeer
	connected := []escache.State{escache.StateConnected, escache.StateFlushing, escache.StateDraining}
	return len(Claims(v)) > 0 && holder.known && slices.Contains(connected, s.State) && s.Role == escache.RolePrimary &&
		s.Epoch == v.Status.Epoch && s.Mode == escache.ModeWritethrough && s.DirtyBytes != nil && *s.DirtyBytes == 0 && sound
}
