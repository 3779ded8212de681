package csi

import (
	"context"
	"errors"

	"github.com/escache/escache-csi/internal/authority"
	"github.com/escache/escache-csi/internal/controller/volumes"
)

// unpublish takes the volume from a node. A node that has unstaged leaves a clean cache, and the
// truth is in Ceph again. A node that Kubernetes has given up is fenced; nobody waits for it.
//
// https://github.com/container-storage-interface/spec/blob/v1.13.0/spec.md#controllerunpublishvolume
func (s *service) unpublish(ctx context.Context, id, node string) error {
	v, err := s.Volume(ctx, id)
	if errors.Is(err, volumes.ErrNotFound) {
		return gone(s.readOnly.Unpublish(ctx, id, node)) // what is gone is attached nowhere
	}
	if err != nil {
		return err
	}
	if node == "" {
		node = v.Status.AttachedNode // CSI: without a node it is unpublished everywhere
	}
	err = s.TakeFrom(ctx, v, node, func(holder authority.Report, death authority.Death) (authority.Detachment, error) {
		return authority.Detach(v, node, holder, death)
	})
	if _, forced := authority.TakenFrom(v); err != nil || forced {
		return err
	}
	// An orderly holder knows nothing of an earlier one that was fenced. So ask that host too.
	_, err = s.Settle(ctx, v)
	return err
}
