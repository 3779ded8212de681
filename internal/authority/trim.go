package authority

import (
	"fmt"
	"slices"

	"github.com/escache/escache-csi/api/v1alpha1"
)

// AttachToTrim decides whether csi-controller may give a volume to a node of its group without a cache, to have the
// filesystem's free space given back to Ceph. That attachment writes to the image, as one of a pod outside the group
// does, and everything that holds for such an attachment holds for it: the truth is in Ceph and stays there, and what
// all replicas hold is old from then on. The node must not have a replica, and no node may have the volume. It belongs
// to no pod, so Attach has it ended first, and EndFlush ends it. [Confirmed] decides whether it may begin. Errors wrap
// ErrForeignNode or ErrRefused.
func AttachToTrim(v *v1alpha1.CacheVolume, group []string, node string) (Attachment, error) {
	s := &v.Status
	switch {
	case s.AttachedNode != "":
		return Attachment{}, fmt.Errorf("volume %s is attached to node %s and has to be detached first: %w",
			v.Name, s.AttachedNode, ErrAttached)
	case !InCeph(v):
		return Attachment{}, fmt.Errorf("volume %s may have dirty data in its cache, which has to be written back first: %w",
			v.Name, ErrRefused)
	case !slices.Contains(group, node):
		return Attachment{}, fmt.Errorf("volume %s: node %s is %w", v.Name, node, ErrForeignNode)
	case v.Spec.HasReplica(node):
		return Attachment{}, fmt.Errorf("volume %s: node %s has a replica, and there is one way to the image on each host: %w",
			v.Name, node, ErrRefused)
	}
	return Attachment{Epoch: s.Epoch + 1, Uncached: true}, nil
}
