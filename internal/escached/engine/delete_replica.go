package engine

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/escache/escache-csi/api/escache"
	"github.com/escache/escache-csi/internal/command"
	"github.com/escache/escache-csi/internal/crashpoint"
	"github.com/escache/escache-csi/internal/escached"
	"github.com/escache/escache-csi/internal/escached/problem"
	"github.com/escache/escache-csi/internal/escached/volume"
	"github.com/escache/escache-csi/internal/traces"
)

// DeleteReplica removes this host's replica if it is known to be clean. A dirty one is removed only
// if discardUpTo is given, and if this host has seen no later attachment than that. One that its peer
// lives from stays in any case: see spare.
func (e *Engine) DeleteReplica(ctx context.Context, ref escache.VolumeRef, discardUpTo *int64) error {
	ctx, done, err := e.BeginInTurn(ctx, ref, "delete_replica")
	if err != nil {
		return err
	}
	defer done()
	v, ok := e.Volumes.Get(volume.NameOf(ref))
	if !ok {
		return nil
	}
	if _, connected, err := e.Device(ctx, v.Name()); err != nil {
		return err
	} else if connected {
		return problem.On(ref, escache.CodeConnected, "it is connected on %s; flush and stop it first", e.Config.Node)
	}
	if v.Phase == volume.Abandoning && discardUpTo == nil {
		if err := e.finishAbandon(ctx, v); err != nil {
			return err
		}
		v.Phase = volume.Ready
	}
	if v.Phase == volume.Ready {
		if err := e.spare(ctx, v); err != nil {
			return err
		}
		if err := e.mayDrop(ctx, v, discardUpTo); err != nil {
			return err
		}
	}
	crashpoint.Reach("delete_replica/begin")
	return e.finishDelete(ctx, v)
}

// mayDrop fails if dirty data would be lost with this replica, unless that is allowed. The
// permission covers attachments up to an epoch. It does not cover what later ones have written.
func (e *Engine) mayDrop(ctx context.Context, v volume.Volume, discardUpTo *int64) error {
	if discardUpTo != nil && v.Epoch > *discardUpTo {
		return v.Fail(escache.CodeStaleEpoch,
			"the replica on %s has seen epoch %d, and what was written up to epoch %d is to be discarded; read the volume's record again",
			e.Config.Node, v.Epoch, *discardUpTo)
	}
	dirty, err := e.dirtyOrScanned(ctx, v)
	if discardUpTo == nil {
		if err == nil && dirty > 0 {
			return v.Fail(escache.CodeDirty, "the replica on %s holds %d bytes that are not in Ceph yet; connect and flush it first",
				e.Config.Node, dirty)
		}
		return err
	}
	if err != nil {
		e.log.Warn("replica discarded, with an unknown amount of unflushed data", "pool", v.Pool, "image", v.Image, "error", err)
	} else {
		e.log.Warn("replica discarded", "pool", v.Pool, "image", v.Image, "lostBytes", dirty)
	}
	return nil
}

// countTimeout is how long DeleteReplica waits for a count, so that time is left to remove the replica.
const countTimeout = 90 * time.Second

// dirtyOrScanned is DirtyHere. If a count takes too long, what was found when the copy was scanned counts, if nothing was
// written to it since.
func (e *Engine) dirtyOrScanned(ctx context.Context, v volume.Volume) (int64, error) {
	counting, cancel := context.WithTimeout(ctx, countTimeout)
	defer cancel()
	dirty, err := e.DirtyHere(counting, v)
	if err == nil || counting.Err() == nil {
		return dirty, err
	}
	st, up, readErr := e.Replica(v.Minor)
	if readErr != nil || !up {
		return 0, err
	}
	if found := e.standbys.Known(v.Name(), st); found != nil {
		return *found, nil
	}
	return 0, err
}

