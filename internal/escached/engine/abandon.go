package engine

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/escache/escache-csi/api/escache"
	"github.com/escache/escache-csi/internal/crashpoint"
	"github.com/escache/escache-csi/internal/escached/cache"
	"github.com/escache/escache-csi/internal/escached/drbd"
	"github.com/escache/escache-csi/internal/escached/host"
	"github.com/escache/escache-csi/internal/escached/volume"
	"github.com/escache/escache-csi/internal/pause"
)

// unfreezeTimeout bounds how long the kernel may take to fail frozen I/O.
const unfreezeTimeout = 20 * time.Second

// closeTimeout bounds how long processes that were killed may take to close the device.
const closeTimeout = 5 * time.Second

// Abandon gives up the device of a volume that another node has taken over, or is about to. The copy
// here may be the only one, so Abandon needs proof. It records the decision, and from then on the decision is
// carried out, even after interruptions and restarts.
func (e *Engine) Abandon(ctx context.Context, req escache.AbandonRequest) error {
	if e.isUncached(req.VolumeRef) {
		return e.uncached.Abandon(ctx, req)
	}
	ctx, done, err := e.takeAbandoned(ctx, req)
	if err != nil {
		return err
	}
	defer done()
	v, err := e.abandonable(req.VolumeRef)
	if err != nil {
		return err
	}
	if v.Phase != volume.Abandoning {
		held, err := e.holdsAnything(ctx, v)
		if err != nil || !held {
			return err
		}
		next, err := e.superseded(ctx, v, req.Epoch)
		if err != nil {
			return err
		}
		crashpoint.Reach("abandon/begin")
		if err := e.Retag(ctx, v, next); err != nil {
			return err
		}
		v = next
	}
	crashpoint.Reach("abandon/decided")
	return e.finishAbandon(ctx, v)
}

func (e *Engine) abandonable(ref escache.VolumeRef) (volume.Volume, error) {
	if v, ok := e.Volumes.Get(volume.NameOf(ref)); ok && v.Phase == volume.Abandoning {
		return v, nil
	}
	return e.Known(ref)
}

// takeAbandoned locks the volume. Another verb may have the lock and hang in the frozen I/O, which
// only Abandon can end. Then takeAbandoned makes the I/O fail first, on the same proof, and the
// other verb returns an error.
func (e *Engine) takeAbandoned(ctx context.Context, req escache.AbandonRequest) (context.Context, func(), error) {
	longer, done, busy := e.Begin(ctx, req.VolumeRef, "abandon", host.ChangeTimeout)
	if busy == nil {
		return longer, done, nil
	}
	v, err := e.abandonable(req.VolumeRef)
	if err != nil {
		return nil, nil, err
	}
	if st, up, err := e.Replica(v.Minor); err != nil || !up || !st.Suspended || st.Role != drbd.Primary {
		return nil, nil, errors.Join(err, busy)
	}
	if v.Phase != volume.Abandoning {
		if _, err := e.superseded(ctx, v, req.Epoch); err != nil {
			return nil, nil, err
		}
	}
	if err := e.failIO(ctx, v); err != nil {
		return nil, nil, err
	}
	return e.BeginAfterAll(ctx, req.VolumeRef, "abandon", host.ChangeTimeout)
}

// holdsAnything reports whether there is anything to give up: a device, a map or the Primary role.
func (e *Engine) holdsAnything(ctx context.Context, v volume.Volume) (bool, error) {
	_, connected, err := e.Device(ctx, v.Name())
	if err != nil || connected {
		return connected, err
	}
	maps, err := e.Images.Find(v.Pool, v.Image)
	if err != nil || len(maps) > 0 {
		return len(maps) > 0, err
	}
	st, up, err := e.Replica(v.Minor)
	return up && st.Role == drbd.Primary, err
}

// failIO makes the I/O of a Primary fail. Its order makes that safe. Without the link nothing reaches
// the peer, and the kernel freezes what is not frozen already. Without the disk the kernel fails all I/O
// when it goes on, except a write that the disk had before. That write succeeds although only this host
// has it. So the process that waits for it is killed first, and never learns of it. With a permit the kernel freezes nothing: until the
// disk is gone, I/O goes on as it did before the device was to be given up.
//
// With the link up, the processes are killed before anything freezes: DRBD 8.4 loses the completion of a
// flush that is under way then, and the device would stay until the host is booted again.
func (e *Engine) failIO(ctx context.Context, v volume.Volume) error {
	st, up, err := e.Replica(v.Minor)
	if err != nil || !up || st.Role != drbd.Primary {
		return err
	}
	if st.Linked() && !st.Suspended {
		if err := e.killUsers(ctx, v); err != nil {
			return err
		}
		crashpoint.Reach("abandon/users_ended")
	}
	if st.Connection != drbd.StandAlone {
		if err := e.Replicator.Leave(ctx, v.Name()); err != nil {
			return err
		}
		if err := e.waitForState(ctx, v, func(st drbd.Status) bool { return st.Connection == drbd.StandAlone }); err != nil {
			return err
		}
	}
	crashpoint.Reach("abandon/left")
	if st.Disk != drbd.Diskless {
		if err := e.Replicator.Detach(ctx, v.Name()); err != nil {
			return err
		}
		if err := e.waitForState(ctx, v, func(st drbd.Status) bool { return st.Disk == drbd.Diskless }); err != nil {
			return err
		}
	}
	crashpoint.Reach("abandon/detached")
	if st, up, err = e.Replica(v.Minor); err != nil || !up || !st.Suspended {
		return err
	}
	if err := e.killUsers(ctx, v); err != nil {
		return err
	}
	crashpoint.Reach("abandon/killed")
	if err := e.Replicator.ResumeIO(ctx, v.Name()); err != nil {
		return err
	}
	return e.waitForState(ctx, v, func(st drbd.Status) bool { return !st.Suspended })
}

