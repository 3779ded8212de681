package volumes

import (
	"context"
	"fmt"

	"github.com/escache/escache-csi/api/v1alpha1"
	"github.com/escache/escache-csi/internal/authority"
	"github.com/escache/escache-csi/internal/crashpoint"
)

// Discard gives up a volume's dirty data and goes on with what Ceph has. The package discard says
// when, and what that promises. Repeated after a crash, it goes on where it was. ErrRefused is
// final; other errors are not.
func (l *Locked) Discard(ctx context.Context, request *v1alpha1.CacheDiscard) (*v1alpha1.DiscardedCache, error) {
	return under(l, request.Spec.Volume, "cache discard", func() (*v1alpha1.DiscardedCache, error) {
		return l.steps.discard(ctx, request)
	})
}

func (s *Steps) discard(ctx context.Context, request *v1alpha1.CacheDiscard) (*v1alpha1.DiscardedCache, error) {
	v, err := s.Volume(ctx, request.Spec.Volume)
	if err != nil {
		return nil, err
	}
	if done := v.Status.Discarded; done != nil && done.Request == string(request.UID) {
		return done, nil
	}
	if Unfinished(v) {
		return nil, fmt.Errorf("volume %s has no copy that counts yet, so there is nothing to decide about; choose one with "+
			"kubectl escache adopt --all --use-copy: %w", v.Name, ErrRefused)
	}
	var death authority.Death
	holder := v.Status.AttachedNode
	if holder != "" {
		if death, err = s.Hosts.Death(ctx, holder); err != nil {
			return nil, fmt.Errorf("ask Kubernetes about node %s: %w", holder, err)
		}
	}
	gone := s.imageGone(ctx, v)
	loss, err := authority.Discard(v, request.Spec.Epoch, s.Reports(ctx, v, v.Spec.Replicas), death, gone)
	if err != nil {
		return nil, err
	}
	if holder == "" && len(loss.Nodes) > 0 {
		holder = loss.Nodes[0]
	}
	// A client that has the image open now, or that comes later, would write what was given up.
	if err := s.fence(ctx, v, holder, loss.Reason, v.Status.AttachedNode != ""); err != nil {
		return nil, err
	}
	s.Log.WarnContext(ctx, "discarding the cache", "volume", v.Name, "requestedBy", request.Spec.RequestedBy,
		"reason", request.Spec.Reason, "lostCopies", loss.Nodes, "bytesAtStake", loss.BytesAtStake, "epoch", v.Status.Epoch,
		"imageGone", gone)
	v.Status.Discarded = &v1alpha1.DiscardedCache{
		Request: string(request.UID), RequestedBy: request.Spec.RequestedBy, Nodes: loss.Nodes, BytesAtStake: loss.BytesAtStake,
		Epoch: v.Status.Epoch, Time: s.now(),
	}
	v.Status.AttachedNode, v.Status.ClientAddress, v.Status.Repair, v.Status.WriteThrough = "", "", nil, nil
	v.Status.Authority, v.Status.Outdated = v1alpha1.AuthorityCeph, v.Spec.Replicas
	v.Status.SetDirtyBytes(0)
	if err := s.UpdateStatus(ctx, v, "its cache is discarded"); err != nil {
		return nil, err
	}
	crashpoint.Reach("discard/recorded")
	return v.Status.Discarded, nil
}
