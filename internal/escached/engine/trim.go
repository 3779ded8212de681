package engine

import (
	"context"

	"github.com/escache/escache-csi/api/escache"
	"github.com/escache/escache-csi/internal/crashpoint"
	"github.com/escache/escache-csi/internal/escached/cache"
	"github.com/escache/escache-csi/internal/escached/volume"
)

// Trim has the device's filesystem discard its free space, also while users have it mounted here.
func (e *Engine) Trim(ctx context.Context, req escache.TrimRequest) (escache.TrimResponse, error) {
	if e.isUncached(req.VolumeRef) {
		return e.uncached.Trim(ctx, req)
	}
	var answer escache.TrimResponse
	err := e.Change(ctx, req.VolumeRef, "trim", func(ctx context.Context, v volume.Volume, dev cache.State) (err error) {
		if err := v.NotLate(req.Epoch); err != nil {
			return err
		}
		crashpoint.Reach("trim/begin")
		answer, err = e.TrimDevice(ctx, req, dev.Path)
		return err
	})
	return answer, err
}
