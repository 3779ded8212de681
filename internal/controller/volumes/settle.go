package volumes

import (
	"context"

	"github.com/escache/escache-csi/api/v1alpha1"
	"github.com/escache/escache-csi/internal/authority"
)

// Settle asks the replicas of a detached volume whether everything is in Ceph by now, and records
// it if so. If the answers do not prove it, the authority stays as it is, without an error. Settle
// returns the answers.
func (s *Steps) Settle(ctx context.Context, v *v1alpha1.CacheVolume) (map[string]authority.Report, error) {
	if authority.InCeph(v) || v.Status.AttachedNode != "" {
		return nil, nil //nolint:nilnil // nobody was asked
	}
	reports := s.Reports(ctx, v, v.Spec.Replicas)
	if !authority.Settled(v, reports) {
		return reports, nil
	}
	s.inCeph(v)
	return reports, s.UpdateStatus(ctx, v, "its cache is clean")
}

func (s *Steps) inCeph(v *v1alpha1.CacheVolume) {
	now := s.now()
	v.Status.Authority = v1alpha1.AuthorityCeph
	v.Status.LastFlushTime = &now
	v.Status.SetDirtyBytes(0)
}
