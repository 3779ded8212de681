package engine

import (
	"context"

	"github.com/escache/escache-csi/api/escache"
	"github.com/escache/escache-csi/internal/crashpoint"
	"github.com/escache/escache-csi/internal/escached/cache"
	"github.com/escache/escache-csi/internal/escached/volume"
)

// SetMode turns draining on and off. The running device is the only record of the mode.
func (e *Engine) SetMode(ctx context.Context, req escache.ModeRequest) error {
	mode := cache.Mode(req.Mode)
	return e.Change(ctx, req.VolumeRef, "mode", func(ctx context.Context, v volume.Volume, dev cache.State) error {
		if err := v.NotLate(req.Epoch); err != nil {
			return err
		}
		if dev.Options.Mode == mode && !dev.Held { // what completed an interrupted change may have set another one
			return nil
		}
		crashpoint.Reach("mode/begin")
		err := e.Cache(v).SetMode(ctx, v.Name(), mode)
		crashpoint.Reach("mode/reloaded")
		return err
	})
}
