package engine

import (
	"context"

	"github.com/escache/escache-csi/api/escache"
	"github.com/escache/escache-csi/internal/crashpoint"
	"github.com/escache/escache-csi/internal/escached/cache/writecache"
)

// SetMode turns draining on and off by reloading the table, so that the kernel itself is the record of the mode.
func (e *Engine) SetMode(ctx context.Context, req escache.ModeRequest) error {
	drain := req.Mode == escache.ModeWritethrough
	return e.change(ctx, req.VolumeRef, "mode", func(ctx context.Context, v volume, dev writecache.Device) error {
		if dev.Cleaner == drain {
			return nil
		}
		table := dev.Table
		table.Cleaner = drain
		crashpoint.Reach("mode/begin")
		err := e.reload(ctx, v.name(), dev.Table, table)
		crashpoint.Reach("mode/reloaded")
		return err
	})
}
