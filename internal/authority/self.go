package authority

import (
	"fmt"
	"slices"

	"github.com/escache/escache-csi/api/escache"
	"github.com/escache/escache-csi/api/v1alpha1"
)

// MayBeOutdated decides about a host that says that the disk below its replica has failed. It
// returns the new list of outdated nodes, which takes effect with the write. It refuses with a
// *RefusedError if no copy would stay current. It does not ask who has the volume: a host knows best
// that its own copy cannot be used.
func MayBeOutdated(v *v1alpha1.CacheVolume, r escache.OutdateSelfRequest) (outdated []string, err error) {
	s := &v.Status
	refuse := func(code escache.Code, format string, args ...any) error {
		return &RefusedError{code, fmt.Sprintf("volume %s: %s", v.Name, fmt.Sprintf(format, args...))}
	}
	switch {
	case !v.Spec.HasReplica(r.Node) || !v.Spec.HasReplica(r.Peer) || r.Node == r.Peer:
		return nil, refuse(escache.CodeFencingRefused, "its replicas are on %v, not on %s and %s", v.Spec.Replicas, r.Node, r.Peer)
	case r.ImageID != "" && s.ImageID != "" && r.ImageID != s.ImageID:
		return nil, refuse(escache.CodeIdentityMismatch, "it is image id %s, and the replica is of %s", s.ImageID, r.ImageID)
	case s.IsOutdated(r.Node):
		return slices.Clone(s.Outdated), nil
	case s.IsOutdated(r.Peer):
		return nil, refuse(escache.CodeOutdated, "the replica on %s is the only current one", r.Node)
	}
	return append(slices.Clone(s.Outdated), r.Node), nil
}
