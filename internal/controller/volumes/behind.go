package volumes

import (
	"context"
	"errors"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/escache/escache-csi/api/v1alpha1"
	"github.com/escache/escache-csi/internal/authority"
)

// ReportBehind tells people that the record of a volume is older than what its hosts have, if that
// is why an operation failed: by a condition and an Event. It returns the failure.
func (s *Steps) ReportBehind(ctx context.Context, id string, failure error) error {
	if !errors.Is(failure, authority.ErrRecordBehind) {
		return failure
	}
	v, err := s.Volume(ctx, id)
	if err != nil {
		return errors.Join(failure, err)
	}
	s.Log.ErrorContext(ctx, "the record is older than the hosts' disks", "volume", id, "error", failure)
	s.Events.Eventf(v, nil, corev1.EventTypeWarning, v1alpha1.ConditionRecordBehindDisks, "Compare", "%v", failure)
	changed := meta.SetStatusCondition(&v.Status.Conditions, metav1.Condition{
		Type: v1alpha1.ConditionRecordBehindDisks, Status: metav1.ConditionTrue, Reason: "LaterAttachmentSeen", Message: failure.Error(),
	})
	if !changed {
		return failure
	}
	return errors.Join(failure, s.UpdateStatus(ctx, v, "it is older than the hosts' disks"))
}
