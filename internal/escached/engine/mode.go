package engine

import (
	"context"

	"github.com/escache/escache-csi/api/escache"
	"github.com/escache/escache-csi/internal/crashpoint"
)

// SetMode turns draining on and off by reloading the table, so that the kernel itself is the record of the mode.
func (e *Engine) SetMode(ctx context.Context, req escache.ModeRequest) error {
	ctx, done, err := e.begin(ctx, req.VolumeRef, "mode", changeTimeout)
	if err != nil {
		return err
	}
	defer done()
	v, dev, err := e.connected(ctx, req.VolumeRef)
	if err != nil {
		return err
	}
	if err := e.mayTouch(ctx, v, dev); err != nil {
		return err
	}
	drain := req.Mode == escache.ModeWritethrough
	if dev.Cleaner == drain {
		return nil
	}
	table := dev.Table
	table.Cleaner = drain
	crashpoint.Reach("mode/begin")
	err = e.reload(ctx, v.name(), dev.Table, table)
	crashpoint.Reach("mode/reloaded")
	return err
}
