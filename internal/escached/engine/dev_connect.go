package engine

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/escache/escache-csi/api/escache"
	"github.com/escache/escache-csi/internal/clientaddress"
	"github.com/escache/escache-csi/internal/crashpoint"
	"github.com/escache/escache-csi/internal/escached/cache"
	"github.com/escache/escache-csi/internal/escached/host"
	"github.com/escache/escache-csi/internal/escached/krbd"
	"github.com/escache/escache-csi/internal/escached/memory"
	"github.com/escache/escache-csi/internal/escached/problem"
	"github.com/escache/escache-csi/internal/escached/volume"
	"github.com/escache/escache-csi/internal/traces"
)

const (
	// connectTimeout bounds DevConnect, without the time in which the copy here is read, and what comes after that.
	connectTimeout = 3 * time.Minute
	// checks is how often DevConnect may have to read the copy here: before DRBD runs it, and before it is promoted.
	checks = 2
	// verbConnect is the name under which DevConnect locks a volume.
	verbConnect = "dev_connect"
)

// DevConnect makes the device here, in front of the image alone if the request says so. The order
// matters. The image's lock is held before the replica may become Primary. The epoch is on the disk
// before that too, because the fence-peer handler asks with it, but after every check that needs no
// arbiter. From then on it stays, also if the connect fails: who has been told of an attachment believes
// that this host takes no earlier one any more. The cache's identity is checked before the device is made.
// The link is made last, because a user who finds it may use the device.
func (e *Engine) DevConnect(ctx context.Context, req escache.ConnectRequest) (escache.ConnectResponse, error) {
	none := escache.ConnectResponse{}
	if req.Uncached {
		return e.uncached.Connect(ctx, req)
	}
	if err := e.checkOptions(engineOf(req.Engine), optionsOf(req.Options)); err != nil {
		return none, err
	}
	ctx, done, err := e.Begin(ctx, req.VolumeRef, verbConnect, connectTimeout+checks*e.ReadTime(volume.NameOf(req.VolumeRef)))
	if err != nil {
		return none, err
	}
	defer done()
	v, err := e.Known(req.VolumeRef)
	if err != nil {
		return none, err
	}
	if err := v.NotLate(req.Epoch); err != nil {
		return none, err
	}
	if err := e.fits(ctx, v, req); err != nil {
		return none, err
	}
	if req.ImageID != "" && v.ImageID != "" && req.ImageID != v.ImageID {
		return none, v.Fail(escache.CodeIdentityMismatch,
			"the replica here belongs to image id %s, not %s; the image was replaced by another one of the same name",
			v.ImageID, req.ImageID)
	}
	crashpoint.Reach("dev_connect/begin")
	dev, connected, err := e.Device(ctx, v.Name())
	switch {
	case err != nil:
		return none, err
	case !connected:
		connecting, err := e.claimMemory(v)
		if err != nil {
			return none, err
		}
		defer connecting()
	case connected: // its memory is its own, also if the device is built again
		fenced, err := e.dropFenced(ctx, v, dev, req.Fenced)
		if err != nil {
			return none, err
		}
		if !fenced {
			return e.reconnect(ctx, v, dev, req.Epoch)
		}
	}
	resp, err := e.connect(ctx, v, req)
	if errors.Is(err, cache.ErrRecovering) {
		return none, err // the next call goes on with this attempt: see reconnect
	}
	if err != nil {
		// Undo everything, so that the next attempt starts from the same state, here or on the
		// peer.
		undo, cancel := context.WithTimeout(context.WithoutCancel(ctx), host.ChangeTimeout)
		defer cancel()
		if left := e.UnmapAndDemote(undo, v); left != nil {
			err = errors.Join(err, fmt.Errorf("and undoing it: %w", left))
		}
		return none, err
	}
	return resp, nil
}

// claimMemory promises the memory of a volume's cache until the device is made. If there is too little,
// nothing has changed yet, and what is dirty stays on the disks: so a take-over is refused, too. Without
// the memory the kernel would kill processes of volumes that work.
func (e *Engine) claimMemory(v volume.Volume) (done func(), err error) {
	done, err = e.MemoryClaims.Claim(e.memoryOf(v))
	if errors.Is(err, memory.ErrShort) {
		return nil, v.Fail(escache.CodeNoRoom,
			"host %s cannot connect a cache of %d MiB: %v. Nothing was changed, and all data stay where they are: try again when "+
				"something else on this host has ended, connect the volume on another host of its group, or add memory; see docs/sizing.md",
			e.Config.Node, v.CacheBytes>>20, err)
	}
	return done, err
}

// checkOptions refuses options that an engine cannot work with.
func (e *Engine) checkOptions(of escache.Engine, o cache.Options) error {
	if e.Caches.Has(of) != nil {
		return nil //nolint:nilerr // that is refused later, if it is the engine of the replica
	}
	if err := e.Caches.Of(of).CheckOptions(o); err != nil {
		return problem.New(escache.CodeInvalidRequest, "options: %v", err)
	}
	return nil
}

