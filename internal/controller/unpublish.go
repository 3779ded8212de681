package controller

import (
	"context"
	"errors"
	"fmt"

	"github.com/escache/escache-csi/api/v1alpha1"
	"github.com/escache/escache-csi/internal/authority"
	"github.com/escache/escache-csi/internal/crashpoint"
)

// unpublish takes the volume from a node. A node that has unstaged leaves a clean cache behind, and the truth is in Ceph
// again; one that Kubernetes has given up is fenced and not waited for.
//
// https://github.com/container-storage-interface/spec/blob/v1.13.0/spec.md#controllerunpublishvolume
func (s *service) unpublish(ctx context.Context, id, node string) error {
	v, err := s.volume(ctx, id)
	if errors.Is(err, ErrNotFound) {
		return nil // what is gone is attached nowhere
	}
	if err != nil {
		return err
	}
	if node == "" {
		node = v.Status.AttachedNode // CSI: without a node it is unpublished everywhere
	}
	err = s.takeFrom(ctx, v, node, func(holder authority.Report, death authority.Death) (authority.Detachment, error) {
		return authority.Detach(v, node, holder, death)
	})
	if _, forced := authority.TakenFrom(v); err != nil || forced {
		return err
	}
	// An orderly holder cannot vouch for an earlier one that was fenced: that one's host is asked, too.
	_, err = s.settle(ctx, v)
	return err
}

// takeFrom asks about the holder, has it decided how the volume is taken from it, and does it.
func (s *service) takeFrom(
	ctx context.Context, v *v1alpha1.CacheVolume, node string,
	decide func(authority.Report, authority.Death) (authority.Detachment, error),
) error {
	if v.Status.AttachedNode == "" || v.Status.AttachedNode != node {
		return nil
	}
	death, err := s.Hosts.Death(ctx, node)
	if err != nil {
		return fmt.Errorf("ask Kubernetes about node %s: %w", node, err)
	}
	status, err := s.Hosts.Status(ctx, node, refOf(v))
	plan, err := decide(authority.Report{Status: status, Err: err}, death)
	if err != nil || plan.Gone {
		return err
	}
	if plan.Fence {
		if err := s.fence(ctx, v, node, plan.Reason); err != nil {
			return err
		}
	}
	if plan.Clean {
		s.inCeph(v)
	}
	v.Status.AttachedNode, v.Status.ClientAddress, v.Status.FlushEpoch, v.Status.WriteThrough = "", "", 0, nil
	if err := s.updateStatus(ctx, v, "node "+node+" no longer has it"); err != nil {
		return err
	}
	crashpoint.Reach("unpublish/detached")
	return nil
}
