package engine

import (
	"context"
	"errors"
	"slices"

	"github.com/escache/escache-csi/api/escache"
	"github.com/escache/escache-csi/internal/crashpoint"
	"github.com/escache/escache-csi/internal/escached/drbd"
	"github.com/escache/escache-csi/internal/escached/writecache"
)

// DeleteReplica removes this host's replica. Without discard only when it positively holds nothing that Ceph has not.
func (e *Engine) DeleteReplica(ctx context.Context, ref escache.VolumeRef, discard bool) error {
	ctx, done, err := e.beginInTurn(ctx, ref, "delete_replica")
	if err != nil {
		return err
	}
	defer done()
	v, ok := e.reg.get(nameOf(ref))
	if !ok {
		return nil
	}
	if _, connected, err := e.device(ctx, v.name()); err != nil {
		return err
	} else if connected {
		return failOn(ref, escache.CodeConnected, "it is connected on %s; flush and stop it first", e.cfg.Node)
	}
	if v.Phase == phaseAbandoning && !discard {
		if err := e.finishAbandon(ctx, v); err != nil {
			return err
		}
		v.Phase = phaseReady
	}
	if v.Phase == phaseReady {
		if err := e.mayDrop(ctx, v, discard); err != nil {
			return err
		}
	}
	crashpoint.Reach("delete_replica/begin")
	return e.finishDelete(ctx, v)
}

// mayDrop decides whether nothing is lost with this replica, or that it may be.
func (e *Engine) mayDrop(ctx context.Context, v volume, discard bool) error {
	dirty, err := e.dirtyHere(ctx, v)
	if !discard {
		if err == nil && dirty > 0 {
			return v.fail(escache.CodeDirty, "the replica on %s holds %d bytes that Ceph has not; connect and flush it first",
				e.cfg.Node, dirty)
		}
		return err
	}
	if err != nil {
		e.log.Warn("replica discarded, with an unknown amount of unflushed data", "pool", v.Pool, "image", v.Image, "why", err)
	} else {
		e.log.Warn("replica discarded", "pool", v.Pool, "image", v.Image, "lostBytes", dirty)
	}
	return nil
}

// dirtyHere returns what this replica holds that Ceph has not. An error means that nobody can say.
//
// The local copy decides, even if the peer knows better: what is only on the peer is not lost with this copy.
func (e *Engine) dirtyHere(ctx context.Context, v volume) (int64, error) {
	unknown := func(why string) error {
		return v.fail(escache.CodeDirtyUnknown, "nobody can say whether the replica on %s is clean: %s; discard=true drops it for good",
			e.cfg.Node, why)
	}
	st, up, err := e.replica(v.Minor)
	if err != nil {
		return 0, err
	}
	if !up {
		return 0, unknown("DRBD does not run it")
	}
	path := e.Store.Path(v.name())
	if st.Disk == drbd.Inconsistent && !v.Formatted && st.PeerDisk != drbd.UpToDate {
		block, err := e.Disks.Read(ctx, v.name(), path, 0, writecache.BlockBytes)
		if err == nil && slices.Max(block) == 0 {
			return 0, nil // never used
		}
	}
	if !slices.Contains([]string{drbd.UpToDate, drbd.Consistent, drbd.Outdated}, st.Disk) {
		return 0, unknown("its disk is " + st.Disk)
	}
	dirty, err := e.Disks.CountDirty(ctx, v.name(), path, writecache.HeaderBytes)
	if err != nil {
		return 0, unknown(err.Error())
	}
	return dirty, nil
}

// finishDelete removes whatever there is of a replica. It is repeated until it succeeds, also after a restart.
func (e *Engine) finishDelete(ctx context.Context, v volume) error {
	gone := v
	gone.Phase = phaseDeleting
	if err := e.retag(ctx, v, gone); err != nil {
		return err
	}
	crashpoint.Reach("delete_replica/decided")
	if err := e.letGo(ctx, v); err != nil {
		return err
	}
	if _, up, err := e.replica(v.Minor); err != nil {
		return err
	} else if up {
		// drbdadm needs the file to take the resource down.
		if _, err := e.Resources.Write(e.resource(v)); err != nil {
			return err
		}
		if err := e.Replicator.Down(ctx, v.name()); err != nil {
			return err
		}
	}
	crashpoint.Reach("delete_replica/down")
	if err := e.Resources.Forget(v.name()); err != nil {
		return err
	}
	crashpoint.Reach("delete_replica/resource_removed")
	if err := e.Store.Remove(ctx, v.name()); err != nil {
		return err
	}
	crashpoint.Reach("delete_replica/lv_removed")
	e.room.changed(ctx, -v.CacheBytes)
	e.reg.drop(v.name())
	e.dirt.drop(v.name())
	e.faults.Delete(v.name())
	return nil
}

// letGo gives back what a volume without a device still holds: link, maps, the Primary role. It is the tail of stop, and
// what undoes a connect that did not get to its end.
func (e *Engine) letGo(ctx context.Context, v volume) error {
	var errs []error
	errs = append(errs, e.unlink(v), e.Caches.Remove(ctx, formatting(v.name())))
	maps, err := e.Images.Find(v.Pool, v.Image)
	errs = append(errs, err)
	for _, m := range maps {
		errs = append(errs, e.Images.Unmap(ctx, v.name(), m.ID))
	}
	crashpoint.Reach("let_go/unmapped")
	st, up, err := e.replica(v.Minor)
	errs = append(errs, err)
	if up && st.Role == drbd.Primary {
		errs = append(errs, e.demote(ctx, v.name()))
	}
	crashpoint.Reach("let_go/demoted")
	return errors.Join(errs...)
}