// fits refuses a request for another cache engine than the replica's, and for one that this host cannot
// run.
func (e *Engine) fits(ctx context.Context, v volume.Volume, req escache.ConnectRequest) error {
	if asked := engineOf(req.Engine); asked != v.Engine {
		return v.Fail(escache.CodeReplicaMismatch,
			"the replica here was created for the cache engine %s, not %s; a replica keeps its engine until it is created again",
			v.Engine, asked)
	}
	if err := e.Caches.CanRun(ctx, v.Engine); err != nil {
		return v.About(fmt.Errorf("on %s: %w", e.Config.Node, err))
	}
	return nil
}

// engineOf returns the engine that a request asks for.
func engineOf(asked escache.Engine) escache.Engine { return cmp.Or(asked, escache.EngineWritecache) }

// dropFenced removes a device whose map's client is fenced, and reports whether it did so.
// What is dirty stays on the disk. Over that map nothing could be written back.
func (e *Engine) dropFenced(ctx context.Context, v volume.Volume, dev cache.State, fenced []string) (bool, error) {
	image, ok, err := e.imageOf(v, dev)
	if err != nil || !ok || !clientaddress.In(fenced, image.ClientAddress) {
		return false, err
	}
	if dev.Open > 0 {
		return false, v.Fail(escache.CodeDeviceOpen, "its Ceph client %s is fenced and the device is open; unmount it, then connect again",
			image.ClientAddress)
	}
	if err := e.NotFrozen(ctx, v); err != nil {
		return false, err
	}
	e.log.Warn("the device is built again: its Ceph client is fenced", "pool", v.Pool, "image", v.Image, "client", image.ClientAddress)
	crashpoint.Reach("dev_connect/fenced")
	return true, e.UnmapAndDemote(ctx, v)
}

// reconnect answers for a volume that is already connected here, and stores the newer epoch.
func (e *Engine) reconnect(ctx context.Context, v volume.Volume, dev cache.State, epoch int64) (escache.ConnectResponse, error) {
	image, ok, err := e.imageOf(v, dev)
	if err != nil {
		return escache.ConnectResponse{}, err
	}
	if !ok {
		return escache.ConnectResponse{}, v.Fail(escache.CodeCacheError,
			"the device's origin %s is not a map of the image; stop the device and connect again",
			dev.Origin)
	}
	if dev.Failed && e.Holds.Get(v.Name()) == nil {
		if err := e.Cache(v).Retry(ctx, v.Name()); err != nil {
			return escache.ConnectResponse{}, err
		}
	}
	link, err := e.Adopt(ctx, v, dev)
	if err != nil {
		return escache.ConnectResponse{}, e.dropDamaged(ctx, v, dev, err)
	}
	e.faults.Delete(v.Name())
	next := v
	next.Epoch = epoch
	err = e.Retag(ctx, v, next)
	crashpoint.Reach("dev_connect/newer_epoch_stored")
	return escache.ConnectResponse{Device: link, ImageID: image.ImageID, ClientAddress: image.ClientAddress}, err
}

// dropDamaged takes back an attempt to connect that has ended in damage which nobody waited for: reading the log took
// longer than the call. It returns the error, and remembers the damage.
func (e *Engine) dropDamaged(ctx context.Context, v volume.Volume, dev cache.State, err error) error {
	if !isDamage(err) || dev.Open > 0 {
		return err
	}
	err = e.noteDamage(v, err, e.written(v))
	undo, cancel := context.WithTimeout(context.WithoutCancel(ctx), host.ChangeTimeout)
	defer cancel()
	if left := e.UnmapAndDemote(undo, v); left != nil {
		err = errors.Join(err, fmt.Errorf("and undoing it: %w", left))
	}
	return err
}

// imageOf returns the map below a device.
func (e *Engine) imageOf(v volume.Volume, dev cache.State) (krbd.Device, bool, error) {
	maps, err := e.Images.Find(v.Pool, v.Image)
	if err != nil {
		return krbd.Device{}, false, err
	}
	for _, m := range maps {
		if m.Number == dev.Origin {
			return m, true, nil
		}
	}
	return krbd.Device{}, false, nil
}

