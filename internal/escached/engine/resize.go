package engine

import (
	"context"

	"github.com/escache/escache-csi/api/escache"
	"github.com/escache/escache-csi/internal/crashpoint"
	"github.com/escache/escache-csi/internal/escached/cache"
	"github.com/escache/escache-csi/internal/escached/host"
	"github.com/escache/escache-csi/internal/escached/problem"
	"github.com/escache/escache-csi/internal/escached/volume"
	"github.com/escache/escache-csi/internal/pause"
)

// Resize makes the device as large as the image has become, under running I/O.
func (e *Engine) Resize(ctx context.Context, req escache.ResizeRequest) error {
	return e.Change(ctx, req.VolumeRef, "resize", func(ctx context.Context, v volume.Volume, dev cache.State) error {
		return e.resize(ctx, v, dev, req.SizeBytes)
	})
}

func (e *Engine) resize(ctx context.Context, v volume.Volume, dev cache.State, bytes int64) error {
	if bytes < dev.Bytes {
		return problem.New(escache.CodeInvalidRequest,
			"sizeBytes: %s/%s has %d bytes already; a device never shrinks", v.Pool, v.Image, dev.Bytes)
	}
	if bytes > dev.Bytes {
		if err := e.waitForSize(ctx, v, bytes); err != nil {
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

// sizePolls bounds how long Ceph may take to report the new size: 10 s.
const sizePolls = 50

// waitForSize waits until krbd has heard from Ceph that the image has grown.
func (e *Engine) waitForSize(ctx context.Context, v volume.Volume, want int64) error {
	var have int64
	for range sizePolls {
		maps, err := e.Images.Find(v.Pool, v.Image)
		if err != nil {
			return err
		}
		for _, m := range maps {
			if have = m.Bytes; have >= want {
				return nil
			}
		}
		if err := pause.For(ctx, host.Poll); err != nil {
			return err
		}
	}
	return v.Fail(escache.CodeInvalidRequest, "sizeBytes: the image has %d bytes, less than %d; grow it in Ceph first", have, want)
}
