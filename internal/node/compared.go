package node

import (
	"context"
	"fmt"

	"github.com/escache/escache-csi/api/v1alpha1"
	"github.com/escache/escache-csi/internal/authority"
	"github.com/escache/escache-csi/internal/cachevolume"
	"github.com/escache/escache-csi/internal/node/comparison"
	"github.com/escache/escache-csi/internal/node/health"
)

// compared returns the record once csi-controller has compared it with the image's metadata. A record that
// a restore of etcd has set back gives this node the volume again, which others have had since. This host's
// disks do not tell, and a host cannot read the metadata. So it is asked before the device is connected: DRBD
// asks the arbiter only where a promotion is made without the peer.
//
// A device that is here already was connected by this attachment, and goes on: nothing is asked, so neither
// Ceph nor csi-controller has to answer.
func (s *Service) compared(ctx context.Context, v *v1alpha1.CacheVolume, again comparison.Reader) (*v1alpha1.CacheVolume, error) {
	status, err := s.Cache.VolumeStatus(ctx, cachevolume.Ref(v))
	if err != nil {
		return nil, fmt.Errorf("status of volume %s: %w", v.Name, err)
	}
	if health.IsConnected(*status) && status.Epoch == v.Status.Epoch && !authority.IsFenced(v, status.ClientAddress) {
		return v, nil
	}
	return s.askForComparison(ctx, v, again)
}

func (s *Service) askForComparison(ctx context.Context, v *v1alpha1.CacheVolume, again comparison.Reader) (*v1alpha1.CacheVolume, error) {
	v, err := comparison.Ask(ctx, s.Kube, v, again)
	if err == nil && s.Compared != nil {
		s.Compared(cachevolume.Ref(v), v.Status.Epoch)
	}
	return v, err
}
