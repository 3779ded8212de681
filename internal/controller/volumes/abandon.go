package volumes

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"github.com/escache/escache-csi/api/escache"
	"github.com/escache/escache-csi/api/v1alpha1"
	"github.com/escache/escache-csi/internal/authority"
	"github.com/escache/escache-csi/internal/cachevolume"
)

// abandon makes earlier holders whose Ceph clients were fenced give up their device before the node
// connects its own. One that lives and is linked to the node keeps it from being promoted. What such
// a holder has acknowledged is on its peer too. One that does not answer is not waited for, and
// neither is one that fails and is not linked: it keeps nobody out.
func (s *Steps) abandon(ctx context.Context, v *v1alpha1.CacheVolume, node string) error {
	for _, holder := range v.Spec.Replicas {
		fenced := slices.ContainsFunc(v.Status.Fenced, func(c v1alpha1.FencedClient) bool { return c.Node == holder })
		if holder == node || !fenced {
			continue
		}
		err := s.Hosts.Abandon(ctx, holder, cachevolume.Ref(v), v.Status.Epoch)
		problem, answered := errors.AsType[*escache.Problem](err)
		if err == nil || answered && problem.Code == escache.CodeDeviceOpen {
			continue // while it is open, its I/O fails and its link is down
		}
		s.Log.WarnContext(ctx, "an earlier holder does not give up its device", "volume", v.Name, "node", holder, "error", err)
		status, statusErr := s.Hosts.Status(ctx, holder, cachevolume.Ref(v))
		if authority.KeepsOut(authority.Heard(v, holder, status, statusErr)) {
			return fmt.Errorf("volume %s: node %s was fenced and still has its device, which keeps node %s out: %w: %w",
				v.Name, holder, node, err, ErrUnavailable)
		}
	}
	return nil
}