// finishDelete removes everything of a replica. It is repeated until it succeeds, also after a
// restart. While the peer lives from the replica, the error wraps errOnlyCopy and all of it stays.
func (e *Engine) finishDelete(ctx context.Context, v volume.Volume) (err error) {
	ctx, step := traces.Begin(ctx, "remove the replica")
	defer step.Done(&err)
	if err := e.Caches.Has(v.Engine); err != nil {
		return v.About(err) // its device may be there
	}
	gone := v
	gone.Phase = volume.Deleting
	if err := e.Retag(ctx, v, gone); err != nil {
		return err
	}
	crashpoint.Reach("delete_replica/decided")
	if err := e.UnmapAndDemote(ctx, v); err != nil {
		return err
	}
	st, up, err := e.Replica(v.Minor)
	if err != nil {
		return err
	}
	there, err := e.HasMinor(v.Minor)
	if err != nil {
		return err
	}
	if there {
		// drbdadm needs the resource file to take the resource down.
		if _, err := e.WriteResource(v); err != nil {
			return err
		}
		if err := e.spare(ctx, gone); err != nil {
			return err
		}
		if err := e.Replicator.Down(ctx, v.Name()); err != nil {
			return err
		}
	}
	crashpoint.Reach("delete_replica/down")
	active := up && !st.Disk.Lost() // DRBD had the LV open a moment ago
	switch {
	case e.Config.Wipe == escached.WipeFull && v.Phase != volume.Creating: // else nothing was ever written to it
		if err := e.erase(ctx, v, active); err != nil {
			return err
		}
	case e.Config.Wipe != escached.WipeNone:
		e.wipe(ctx, v, active)
	}
	crashpoint.Reach("delete_replica/wiped")
	if err := e.Resources.Forget(v.Name()); err != nil {
		return err
	}
	if err := e.Secrets.Set(v.Name(), ""); err != nil {
		return err
	}
	crashpoint.Reach("delete_replica/resource_removed")
	if err := e.FailedDisks.Drop(v.Name()); err != nil {
		return err
	}
	if err := e.removeLV(ctx, v); err != nil {
		return err
	}
	crashpoint.Reach("delete_replica/lv_removed")
	e.Volumes.Drop(v.Name())
	e.standbys.Drop(v.Name())
	e.faults.Delete(v.Name())
	e.damaged.Delete(v.Name())
	e.lost.Delete(v.Name())
	e.erased.Delete(v.Name())
	return nil
}

// removeLV removes the LV of a replica, and counts the space that it had. An earlier call may have removed
// it already, and its space may be counted or not: then the volume group is read again.
func (e *Engine) removeLV(ctx context.Context, v volume.Volume) error {
	change := e.space.Change()
	was, err := e.Store.Remove(ctx, v.Name())
	switch {
	case err != nil:
		return err
	case was:
		change.Done(ctx, -v.CacheBytes)
	default:
		_ = e.space.Refresh(ctx) // it keeps the error
	}
	return nil
}

// wipe makes the disk of a replica that is down look as if it was never used: whoever gets the same
// place on the disk finds neither a cache nor a replica there. The data between stays. A disk that
// takes no writes is no reason to keep the replica, so an error is only logged. active is true if the LV is
// known to be active.
func (e *Engine) wipe(ctx context.Context, v volume.Volume, active bool) {
	_, err := e.WriteResource(v)
	if err == nil && !active {
		err = e.Store.Activate(ctx, v.Name())
	}
	if err == nil {
		err = errors.Join(e.Cache(v).Wipe(ctx, e.LocalDisk(v)), e.Replicator.WipeMetadata(ctx, v.Name()))
	}
	if err != nil {
		e.log.Warn("a replica is removed, and its headers stay on the disk", "pool", v.Pool, "image", v.Image, "error", err)
	}
}

// erasePiece is how much is zeroed by one command.
const erasePiece = 256 << 20

// erase zeroes the disk of a replica that is down. If the call's time ends first, the next call goes on
// where this one has stopped. One replica is erased at a time: more would keep others waiting for their
// turn, and for the disk. A disk that takes no writes is no reason to keep the replica, so any other
// error is only logged. active is that of wipe.
func (e *Engine) erase(ctx context.Context, v volume.Volume, active bool) (err error) {
	ctx, step := traces.Begin(ctx, "wipe the disk")
	defer step.Done(&err)
	if !e.erasing.TryLock() {
		return v.Fail(escache.CodeBusy, "%s is erasing another replica; ask again", e.Config.Node)
	}
	defer e.erasing.Unlock()
	name := v.Name()
	if !active {
		err = e.Store.Activate(ctx, name)
	}
	at := int64(0)
	if before, ok := e.erased.Load(name); ok {
		at = before.(int64) //nolint:forcetypeassert // nothing else is stored
	}
	for err == nil && at < v.CacheBytes {
		piece := int64(erasePiece)
		if v.CacheBytes-at <= piece {
			piece = 0 // to the end: LVM may have rounded the size up
		}
		if err = e.Store.Erase(ctx, name, at, piece); err == nil {
			at += erasePiece
			e.erased.Store(name, at)
		}
	}
	switch {
	case err == nil:
		return nil
	case ctx.Err() != nil || errors.Is(err, command.ErrStuck):
		// How much is another number at each try. Kubernetes makes an Event of each different text.
		e.log.Info("a replica is erased in part", "pool", v.Pool, "image", v.Image, "erasedBytes", at, "ofBytes", v.CacheBytes)
		return fmt.Errorf("its disk is erased in part, and the next call goes on there: %w", err)
	}
	e.log.Error("a replica is removed, and what it held stays on the disk",
		"pool", v.Pool, "image", v.Image, "erasedBytes", at, "error", err)
	return nil
}
