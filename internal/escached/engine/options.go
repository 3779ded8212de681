package engine

import (
	"context"

	"github.com/escache/escache-csi/api/escache"
	"github.com/escache/escache-csi/internal/crashpoint"
	"github.com/escache/escache-csi/internal/escached/cache"
	"github.com/escache/escache-csi/internal/escached/volume"
)

// SetOptions changes the options of a running cache, and returns those in force. The running device
// is the only record of them. A newer epoch than this host's is not stored: the attachment of that
// epoch connects the device by itself.
func (e *Engine) SetOptions(ctx context.Context, req escache.OptionsRequest) (escache.OptionsResponse, error) {
	want := optionsOf(escache.ConnectOptions{CacheOptions: req.Options})
	of := escache.EngineWritecache // of a volume that is not here: bad options are told first
	if v, ok := e.Volumes.Get(volume.NameOf(req.VolumeRef)); ok {
		of = v.Engine
	}
	if err := e.checkOptions(of, want); err != nil {
		return escache.OptionsResponse{}, err
	}
	var resp escache.OptionsResponse
	err := e.Change(ctx, req.VolumeRef, "options", func(ctx context.Context, v volume.Volume, dev cache.State) error {
		if err := v.NotLate(req.Epoch); err != nil {
			return err
		}
		crashpoint.Reach("options/begin")
		if err := e.Cache(v).SetOptions(ctx, v.Name(), want); err != nil {
			return err
		}
		crashpoint.Reach("options/reloaded")
		now, _, err := e.Device(ctx, v.Name())
		o := now.Options
		resp.Options = escache.CacheOptions{
			HighWatermark: o.HighWatermark, LowWatermark: o.LowWatermark, MaxDirtyAgeSeconds: o.MaxAgeSeconds,
		}
		if o.StrictOrder {
			resp.Options.WriteBackOrder = escache.OrderStrict
		}
		return err
	})
	return resp, err
}
