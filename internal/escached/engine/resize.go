package engine

import (
	"context"

	"github.com/escache/escache-csi/api/escache"
	"github.com/escache/escache-csi/internal/crashpoint"
	"github.com/escache/escache-csi/internal/escached/cache"
	"github.com/escache/escache-csi/internal/escached/problem"
	"github.com/escache/escache-csi/internal/escached/volume"
)

// Resize makes the device as large as the image has become, under running I/O.
func (e *Engine) Resize(ctx context.Context, req escache.ResizeRequest) error {
	if e.isUncached(req.VolumeRef) {
		return e.uncached.Resize(ctx, req)
	}
	return e.Change(ctx, req.VolumeRef, "resize", func(ctx context.Context, v volume.Volume, dev cache.State) error {
		if err := v.NotLate(req.Epoch); err != nil {
			return err
		}
		return e.resize(ctx, v, dev, req.SizeBytes)
	})
}

func (e *Engine) resize(ctx context.Context, v volume.Volume, dev cache.State, bytes int64) error {
	if bytes < dev.Bytes {
		return problem.New(escache.CodeInvalidRequest,
			"sizeBytes: %s/%s has %d bytes already; a device never shrinks", v.Pool, v.Image, dev.Bytes)
	}
	if bytes > dev.Bytes {
		if err := e.WaitForSize(ctx, v.VolumeRef, bytes); err != nil {
			return err
		}
		crashpoint.Reach("resize/begin")
	}
	if err := e.Cache(v).Resize(ctx, v.Name(), bytes); err != nil {
		return err
	}
	crashpoint.Reach("resize/exposed")
	next := v
	next.SizeBytes = max(v.SizeBytes, bytes)
	err := e.Retag(ctx, v, next)
	crashpoint.Reach("resize/tagged")
	return err
}