// connect makes the device, from a ready replica to the link that users open.
func (e *Engine) connect(ctx context.Context, v volume.Volume, req escache.ConnectRequest) (escache.ConnectResponse, error) {
	none := escache.ConnectResponse{}
	if err := e.EnsureUp(ctx, v); err != nil {
		return none, err
	}
	if err := e.mayPromote(ctx, v); err != nil {
		return none, err
	}
	// An attempt that was killed half way may have left maps.
	if err := e.UnmapAndDemote(ctx, v); err != nil {
		return none, err
	}
	next, image, err := e.mapImage(ctx, v, req)
	if err != nil {
		return none, err
	}
	// A promotion without the peer puts the peer on record as outdated. So look at this copy first: if
	// it is damaged, the peer's is the one that counts.
	if err := e.checkCopy(ctx, v, image.ImageID); err != nil {
		return none, err
	}
	crashpoint.Reach("dev_connect/copy_checked")
	ctx, cancel := context.WithTimeout(ctx, connectTimeout)
	defer cancel()
	if err := e.Retag(ctx, v, next); err != nil {
		return none, err
	}
	v = next
	crashpoint.Reach("dev_connect/epoch_stored")
	if err := e.promote(ctx, v); err != nil {
		return none, err
	}
	crashpoint.Reach("dev_connect/promoted")
	link, err := e.assemble(ctx, v, image, req.Options)
	if err == nil || errors.Is(err, cache.ErrRecovering) {
		e.standbys.Drop(v.Name())
		e.faults.Delete(v.Name())
	}
	if err != nil {
		return none, err
	}
	crashpoint.Reach("dev_connect/linked")
	return escache.ConnectResponse{Device: link, ImageID: image.ImageID, ClientAddress: image.ClientAddress}, nil
}

// mapImage maps the image and checks that it is the right one. It returns the volume with the epoch and the
// image's id and size, which are still to be stored.
func (e *Engine) mapImage(ctx context.Context, v volume.Volume, req escache.ConnectRequest) (
	_ volume.Volume, _ krbd.Device, err error,
) {
	ctx, step := traces.Begin(ctx, "map the image")
	defer step.Done(&err)
	image, err := e.Images.Map(ctx, v.Name(), v.Pool, v.Image)
	if err != nil {
		return v, image, err
	}
	crashpoint.Reach("dev_connect/mapped")
	next, err := identify(v, req, image)
	return next, image, err
}

// checkCopy looks at the local copy, below DRBD. It remembers a copy that is damaged, for Status. If it does not learn
// whether it is, what was known stays, and the error wraps cache.ErrUnchecked.
func (e *Engine) checkCopy(ctx context.Context, v volume.Volume, imageID string) (err error) {
	ctx, step := traces.Begin(ctx, "check the copy")
	defer step.Done(&err)
	before := e.written(v)
	err = e.Cache(v).Check(ctx, e.LocalDisk(v), cache.Identity{Pool: v.Pool, Image: v.Image, ImageID: imageID}, v.Formatted)
	switch {
	case err == nil:
		e.damaged.Delete(v.Name())
		return nil
	case !isDamage(err):
		return v.About(fmt.Errorf("on %s: %w", e.Config.Node, err))
	}
	return e.noteDamage(v, err, before)
}

// assemble makes the device of a promoted replica and returns the link to it.
func (e *Engine) assemble(ctx context.Context, v volume.Volume, image krbd.Device, o escache.ConnectOptions) (link string, err error) {
	ctx, step := traces.Begin(ctx, "make the device")
	defer step.Done(&err)
	spec := cache.Spec{Disk: host.DiskOf(v), Origin: image.Path(), Bytes: image.Bytes, Options: optionsOf(o)}
	id := cache.Identity{Pool: v.Pool, Image: v.Image, ImageID: image.ImageID}
	if err := e.Cache(v).Prepare(ctx, spec, id, v.Formatted); err != nil {
		return "", e.noteDamage(v, err, e.written(v))
	}
	crashpoint.Reach("dev_connect/prepared")
	formatted := v
	formatted.Formatted = true
	if err := e.Retag(ctx, v, formatted); err != nil {
		return "", err
	}
	v = formatted
	crashpoint.Reach("dev_connect/formatted_tagged")
	path, err := e.Cache(v).Assemble(ctx, spec)
	if err != nil {
		return "", e.noteDamage(v, err, e.written(v))
	}
	link, err = e.Link(v, path)
	if err != nil {
		return "", errors.Join(err, e.Cache(v).Remove(ctx, v.Name()))
	}
	return link, nil
}

func optionsOf(o escache.ConnectOptions) cache.Options {
	return cache.Options{
		Mode: cache.Mode(o.Mode), HighWatermark: o.HighWatermark, LowWatermark: o.LowWatermark, MaxAgeSeconds: o.MaxDirtyAgeSeconds,
		StrictOrder: o.WriteBackOrder == escache.OrderStrict,
	}
}

// identify checks that the mapped image is the right one. It returns the volume with the new epoch
// and the image's id and size.
func identify(v volume.Volume, req escache.ConnectRequest, image krbd.Device) (volume.Volume, error) {
	for _, want := range []string{req.ImageID, v.ImageID} {
		if want != "" && want != image.ImageID {
			return v, v.Fail(escache.CodeIdentityMismatch,
				"Ceph's image has id %s, not %s; the image was replaced by a new one of this name, and this cache belongs to the old one",
				image.ImageID, want)
		}
	}
	if image.Bytes < v.SizeBytes {
		return v, v.Fail(escache.CodeIdentityMismatch, "the image has %d bytes, but had %d before; grow it to that size before connecting",
			image.Bytes, v.SizeBytes)
	}
	v.ImageID, v.SizeBytes, v.Epoch = image.ImageID, image.Bytes, req.Epoch
	return v, nil
}
