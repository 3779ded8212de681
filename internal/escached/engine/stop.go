package engine

import (
	"context"
	"errors"

	"github.com/escache/escache-csi/api/escache"
	"github.com/escache/escache-csi/internal/crashpoint"
	"github.com/escache/escache-csi/internal/escached/cache"
	"github.com/escache/escache-csi/internal/escached/drbd"
	"github.com/escache/escache-csi/internal/escached/host"
	"github.com/escache/escache-csi/internal/escached/volume"
	"github.com/escache/escache-csi/internal/traces"
)

// Stop removes the device, unmaps the image and demotes the replica. It does not flush, and fails
// unless the cache is known to be clean.
func (e *Engine) Stop(ctx context.Context, req escache.StopRequest) error {
	if e.isUncached(req.VolumeRef) {
		return e.uncached.Stop(ctx, req)
	}
	return e.WithReplica(ctx, req.VolumeRef, "stop", func(ctx context.Context, v volume.Volume) error {
		if err := v.NotLate(req.Epoch); err != nil {
			return err
		}
		return e.stop(ctx, v)
	})
}

func (e *Engine) stop(ctx context.Context, v volume.Volume) (err error) {
	ctx, step := traces.Begin(ctx, "remove the device")
	defer step.Done(&err)
	dev, connected, err := e.Device(ctx, v.Name())
	if err != nil {
		return err
	}
	if !connected {
		return e.UnmapAndDemote(ctx, v)
	}
	if err := e.mayStop(v, dev); err != nil {
		return err
	}
	if err := e.NotFrozen(ctx, v); err != nil {
		return err
	}
	crashpoint.Reach("stop/begin")
	if err := e.end(ctx, v); err != nil {
		return err
	}
	crashpoint.Reach("stop/removed")
	before, _, err := e.Replica(v.Minor)
	if err != nil {
		return err
	}
	if err := e.stayedClean(ctx, v, dev); err != nil {
		return err
	}
	if err := e.UnmapAndDemote(ctx, v); err != nil {
		return err
	}
	e.standsClean(v, before)
	return nil
}

// end removes the device. If its process has failed since mayStop, nobody knows whether it is clean, and
// end makes the device again and fails.
func (e *Engine) end(ctx context.Context, v volume.Volume) error {
	err := e.Cache(v).Stop(ctx, v.Name())
	if !errors.Is(err, cache.ErrUnserved) {
		return err
	}
	return errors.Join(v.Fail(escache.CodeDirtyUnknown, "its cache process failed while it was being stopped; flush again: %v", err),
		e.Cache(v).Resume(ctx, v.Name()))
}

func (e *Engine) mayStop(v volume.Volume, dev cache.State) error {
	switch {
	case e.Holds.Get(v.Name()) == nil && dev.Unserved != "":
		return v.Fail(escache.CodeDirtyUnknown, "it is not known whether it is clean: %s; repeat the call", dev.Unserved)
	case e.Holds.Get(v.Name()) != nil, dev.Held:
		return v.Fail(escache.CodeHeld, "it is held; release it first")
	case dev.Open > 0:
		return v.Fail(escache.CodeDeviceOpen, "the device is open %d times; unmount it first", dev.Open)
	case dev.Failed:
		return v.Fail(escache.CodeCacheError,
			"the cache reports an error, so it is not known whether it is clean; flush clears the error once Ceph is back")
	case !dev.Known:
		return v.Fail(escache.CodeDirtyUnknown, "the cache does not report how much is dirty")
	case dev.Dirty > 0:
		return v.Fail(escache.CodeDirty, "%d bytes are not in Ceph yet; flush first", dev.Dirty)
	}
	return nil
}

// stayedClean counts the dirty bytes again after the device is removed, because someone may have
// written between mayStop and the removal. If so, it makes the device again and fails.
func (e *Engine) stayedClean(ctx context.Context, v volume.Volume, dev cache.State) error {
	dirty, err := e.Cache(v).Dirty(ctx, host.DiskOf(v))
	if err == nil && dirty == 0 {
		return nil
	}
	if err == nil {
		err = v.Fail(escache.CodeDirty, "%d bytes were written while it was being stopped; flush again", dirty)
	}
	_, back := e.Cache(v).Assemble(ctx, cache.Spec{Disk: host.DiskOf(v), Origin: dev.Origin, Bytes: dev.Bytes, Options: dev.Options})
	return errors.Join(err, back)
}

// standsClean remembers the zero that stayedClean has counted, so that the new standby's disk
// is not scanned again. It does so only if nothing was written since before.
func (e *Engine) standsClean(v volume.Volume, before drbd.Status) {
	after, up, err := e.Replica(v.Minor)
	if err == nil && up && before.Current() && after.Current() && after.DiskWrittenKiB == before.DiskWrittenKiB {
		e.standbys.SetClean(v.Name(), after)
	}
}
