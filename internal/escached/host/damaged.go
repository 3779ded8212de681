package host

import (
	"context"
	"errors"
	"fmt"
	"net/http"

	"github.com/escache/escache-csi/api/escache"
	"github.com/escache/escache-csi/internal/crashpoint"
	"github.com/escache/escache-csi/internal/escached/cache"
	"github.com/escache/escache-csi/internal/escached/problem"
	"github.com/escache/escache-csi/internal/escached/volume"
)

// setDamagedAside looks at the copy of a replica that DRBD does not run, before DRBD does. A host
// that was Primary when it lost its power is the source of the next resync, so a damaged copy there
// would overwrite the good one. It is put on record as outdated, and gets fresh metadata: the peer
// fills it. If it is the only current copy it stays as it is. Until the arbiter has answered it may
// not come up, and the error wraps cache.ErrCorrupt or cache.ErrForeign.
func (h *Host) setDamagedAside(ctx context.Context, v volume.Volume) error {
	if !v.Formatted {
		return nil // it was never Primary here
	}
	id := cache.Identity{Pool: v.Pool, Image: v.Image, ImageID: v.ImageID}
	damage := h.Caches.Check(ctx, h.LocalDisk(v), id, v.Formatted)
	if !errors.Is(damage, cache.ErrCorrupt) && !errors.Is(damage, cache.ErrForeign) {
		return nil // what else is wrong shows when it is used
	}
	asking, cancel := context.WithTimeout(ctx, h.Config.ArbiterTimeout)
	defer cancel()
	err := h.Records.OutdateSelf(asking, escache.OutdateSelfRequest{
		VolumeRef: v.VolumeRef, ImageID: v.ImageID, Node: h.Config.Node, Peer: v.Peer.Name,
	})
	if err != nil {
		if status := escache.StatusOf(problem.Of(err).Code); status == http.StatusConflict || status == http.StatusNotFound {
			return nil
		}
		told := err.Error() // its code is not this one's
		return v.About(fmt.Errorf("on %s: %w, and the arbiter could not be told: %s", h.Config.Node, damage, told))
	}
	crashpoint.Reach("damaged/on_record")
	if err := h.Replicator.CreateMetadata(ctx, v.Name()); err != nil {
		return err
	}
	crashpoint.Reach("damaged/metadata_made")
	empty := v
	empty.Formatted, empty.Joined = false, true
	return h.Retag(ctx, v, empty)
}
