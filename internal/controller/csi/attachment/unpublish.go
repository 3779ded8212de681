package attachment

import (
	"context"
	"errors"

	"github.com/escache/escache-csi/api/v1alpha1"
	"github.com/escache/escache-csi/internal/authority"
)

// Unpublish takes the volume from a node. A node that has unstaged leaves a clean cache, and the
// truth is in Ceph again. A node that Kubernetes has given up is fenced; nobody waits for it. If the pod
// got the volume where it was being written back, and is gone before it was staged, that goes on.
//
// https://github.com/container-storage-interface/spec/blob/v1.13.0/spec.md#controllerunpublishvolume
func (s *Attacher) Unpublish(ctx context.Context, v *v1alpha1.CacheVolume, node string) error {
	if node == "" {
		node = v.Status.AttachedNode // CSI: without a node it is unpublished everywhere
	}
	err := s.TakeFrom(ctx, v, node, func(holder authority.Report, death authority.Death) (authority.Detachment, error) {
		return authority.Detach(v, node, holder, death)
	})
	if errors.Is(err, authority.ErrStaged) {
		err = errors.Join(err, s.askToUnstage(ctx, v))
	}
	if _, forced := authority.TakenFrom(v); err != nil || forced {
		return err
	}
	// An orderly holder knows nothing of an earlier one that was fenced. So ask that host too.
	_, err = s.Settle(ctx, v)
	return err
}

// askToUnstage puts on record that the node is to unstage the volume without its kubelet, which perhaps does not know of it any
// more. Kubernetes repeats the call until that is done.
func (s *Attacher) askToUnstage(ctx context.Context, v *v1alpha1.CacheVolume) error {
	if v.Status.UnstageEpoch == v.Status.Epoch {
		return nil
	}
	v.Status.UnstageEpoch = v.Status.Epoch
	return s.UpdateStatus(ctx, v, "node "+v.Status.AttachedNode+" is to unstage it, also without its kubelet")
}

// keep takes that back: Kubernetes wants the volume on the node again.
func (s *Attacher) keep(ctx context.Context, v *v1alpha1.CacheVolume) error {
	if v.Status.UnstageEpoch == 0 {
		return nil
	}
	v.Status.UnstageEpoch = 0
	return s.UpdateStatus(ctx, v, "node "+v.Status.AttachedNode+" keeps it")
}
