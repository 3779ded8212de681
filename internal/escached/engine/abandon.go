package engine

import (
	"context"
	"errors"
	"slices"
	"time"

	"github.com/escache/escache-csi/api/escache"
	"github.com/escache/escache-csi/internal/crashpoint"
	"github.com/escache/escache-csi/internal/escached/drbd"
	"github.com/escache/escache-csi/internal/pause"
)

// letLoose bounds how long the kernel may take to fail frozen I/O, and verbs that were stuck in it to end.
const letLoose = 20 * time.Second

// Abandon gives up the device of a volume that another node has taken over. What is here may be the only copy, so it needs proof; once
// there is proof the decision is recorded, and then it is carried out however often it is interrupted, also after a restart.
func (e *Engine) Abandon(ctx context.Context, req escache.AbandonRequest) error {
	ctx, done, err := e.takeAbandoned(ctx, req)
	if err != nil {
		return err
	}
	defer done()
	v, err := e.abandonable(req.VolumeRef)
	if err != nil {
		return err
	}
	if v.Phase != phaseAbandoning {
		held, err := e.holdsAnything(ctx, v)
		if err != nil || !held {
			return err
		}
		if err := e.superseded(ctx, v, req.Epoch); err != nil {
			return err
		}
		crashpoint.Reach("abandon/begin")
		next := v
		next.Phase, next.Epoch = phaseAbandoning, req.Epoch
		if err := e.retag(ctx, v, next); err != nil {
			return err
		}
		v = next
	}
	crashpoint.Reach("abandon/decided")
	return e.finishAbandon(ctx, v)
}

func (e *Engine) abandonable(ref escache.VolumeRef) (volume, error) {
	if v, ok := e.reg.get(nameOf(ref)); ok && v.Phase == phaseAbandoning {
		return v, nil
	}
	return e.known(ref)
}

// takeAbandoned takes the volume. Another verb may have it and be stuck in the frozen I/O, which nothing but this one ends: then the I/O is
// made to fail first, on the same proof, and the other verb comes back with an error.
func (e *Engine) takeAbandoned(ctx context.Context, req escache.AbandonRequest) (context.Context, func(), error) {
	longer, done, busy := e.beginWithin(ctx, req.VolumeRef, func(running string) bool {
		// What escached does by itself about frozen I/O ends by itself, and must not be crossed.
		return running == verbAskArbiter || running == verbConnectAgain || running == verbAskRecord
	})
	if busy == nil {
		return longer, done, nil
	}
	v, err := e.abandonable(req.VolumeRef)
	if err != nil {
		return nil, nil, err
	}
	if st, up, err := e.replica(v.Minor); err != nil || !up || !st.Suspended || st.Role != drbd.Primary {
		return nil, nil, errors.Join(err, busy)
	}
	if v.Phase != phaseAbandoning {
		if err := e.superseded(ctx, v, req.Epoch); err != nil {
			return nil, nil, err
		}
	}
	if err := e.failIO(ctx, v); err != nil {
		return nil, nil, err
	}
	return e.beginWithin(ctx, req.VolumeRef, func(string) bool { return true })
}

// beginWithin takes the volume, and waits for a verb that has it if that is worth waiting for.
func (e *Engine) beginWithin(ctx context.Context, ref escache.VolumeRef, worth func(running string) bool) (
	context.Context, func(), error,
) {
	for start := e.now(); ; {
		longer, done, busy := e.begin(ctx, ref, "abandon", changeTimeout)
		running := e.locks.Running(nameOf(ref)) // "": it has ended just now
		if busy == nil || e.now().Sub(start) > letLoose || running != "" && !worth(running) {
			return longer, done, busy
		}
		if err := pause.For(ctx, poll); err != nil {
			return nil, nil, err
		}
	}
}

// holdsAnything reports whether there is something of a device to give up.
func (e *Engine) holdsAnything(ctx context.Context, v volume) (bool, error) {
	_, connected, err := e.device(ctx, v.name())
	if err != nil || connected {
		return connected, err
	}
	maps, err := e.Images.Find(v.Pool, v.Image)
	if err != nil || len(maps) > 0 {
		return len(maps) > 0, err
	}
	st, up, err := e.replica(v.Minor)
	return up && st.Role == drbd.Primary, err
}

// superseded returns nil only with proof that what this host has of the volume is not needed any more: the record, read now, says that a
// newer epoch began, that this node has not got it, and that this node's replica must not be used, or is none of the volume's. That another
// node is attached would not do: until it was promoted, what is frozen here may be all there is. No answer is no proof.
func (e *Engine) superseded(ctx context.Context, v volume, epoch int64) error {
	not := func(format string, args ...any) error {
		return v.fail(escache.CodeNotSuperseded, format+"; the device stays", args...)
	}
	if st, up, err := e.replica(v.Minor); err != nil {
		return err
	} else if up && st.Role == drbd.Primary && st.Linked() {
		return not("its peer %s is connected, so nobody else can have been promoted", v.Peer.Name)
	}
	if epoch <= v.Epoch {
		return not("epoch %d is not newer than %d, which was seen here", epoch, v.Epoch)
	}
	ctx, cancel := context.WithTimeout(ctx, e.cfg.ArbiterTimeout)
	defer cancel()
	record, err := e.Records.Record(ctx, v.VolumeRef)
	switch {
	case err != nil:
		return not("the arbiter cannot say who has it (%v); repeat the call when it can", err)
	case record.Epoch < epoch:
		return not("the record is of epoch %d, the request of %d", record.Epoch, epoch)
	case record.ImageID != "" && v.ImageID != "" && record.ImageID != v.ImageID:
		return not("the record is of image id %s, the replica of %s", record.ImageID, v.ImageID)
	case record.AttachedNode == e.cfg.Node:
		return not("the record has it attached to %s itself in epoch %d", e.cfg.Node, record.Epoch)
	case slices.Contains(record.Outdated, e.cfg.Node), len(record.Replicas) > 0 && !slices.Contains(record.Replicas, e.cfg.Node):
		return nil
	}
	return not("the record (epoch %d, attached to %q) does not have the replica on %s as outdated, so it may be the only current one",
		record.Epoch, record.AttachedNode, e.cfg.Node)
}

