package engine

import (
	"context"
	"errors"
	"slices"

	"github.com/escache/escache-csi/api/escache"
	"github.com/escache/escache-csi/internal/crashpoint"
	"github.com/escache/escache-csi/internal/escached/drbd"
	"github.com/escache/escache-csi/internal/escached/volume"
	"github.com/escache/escache-csi/internal/pause"
)

// replica returns DRBD's state of a volume. ok is false while DRBD does not know it.
func (e *Engine) replica(minor int) (drbd.Status, bool, error) {
	table, err := e.States.Read()
	if err != nil {
		return drbd.Status{}, false, err
	}
	st, ok := table.Devices[minor]
	return st, ok, nil
}

func (e *Engine) resource(v volume.Volume) drbd.Resource {
	return drbd.Resource{
		Name: v.Name(), Minor: v.Minor, Port: v.Port, Disk: e.Store.Path(v.Name()),
		LocalHost: e.uname, LocalAddress: v.Self.Address, PeerHost: v.Peer.Name, PeerAddress: v.Peer.Address,
		ResyncRate: e.cfg.DRBD.ResyncRate, FencePeer: e.fencePeer,
	}
}

func drbdDevice(v volume.Volume) string { return drbd.Device(v.Minor) }

// ensureUp brings the DRBD device of a ready replica up, if it is down or only half up. It does not
// touch a link that works, even if the resource file has changed: it may carry I/O.
func (e *Engine) ensureUp(ctx context.Context, v volume.Volume) error {
	changed, err := e.Resources.Write(e.resource(v))
	if err != nil {
		return err
	}
	st, up, err := e.replica(v.Minor)
	switch {
	case err != nil:
		return err
	case !up:
		return e.Replicator.Up(ctx, v.Name())
	case changed && (st.Role == drbd.Secondary || !st.Linked()), st.Connection == drbd.StandAlone,
		st.Role == drbd.Secondary && st.Disk == drbd.Diskless:
		return e.Replicator.Adjust(ctx, v.Name())
	}
	return nil
}

// unused reports whether nothing was ever written to this copy, by this host or by a resync. DRBD
// cannot tell: a new disk and half a resync are both Inconsistent.
func (e *Engine) unused(ctx context.Context, v volume.Volume) (bool, error) {
	st, up, err := e.replica(v.Minor)
	if err != nil || v.Formatted || up && st.Disk != drbd.Inconsistent {
		return false, err
	}
	return e.Caches.Unused(ctx, e.localDisk(v))
}

// dirtyHere returns how many bytes in this replica are not yet in Ceph. An error means that this is
// not known.
//
// It counts the local copy only, even if the peer has newer data: what is only on the peer is not
// lost with this copy.
func (e *Engine) dirtyHere(ctx context.Context, v volume.Volume) (int64, error) {
	unknown := func(why string) error {
		return v.Fail(escache.CodeDirtyUnknown, "it is not known whether the replica on %s is clean: %s; discard=true drops it for good",
			e.cfg.Node, why)
	}
	st, up, err := e.replica(v.Minor)
	if err != nil {
		return 0, err
	}
	if !up {
		return 0, unknown("DRBD does not run it")
	}
	if st.Disk == drbd.Inconsistent && !v.Formatted && st.PeerDisk != drbd.UpToDate {
		if unused, err := e.Caches.Unused(ctx, e.localDisk(v)); err == nil && unused {
			return 0, nil
		}
	}
	if !slices.Contains([]escache.DiskState{drbd.UpToDate, drbd.Consistent, drbd.Outdated}, st.Disk) {
		return 0, unknown("its disk is " + string(st.Disk))
	}
	dirty, err := e.Caches.Dirty(ctx, e.localDisk(v))
	if err != nil {
		return 0, unknown(err.Error())
	}
	return dirty, nil
}

// unmapAndDemote takes from a volume without a device what it still has: link, maps, the Primary
// role. It ends a stop, and undoes a connect that failed.
func (e *Engine) unmapAndDemote(ctx context.Context, v volume.Volume) error {
	var errs []error
	errs = append(errs, e.unlink(v), e.Caches.Remove(ctx, v.Name()))
	maps, err := e.Images.Find(v.Pool, v.Image)
	errs = append(errs, err)
	for _, m := range maps {
		errs = append(errs, e.Images.Unmap(ctx, v.Name(), m.ID))
	}
	crashpoint.Reach("unmap_and_demote/unmapped")
	st, up, err := e.replica(v.Minor)
	errs = append(errs, err)
	if up && st.Role == drbd.Primary {
		errs = append(errs, e.demote(ctx, v.Name()))
	}
	crashpoint.Reach("unmap_and_demote/demoted")
	return errors.Join(errs...)
}

// demoteTries bounds how often a demotion is tried, once each poll.
const demoteTries = 25

// demote makes the replica Secondary. It tries for a while, because udev opens every new device for
// a moment.
func (e *Engine) demote(ctx context.Context, name string) error {
	var err error
	for range demoteTries {
		if err = e.Replicator.Demote(ctx, name); !errors.Is(err, drbd.ErrOpen) {
			return err
		}
		if stop := pause.For(ctx, poll); stop != nil {
			return stop
		}
	}
	return err
}