// killUsers kills the processes of this host that use the volume's device.
func (e *Engine) killUsers(ctx context.Context, v volume.Volume) error {
	dev, connected, err := e.Device(ctx, v.Name())
	if err != nil {
		return err
	}
	devices := []string{drbd.Device(v.Minor)}
	if connected {
		devices = append(devices, dev.Path)
	}
	killed, err := e.KillUsers(ctx, devices...)
	if len(killed) > 0 {
		e.log.Warn("killed the processes that used a device which another node has taken over", "pool", v.Pool, "image", v.Image,
			"processes", fmt.Sprint(killed))
	}
	if err != nil {
		return fmt.Errorf("%s/%s: the device stays until no process of %s uses it, so that none learns of a write that only "+
			"this host has: %w; switch %s off if this does not end", v.Pool, v.Image, e.Config.Node, err, e.Config.Node)
	}
	return nil
}

// waitForState waits until DRBD's state is the one that a command has asked for. It fails after
// unfreezeTimeout.
func (e *Engine) waitForState(ctx context.Context, v volume.Volume, there func(drbd.Status) bool) error {
	for start := e.Now(); ; {
		st, up, err := e.Replica(v.Minor)
		switch {
		case err != nil:
			return err
		case !up, there(st):
			return nil
		case e.Now().Sub(start) > unfreezeTimeout:
			return v.Fail(escache.CodeStuck, "DRBD does not end the frozen I/O (%s, %s); see the kernel's log",
				st.Connection, st.Disk)
		}
		if err := pause.For(ctx, host.Poll); err != nil {
			return err
		}
	}
}

// finishAbandon carries out the decision. It can begin at any point where it was interrupted.
func (e *Engine) finishAbandon(ctx context.Context, v volume.Volume) error {
	if err := e.failIO(ctx, v); err != nil {
		return err
	}
	crashpoint.Reach("abandon/io_failed")
	if _, connected, err := e.Device(ctx, v.Name()); err != nil {
		return err
	} else if connected {
		if err := e.removeFailing(ctx, v); err != nil {
			return err
		}
	}
	_ = e.Holds.Drop(v.Name())
	crashpoint.Reach("abandon/removed")
	if err := e.UnmapAndDemote(ctx, v); err != nil {
		return err
	}
	if _, err := e.WriteResource(v); err != nil {
		return err
	}
	if there, err := e.HasMinor(v.Minor); err != nil {
		return err
	} else if there {
		if err := e.Replicator.Down(ctx, v.Name()); err != nil {
			return err
		}
	}
	crashpoint.Reach("abandon/down")
	mark := e.Replicator.Outdate
	if v.PeerComplete {
		mark = e.Replicator.Concede
	}
	if err := mark(ctx, v.Name()); err != nil {
		return err
	}
	crashpoint.Reach("abandon/outdated")
	// The replica is a standby again. As soon as the new holder can be reached, a resync brings
	// this copy up to date.
	if err := e.Replicator.Up(ctx, v.Name()); err != nil {
		return err
	}
	crashpoint.Reach("abandon/up")
	ready := v
	ready.Phase, ready.PeerComplete = volume.Ready, false
	if err := e.Retag(ctx, v, ready); err != nil {
		return err
	}
	e.standbys.Drop(v.Name())
	e.faults.Delete(v.Name())
	e.log.Warn("gave up the device of a volume that another node has taken over", "pool", v.Pool, "image", v.Image, "epoch", v.Epoch)
	crashpoint.Reach("abandon/ready")
	return nil
}

// removeFailing removes a device whose disk fails. Processes that were killed have it open until their I/O
// has failed; closing takes them a moment.
func (e *Engine) removeFailing(ctx context.Context, v volume.Volume) error {
	if err := e.Cache(v).Fail(ctx, v.Name()); err != nil {
		return err
	}
	crashpoint.Reach("abandon/device_failed")
	for start := e.Now(); ; {
		err := e.Cache(v).Remove(ctx, v.Name())
		if !errors.Is(err, cache.ErrOpen) || e.Now().Sub(start) > closeTimeout {
			return err
		}
		if err := pause.For(ctx, host.Poll); err != nil {
			return err
		}
	}
}

// finishAbandoned carries out decisions that could not be finished because something had the device
// open.
func (e *Engine) finishAbandoned(ctx context.Context) {
	for _, v := range e.Volumes.List() {
		if v.Phase != volume.Abandoning {
			continue
		}
		ctx, done, err := e.TryBegin(ctx, v.VolumeRef, "abandon", host.ChangeTimeout)
		if err != nil {
			continue // a verb is running
		}
		dev, connected, err := e.Device(ctx, v.Name())
		if v, ok := e.Volumes.Get(v.Name()); ok && err == nil && v.Phase == volume.Abandoning {
			finish := e.finishAbandon
			if connected && dev.Open > 0 {
				finish = e.failIO // failed I/O lets the process that has it open close it
			}
			if err := finish(ctx, v); err != nil {
				e.log.Warn("a device that was taken over cannot be given up yet", "pool", v.Pool, "image", v.Image, "error", err)
			}
		}
		done()
	}
}