// failIO makes frozen I/O fail. The order is what makes it safe: without a link nothing can reach the peer, and without a disk nothing can
// be acknowledged when the kernel lets the I/O go on.
func (e *Engine) failIO(ctx context.Context, v volume) error {
	st, up, err := e.replica(v.Minor)
	if err != nil || !up || st.Role != drbd.Primary {
		return err
	}
	if st.Connection != drbd.StandAlone {
		if err := e.Replicator.Leave(ctx, v.name()); err != nil {
			return err
		}
		if err := e.settled(ctx, v, func(st drbd.Status) bool { return st.Connection == drbd.StandAlone }); err != nil {
			return err
		}
	}
	crashpoint.Reach("abandon/left")
	if st.Disk != drbd.Diskless {
		if err := e.Replicator.Detach(ctx, v.name()); err != nil {
			return err
		}
		if err := e.settled(ctx, v, func(st drbd.Status) bool { return st.Disk == drbd.Diskless }); err != nil {
			return err
		}
	}
	crashpoint.Reach("abandon/detached")
	if st, up, err = e.replica(v.Minor); err != nil || !up || !st.Suspended {
		return err
	}
	if err := e.Replicator.ResumeIO(ctx, v.name()); err != nil {
		return err
	}
	return e.settled(ctx, v, func(st drbd.Status) bool { return !st.Suspended })
}

// settled waits for the kernel to get where a command has sent it.
func (e *Engine) settled(ctx context.Context, v volume, there func(drbd.Status) bool) error {
	for start := e.now(); ; {
		st, up, err := e.replica(v.Minor)
		switch {
		case err != nil:
			return err
		case !up, there(st):
			return nil
		case e.now().Sub(start) > letLoose:
			return v.fail(escache.CodeStuck, "DRBD does not let go of the frozen I/O (%s, %s); see the kernel's log",
				st.Connection, st.Disk)
		}
		if err := pause.For(ctx, poll); err != nil {
			return err
		}
	}
}

// finishAbandon carries out what was decided, from wherever it got to.
func (e *Engine) finishAbandon(ctx context.Context, v volume) error {
	if err := e.failIO(ctx, v); err != nil {
		return err
	}
	crashpoint.Reach("abandon/io_failed")
	if _, connected, err := e.device(ctx, v.name()); err != nil {
		return err
	} else if connected {
		if err := e.Caches.Remove(ctx, v.name()); err != nil {
			return err
		}
	}
	_ = e.holds.drop(v.name())
	crashpoint.Reach("abandon/removed")
	if err := e.unmapAndDemote(ctx, v); err != nil {
		return err
	}
	if _, err := e.Resources.Write(e.resource(v)); err != nil {
		return err
	}
	if _, up, err := e.replica(v.Minor); err != nil {
		return err
	} else if up {
		if err := e.Replicator.Down(ctx, v.name()); err != nil {
			return err
		}
	}
	crashpoint.Reach("abandon/down")
	if err := e.Replicator.Outdate(ctx, v.name()); err != nil {
		return err
	}
	crashpoint.Reach("abandon/outdated")
	// A standby again: as soon as the new holder can be reached it brings this copy up to date.
	if err := e.Replicator.Up(ctx, v.name()); err != nil {
		return err
	}
	crashpoint.Reach("abandon/up")
	ready := v
	ready.Phase = phaseReady
	if err := e.retag(ctx, v, ready); err != nil {
		return err
	}
	e.dirt.drop(v.name())
	e.faults.Delete(v.name())
	e.log.Warn("gave up the device of a volume that another node has taken over", "pool", v.Pool, "image", v.Image, "epoch", v.Epoch)
	crashpoint.Reach("abandon/ready")
	return nil
}

// finishAbandoned goes on with what was decided and could not be finished, because something had the device open.
func (e *Engine) finishAbandoned(ctx context.Context) {
	for _, v := range e.reg.list() {
		if v.Phase != phaseAbandoning {
			continue
		}
		ctx, done, err := e.begin(ctx, v.VolumeRef, "abandon", changeTimeout)
		if err != nil {
			continue // somebody is at it
		}
		dev, connected, err := e.device(ctx, v.name())
		if v, ok := e.reg.get(v.name()); ok && err == nil && v.Phase == phaseAbandoning {
			finish := e.finishAbandon
			if connected && dev.Open > 0 {
				finish = e.failIO // whoever has it open is waiting for that
			}
			if err := finish(ctx, v); err != nil {
				e.log.Warn("a device that was taken over cannot be given up yet", "pool", v.Pool, "image", v.Image, "error", err)
			}
		}
		done()
	}
}
