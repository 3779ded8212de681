package authority

import (
	"fmt"
	"time"

	"github.com/escache/escache-csi/api/escache"
	"github.com/escache/escache-csi/api/v1alpha1"
)

// MayBeOutdated decides about a host that says that the disk below its replica has failed. It refuses
// with a *RefusedError if no copy would stay current. It does not ask who has the volume: a host knows
// best that its own copy cannot be used. A host that was booted is refused, too, unless its peer has the volume.
//
// As with [MayGoOnAlone], what it grants changes the record also if the host is listed already.
func MayBeOutdated(v *v1alpha1.CacheVolume, r escache.OutdateSelfRequest, now time.Time) (Grant, error) {
	if err := keepsOne(v, r); err != nil {
		return Grant{}, err
	}
	if r.Booted {
		return outdate(v, r.Node, v1alpha1.ReasonPeerOutdated, fmt.Sprintf("%s was booted: its replica is outdated since %s",
			r.Node, now.UTC().Format(time.RFC3339Nano))), nil
	}
	return outdate(v, r.Node, v1alpha1.ReasonLocalDiskLost, fmt.Sprintf("the disk of %s has failed: its replica is outdated since %s",
		r.Node, now.UTC().Format(time.RFC3339Nano))), nil
}

func keepsOne(v *v1alpha1.CacheVolume, r escache.OutdateSelfRequest) error {
	s := &v.Status
	refuse := func(code escache.Code, format string, args ...any) error {
		return &RefusedError{code, fmt.Sprintf("volume %s: %s", v.Name, fmt.Sprintf(format, args...))}
	}
	switch {
	case !v.Spec.HasReplica(r.Node) || !v.Spec.HasReplica(r.Peer) || r.Node == r.Peer:
		return refuse(escache.CodeFencingRefused, "its replicas are on %v, not on %s and %s", v.Spec.Replicas, r.Node, r.Peer)
	case r.ImageID != "" && s.ImageID != "" && r.ImageID != s.ImageID:
		return refuse(escache.CodeIdentityMismatch, "it is image id %s, and the replica is of %s", s.ImageID, r.ImageID)
	case r.Booted && s.AttachedNode != r.Peer:
		return refuse(escache.CodeStaleEpoch, "it is attached to %q, and not to %s", s.AttachedNode, r.Peer)
	case s.IsOutdated(r.Peer) && !s.IsOutdated(r.Node):
		return refuse(escache.CodeOutdated, "the replica on %s is the only current one", r.Node)
	}
	return nil
}
