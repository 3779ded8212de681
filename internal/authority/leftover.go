package authority

import (
	"errors"

	"github.com/escache/escache-csi/api/escache"
	"github.com/escache/escache-csi/api/v1alpha1"
)

// Leftovers returns the hosts of replicas that answer that they have the device of an attachment that has ended, or
// may have, and that may be asked to give it up. The volume must be detached and its truth in Ceph. The hosts decide
// themselves, on proofs of their own. If one of them has seen a later attachment than the record, nobody may be asked.
//
// A copy that counts, and whose device writes back or has something dirty, contradicts the record. Its host is not
// asked: with the link to its peer up it would give up that device, too, because the peer has everything. What is dirty
// would then be in two standbys, and no longer behind a device, which nobody goes past.
func Leftovers(v *v1alpha1.CacheVolume, reports map[string]Report) []string {
	if v.Status.AttachedNode != "" || !InCeph(v) {
		return nil
	}
	for _, r := range reports {
		if errors.Is(r.doubt, ErrRecordBehind) {
			return nil
		}
	}
	var left []string
	for _, node := range v.Spec.Replicas {
		if r := reports[node]; r.known && HasDevice(r.status) && (v.Status.IsOutdated(node) || !r.mayBecomeDirty()) {
			left = append(left, node)
		}
	}
	return left
}

// mayBecomeDirty reports whether the host's device has something dirty, or may have at any moment.
func (r Report) mayBecomeDirty() bool {
	s := &r.status
	return s.Connecting || s.Mode == escache.ModeWriteback || s.DirtyBytes != nil && *s.DirtyBytes > 0
}

// Keeping returns the report with the host's reason for keeping the device that it was asked to give up. What is
// refused because of the device names that reason.
func (r Report) Keeping(reason error) Report {
	r.keeps = reason
	return r
}
