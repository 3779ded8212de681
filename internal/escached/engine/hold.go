package engine

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/escache/escache-csi/api/escache"
	"github.com/escache/escache-csi/internal/crashpoint"
	"github.com/escache/escache-csi/internal/escached/cache"
	"github.com/escache/escache-csi/internal/escached/holds"
	"github.com/escache/escache-csi/internal/escached/host"
	"github.com/escache/escache-csi/internal/escached/problem"
	"github.com/escache/escache-csi/internal/escached/volume"
	"github.com/escache/escache-csi/internal/pause"
)

// cleanTries bounds how often a volume that is being written to is flushed before it is suspended.
const cleanTries = 3

// Hold suspends I/O with a clean cache. The image then has every acknowledged write. Without a pause the
// engine may let I/O go on in the cache.
func (e *Engine) Hold(ctx context.Context, req escache.HoldRequest) (escache.HoldResponse, error) {
	var resp escache.HoldResponse
	err := e.WithDevice(ctx, req.VolumeRef, "hold", func(ctx context.Context, v volume.Volume, dev cache.State) (err error) {
		if err := v.NotLate(req.Epoch); err != nil {
			return err
		}
		resp, err = e.hold(ctx, v, dev, time.Duration(req.MaxSeconds)*time.Second, req.Pause)
		return err
	})
	return resp, err
}

// hold suspends the device for longest at most, and returns when the hold ends. Its time counts from when the
// volume is written back: writing back may take longer than the hold, and I/O goes on meanwhile. A hold that is
// already there is only extended, unless I/O goes on in it, or it was broken off before the image had everything.
func (e *Engine) hold(
	ctx context.Context, v volume.Volume, dev cache.State, longest time.Duration, paused bool,
) (escache.HoldResponse, error) {
	if old := e.Holds.Get(v.Name()); old != nil && old.Complete && dev.Held && !dev.GoesOn {
		hold := e.holdFor(v, longest, paused || old.Paused)
		hold.Complete = true
		if old.Ends > hold.Ends {
			hold.Until, hold.Ends = old.Until, old.Ends
		}
		return escache.HoldResponse{HeldUntil: hold.Until, Paused: true}, e.Holds.Put(hold)
	}
	if err := e.holdable(ctx, v, dev); err != nil {
		return escache.HoldResponse{}, err
	}
	crashpoint.Reach("hold/begin")
	hold := e.holdFor(v, longest, paused)
	// First the record, then the suspension: after a crash in between, the next start finds the
	// record and resumes.
	if err := e.Holds.Put(hold); err != nil {
		return escache.HoldResponse{}, err
	}
	crashpoint.Reach("hold/recorded")
	rests, err := e.suspend(ctx, v, hold)
	crashpoint.Reach("hold/suspended")
	if err == nil {
		hold.Complete = true
		err = e.Holds.Put(hold)
	}
	if err != nil {
		return escache.HoldResponse{}, errors.Join(notHeld(v, err), e.resume(ctx, v.Name()))
	}
	return escache.HoldResponse{HeldUntil: hold.Until, Paused: rests}, nil
}

// holdFor is the record of a hold that begins now.
func (e *Engine) holdFor(v volume.Volume, longest time.Duration, paused bool) holds.Record {
	return holds.Record{VolumeRef: v.VolumeRef, Until: e.Now().Add(longest).UTC(), Ends: e.Uptime() + longest, Paused: paused}
}

// holdable writes the volume back, so that it can be held.
func (e *Engine) holdable(ctx context.Context, v volume.Volume, dev cache.State) error {
	if err := e.NotFrozen(ctx, v); err != nil {
		return err
	}
	if dev.Held {
		var err error
		if dev, err = e.endHold(ctx, v); err != nil {
			return err
		}
	}
	if dev.Failed {
		return v.Fail(escache.CodeCacheError, "the cache reports an error; flush clears it once Ceph is back")
	}
	return e.flushBeforeHold(ctx, v)
}

// suspend has the engine hold the volume, and reports whether I/O rests then. A pause does not outlast the hold,
// however long the image takes. It is an error if the engine does not pause.
func (e *Engine) suspend(ctx context.Context, v volume.Volume, hold holds.Record) (rests bool, err error) {
	if hold.Paused {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(ctx, hold.Ends-e.Uptime())
		defer cancel()
	}
	err = e.Cache(v).Hold(ctx, v.Name(), hold.Paused)
	if err != nil && hold.Paused && errors.Is(ctx.Err(), context.DeadlineExceeded) {
		err = v.Fail(escache.CodeTimeout, "the image could not be brought up to date in the time of the hold (%v); I/O goes on", err)
	}
	if err != nil {
		return false, err
	}
	dev, _, err := e.Device(ctx, v.Name())
	rests = dev.Held && !dev.GoesOn
	if err == nil && hold.Paused && !rests {
		err = v.Fail(escache.CodeInternal, "I/O did not rest during the hold; it goes on")
	}
	return rests, err
}

