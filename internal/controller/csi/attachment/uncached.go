package attachment

import (
	"context"
	"fmt"
	"slices"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/escache/escache-csi/api/v1alpha1"
	"github.com/escache/escache-csi/internal/authority"
	"github.com/escache/escache-csi/internal/controller/volumes"
	"github.com/escache/escache-csi/internal/crashpoint"
)

// publishUncached gives the volume to a node outside its group, without a cache. The truth is in Ceph and
// stays there. The claim itself puts all replicas on record as outdated: from then on the node may write
// to the image, and no cache may be used that does not know what it wrote. So the next attachment in the
// group creates both replicas again.
func (s *Attacher) publishUncached(
	ctx context.Context, v *v1alpha1.CacheVolume, plan authority.Attachment, node string,
) (map[string]string, error) {
	if err := s.claim(ctx, v, plan, node); err != nil {
		return nil, err
	}
	if !v.Status.UncachedAttached() {
		return nil, fmt.Errorf("the API server has dropped status.uncached of volume %s: its CRD of CacheVolumes is older than "+
			"csi-controller; apply the chart's CRDs: %w", v.Name, volumes.ErrRefused)
	}
	if !plan.Held {
		s.Events.Eventf(v, nil, corev1.EventTypeWarning, "AttachedUncached", "Attach",
			"it is attached without a cache to node %s, which is not in its group %s: it is as slow as Ceph until it is attached in the "+
				"group again", node, v.Spec.Group)
	}
	if err := s.MustNote(ctx, v); err != nil {
		return nil, err
	}
	crashpoint.Reach("publish/uncached_noted")
	return publishContext(v), nil
}

// withoutCache makes an attachment on record one without a cache.
func withoutCache(v *v1alpha1.CacheVolume, plan authority.Attachment, node string) {
	v.Status.Uncached = &v1alpha1.UncachedAttachment{Epoch: plan.Epoch, HostID: plan.HostID}
	v.Status.Authority, v.Status.Outdated = v1alpha1.AuthorityCeph, slices.Clone(v.Spec.Replicas)
	meta.SetStatusCondition(&v.Status.Conditions, metav1.Condition{
		Type: v1alpha1.ConditionUncached, Status: metav1.ConditionTrue, Reason: v1alpha1.ReasonUncachedOutside,
		Message: fmt.Sprintf("node %s is not in group %s, and has it without a cache", node, v.Spec.Group),
	})
}
