package volumes

import (
	"context"

	"github.com/escache/escache-csi/api/v1alpha1"
	"github.com/escache/escache-csi/internal/crashpoint"
)

// giveBack ends a pod's attachment that began where the volume was being written back, and that nobody has used:
// the node keeps the device, and goes on writing back for nobody. That gets an epoch of its own, so that a
// NodeStage that is still on its way is refused. The image is told of it before the host connects by it, as at
// each write-back.
func (s *Steps) giveBack(ctx context.Context, v *v1alpha1.CacheVolume, node string) error {
	// Afterwards nothing could tell that the record was set back.
	if err := s.newest(ctx, v, s.Reports(ctx, v, s.WellReplicas(v))); err != nil {
		return err
	}
	s.Log.InfoContext(ctx, "its pod has not used it, and it is written back for nobody", "volume", v.Name, "node", node)
	v.Status.Epoch++
	v.Status.FlushEpoch, v.Status.WriteThrough = v.Status.Epoch, nil
	if err := s.UpdateStatus(ctx, v, "node "+node+" has it to write back its cache, and no pod has it any more"); err != nil {
		return err
	}
	crashpoint.Reach("unpublish/given_back")
	return nil
}
