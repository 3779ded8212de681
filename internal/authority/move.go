package authority

import (
	"errors"
	"fmt"

	"github.com/escache/escache-csi/api/v1alpha1"
)

// ErrAttached means that the volume has to be detached first.
var ErrAttached = fmt.Errorf("attached: %w", ErrRefused)

// Movable decides whether a volume may leave all its replicas for empty ones on other hosts. The truth must
// be in Ceph. No host that answers may have the device, or have seen a later attachment than the record. The
// reports are by node. A host that does not answer is not waited for: that the truth is in Ceph was proven
// when it was recorded. Errors wrap ErrRefused.
func Movable(v *v1alpha1.CacheVolume, reports map[string]Report) error {
	s := &v.Status
	switch {
	case s.AttachedNode != "":
		return fmt.Errorf("volume %s is attached to node %s and has to be detached first: %w", v.Name, s.AttachedNode, ErrAttached)
	case !InCeph(v):
		return fmt.Errorf("volume %s may have dirty data in its cache, which has to be written back first: %w", v.Name, ErrRefused)
	}
	for _, node := range v.Spec.Replicas {
		r := reports[node]
		switch {
		case errors.Is(r.doubt, ErrRecordBehind):
			return fmt.Errorf("volume %s, node %s: %w: %w", v.Name, node, r.doubt, ErrRefused)
		case r.known && r.connected():
			return fmt.Errorf("volume %s: node %s still has the device of an earlier attachment (%s) and has to give it up first: %w",
				v.Name, node, r.device(), ErrRefused)
		}
	}
	return nil
}