// endHold ends a hold in which I/O goes on, or that was broken off: the image lacks something. Who began it sees that
// it is over, because the next one has another end.
func (e *Engine) endHold(ctx context.Context, v volume.Volume) (cache.State, error) {
	if err := e.resume(ctx, v.Name()); err != nil {
		return cache.State{}, err
	}
	_, dev, err := e.Connected(ctx, v.VolumeRef)
	return dev, err
}

// flushBeforeHold writes back what is dirty while I/O still goes on, so that the suspension is
// short.
func (e *Engine) flushBeforeHold(ctx context.Context, v volume.Volume) error {
	for range cleanTries {
		if err := e.writeBackWithin(ctx, v, host.ChangeTimeout/2); err != nil {
			return err
		}
		if dev, _, err := e.Device(ctx, v.Name()); err != nil || dev.Dirty == 0 {
			return err
		}
	}
	return nil
}

func (e *Engine) writeBackWithin(ctx context.Context, v volume.Volume, longest time.Duration) error {
	ctx, cancel := context.WithTimeout(ctx, longest)
	defer cancel()
	return e.Cache(v).WriteBack(ctx, v.Name())
}

// notHeld adds to err what becomes of a volume that could not be held.
func notHeld(v volume.Volume, err error) error {
	switch {
	case errors.Is(err, cache.ErrFailed):
		return v.About(fmt.Errorf("%w; I/O goes on, flush clears the error once Ceph is back", err))
	case errors.Is(err, cache.ErrDirty):
		return v.About(fmt.Errorf("%w; I/O goes on", err))
	}
	return v.About(err)
}

// Release ends a hold.
func (e *Engine) Release(ctx context.Context, req escache.ReleaseRequest) error {
	return e.WithReplica(ctx, req.VolumeRef, "release", func(ctx context.Context, v volume.Volume) error {
		if err := v.NotLate(req.Epoch); err != nil {
			return err
		}
		return e.resume(ctx, v.Name())
	})
}

// resume ends a hold, if there is one, and forgets it. It asks all cache engines for the device: before Recover has read
// the volume's tags, nobody knows whose it is.
func (e *Engine) resume(ctx context.Context, name string) error {
	for _, engine := range e.Caches {
		devices, err := engine.States(ctx, name)
		if err == nil && devices[name].Held {
			err = engine.Resume(ctx, name)
		}
		if err != nil {
			return err
		}
	}
	crashpoint.Reach("release/resumed")
	return e.Holds.Drop(name)
}

// releaseOverdue releases a hold whose time was up when the watchdog looked. Recover need not have read the volume's tags.
func (e *Engine) releaseOverdue(ctx context.Context, r holds.Record) {
	ctx, done, err := e.Begin(ctx, r.VolumeRef, "release", host.ChangeTimeout)
	if err == nil {
		defer done()
		name := volume.NameOf(r.VolumeRef)
		if now := e.Holds.Get(name); now == nil || e.Uptime() < now.Ends {
			return // it was ended or prolonged before this had the lock
		}
		if v, _ := e.Volumes.Get(name); v.Phase == volume.Abandoning { // its device stays as it is until it is given up
			_ = e.Holds.Drop(name)
			return
		}
		err = e.resume(ctx, name)
	}
	switch {
	case err == nil:
		e.log.Warn("hold released by the watchdog", "pool", r.Pool, "image", r.Image)
	case problem.Of(err).Code != escache.CodeBusy: // the next round tries again
		e.log.Error("the watchdog cannot release a hold, it tries again", "pool", r.Pool, "image", r.Image, "error", err)
	}
}

// WatchHolds releases holds whose time is up, until ctx ends. Call it before Recover, which may take long or fail.
func (e *Engine) WatchHolds(ctx context.Context) {
	for pause.For(ctx, time.Second) == nil {
		e.releaseAllOverdue(ctx)
	}
}

func (e *Engine) releaseAllOverdue(ctx context.Context) {
	for _, r := range e.Holds.List() {
		if e.Uptime() >= r.Ends {
			e.releaseOverdue(ctx, r)
		}
	}
}
