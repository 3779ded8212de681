package authority

import (
	"fmt"
	"slices"

	"github.com/escache/escache-csi/api/v1alpha1"
	"github.com/escache/escache-csi/internal/clientaddress"
)

// MayStage returns nil if the node may connect and use the volume in this attachment. The caller
// reads the record uncached right before it connects. The error wraps ErrOutdated if the only
// obstacle is that the node's own replica is on record as outdated, and ErrRefused in any case.
func MayStage(v *v1alpha1.CacheVolume, node string, epoch int64) error {
	s := &v.Status
	switch {
	case s.AttachedNode == "":
		return fmt.Errorf("%w: volume %s is attached to no node; ControllerPublishVolume comes first", ErrRefused, v.Name)
	case s.AttachedNode != node:
		return fmt.Errorf("%w: volume %s is attached to node %s, and this is %s", ErrRefused, v.Name, s.AttachedNode, node)
	case s.Epoch != epoch:
		return fmt.Errorf("%w: the request is of epoch %d, volume %s is in epoch %d: it has been attached again since",
			ErrRefused, epoch, v.Name, s.Epoch)
	case s.IsOutdated(node):
		return fmt.Errorf("the replica of volume %s on node %s is %w", v.Name, node, ErrOutdated)
	default:
		return nil
	}
}

// IsSuperseded reports whether a device that the node connected in this epoch belongs to an
// attachment that is over: a newer one has begun, and it is not this node's.
func IsSuperseded(v *v1alpha1.CacheVolume, node string, epoch int64) bool {
	return epoch < v.Status.Epoch && v.Status.AttachedNode != node
}

// GivenUpIn returns the epoch with which a host is asked to give up a device that was taken from it. Epoch is the one
// of the device. It is the oldest that proves it to the host, which has seen it from then on. A newer one would keep
// what the host has from being discarded: while a node is given the volume, that is done only up to the epoch before,
// and a replica that waits to be removed is discarded only up to the epoch of that moment. A host goes on with the
// device's own epoch if what it had in that was discarded.
func GivenUpIn(v *v1alpha1.CacheVolume, epoch int64) int64 {
	return min(epoch+1, v.Status.Epoch)
}

// IsTaken reports whether the volume was taken from the node by force. The node then no longer has the
// volume, and the Ceph client of its device is fenced, so that nothing can be written back through it.
func IsTaken(v *v1alpha1.CacheVolume, node, client string) bool {
	return v.Status.AttachedNode != node && IsFenced(v, client)
}

// IsFenced reports whether a Ceph client was fenced when the volume was taken from its node.
func IsFenced(v *v1alpha1.CacheVolume, client string) bool {
	return client != "" && slices.ContainsFunc(v.Status.Fenced, func(c v1alpha1.FencedClient) bool {
		return clientaddress.Same(c.Address, client)
	})
}
