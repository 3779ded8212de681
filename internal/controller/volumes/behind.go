package volumes

import (
	"context"
	"errors"
	"slices"

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
	if !s.tellBehind(ctx, v, failure) {
		return failure
	}
	return errors.Join(failure, s.UpdateStatus(ctx, v, "it is older than the hosts' disks"))
}

// tellBehind logs it, and makes the Event. It sets the condition, and reports whether that has changed.
func (s *Steps) tellBehind(ctx context.Context, v *v1alpha1.CacheVolume, failure error) (changed bool) {
	s.Log.ErrorContext(ctx, "the record is older than the hosts' disks", "volume", v.Name, "error", failure)
	s.Events.Eventf(v, nil, corev1.EventTypeWarning, v1alpha1.ConditionRecordBehindDisks, "Compare", "%v", failure)
	return meta.SetStatusCondition(&v.Status.Conditions, metav1.Condition{
		Type: v1alpha1.ConditionRecordBehindDisks, Status: metav1.ConditionTrue, Reason: "LaterAttachmentSeen", Message: failure.Error(),
	})
}

// UpToDate returns an error if a host has seen a later attachment than the record of a detached
// volume. Hosts that do not answer are not waited for. It returns what the others say.
func (s *Steps) UpToDate(ctx context.Context, v *v1alpha1.CacheVolume) (map[string]authority.Report, error) {
	if v.Status.Epoch == 0 {
		return nil, nil //nolint:nilnil // no host has had it, and none was asked
	}
	reports := s.Reports(ctx, v, s.WellReplicas(v))
	return reports, seenLater(v, reports)
}

// seenLater returns an error if one of the reports is of a later attachment than the record of a volume.
func seenLater(v *v1alpha1.CacheVolume, reports map[string]authority.Report) error {
	_, err := authority.Confirmed(v, "", authority.Attachment{}, reports)
	return err
}

// newest returns an error if a host that has reported, or the image, knows a later attachment than the
// record of a volume that is to be written back.
func (s *Steps) newest(ctx context.Context, v *v1alpha1.CacheVolume, reports map[string]authority.Report) error {
	if err := seenLater(v, reports); err != nil {
		return err
	}
	return s.ImageNotNewer(ctx, v)
}

// ImageNotNewer is NotBehind for a volume whose image may be gone, as that of one that is being deleted.
func (s *Steps) ImageNotNewer(ctx context.Context, v *v1alpha1.CacheVolume) error {
	if err := s.NotBehind(ctx, v); err != nil && !errors.Is(err, ErrNotFound) {
		return err
	}
	return nil
}

// notSetBack returns an error if a host or the image knows a later attachment than the record of a
// detached volume. It returns what UpToDate does.
func (s *Steps) notSetBack(ctx context.Context, v *v1alpha1.CacheVolume) (map[string]authority.Report, error) {
	reports, err := s.UpToDate(ctx, v)
	if err != nil {
		return nil, err
	}
	return reports, s.NotBehind(ctx, v)
}

// WellReplicas returns the nodes with a replica that answered and were healthy when they were last asked. They may be
// cordoned: what they know of the volume counts all the same.
func (s *Steps) WellReplicas(v *v1alpha1.CacheVolume) []string {
	return slices.DeleteFunc(slices.Clone(v.Spec.Replicas), func(node string) bool { return !s.Book.Well(v.Spec.Group, node) })
}
