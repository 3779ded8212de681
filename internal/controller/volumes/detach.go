package volumes

import (
	"context"
	"fmt"

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/escache/escache-csi/api/v1alpha1"
	"github.com/escache/escache-csi/internal/authority"
	"github.com/escache/escache-csi/internal/cachevolume"
	"github.com/escache/escache-csi/internal/crashpoint"
)

// TakeFrom takes the volume from a node, in the way that decide chooses after it has seen what the
// node reports. It does nothing if the node does not have the volume. Without an error the node may still
// have it, to write it back for nobody.
func (s *Steps) TakeFrom(
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
	status, err := s.Hosts.Status(ctx, node, cachevolume.Ref(v))
	plan, err := decide(authority.Heard(v, node, status, err), death)
	if err != nil || plan.Gone {
		return err
	}
	switch {
	case plan.GiveBack:
		return s.giveBack(ctx, v, node)
	case plan.Fence:
		if err := s.fence(ctx, v, node, plan.Reason, plan.MayCome); err != nil {
			return err
		}
	case plan.MayCome:
		s.expect(ctx, v, node, death.Reason)
	}
	if plan.Clean {
		s.inCeph(v)
	}
	if v.Status.UncachedAttached() && !v.Status.FlushAttached() {
		meta.SetStatusCondition(&v.Status.Conditions, metav1.Condition{
			Type: v1alpha1.ConditionUncached, Status: metav1.ConditionFalse, Reason: v1alpha1.ReasonUncachedDetached,
			Message: "no node has it; the next attachment in group " + v.Spec.Group + " creates its cache again",
		})
	}
	v.Status.AttachedNode, v.Status.ClientAddress, v.Status.FlushEpoch, v.Status.WriteThrough = "", "", 0, nil
	v.Status.Uncached, v.Status.UnstageEpoch = nil, 0
	if err := s.UpdateStatus(ctx, v, "node "+node+" no longer has it"); err != nil {
		return err
	}
	crashpoint.Reach("unpublish/detached")
	return nil
}
