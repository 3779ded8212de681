package host

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"github.com/escache/escache-csi/api/escache"
	"github.com/escache/escache-csi/internal/crashpoint"
	"github.com/escache/escache-csi/internal/escached/drbd"
	"github.com/escache/escache-csi/internal/escached/faileddisk"
	"github.com/escache/escache-csi/internal/escached/permit"
	"github.com/escache/escache-csi/internal/escached/volume"
	"github.com/escache/escache-csi/internal/pause"
	"github.com/escache/escache-csi/internal/traces"
)

// Replica returns DRBD's state of a volume. ok is false while DRBD does not know it.
func (h *Host) Replica(minor int) (drbd.Status, bool, error) {
	table, err := h.States.Read()
	if err != nil {
		return drbd.Status{}, false, err
	}
	st, ok := table.Devices[minor]
	return st, ok, nil
}

// HasMinor reports whether the kernel has a minor, be it without a disk and a link.
func (h *Host) HasMinor(minor int) (bool, error) {
	table, err := h.States.Read()
	_, runs := table.Devices[minor]
	return runs || slices.Contains(table.Unconfigured, minor), err
}

// LostSecret reports whether this host has lost the secret of a replica's link. The copy can be used
// all the same, but not be connected with its peer.
func (h *Host) LostSecret(v volume.Volume) (bool, error) {
	secret, err := h.Secrets.Get(v.Name())
	return v.Keyed && secret == "", err
}

// WriteResource writes a volume's resource file, and reports whether the file has changed.
func (h *Host) WriteResource(v volume.Volume) (changed bool, err error) {
	secret, err := h.Secrets.Get(v.Name())
	if err != nil {
		return false, err
	}
	if v.Keyed && secret == "" {
		secret = h.stranger
	}
	return h.Resources.Write(h.Resource(v, secret))
}

// Resource returns what a volume's resource file must say.
func (h *Host) Resource(v volume.Volume, secret escache.Secret) drbd.Resource {
	return drbd.Resource{
		Name: v.Name(), Minor: v.Minor, Port: v.Port, Disk: h.Store.Path(v.Name()),
		LocalHost: h.uname, LocalAddress: v.Self.Address, PeerHost: v.Peer.Name, PeerAddress: v.Peer.Address,
		Secret: secret, ResyncRate: h.Config.DRBD.ResyncRate, FencePeer: h.handlers.FencePeer,
		NoFreeze: h.Permits.Get(v.Name()) == permit.Granted,
		DiskFailed: fmt.Sprintf("%s --pool %s --image %s --peer %s --minor %d",
			h.handlers.DiskFailed, v.Pool, v.Image, v.Peer.Name, v.Minor),
	}
}

// EnsureUp brings the DRBD device of a ready replica up, if it is down or only half up. It does not
// touch a link that works, even if the resource file has changed: it may carry I/O. A copy that was booted
// stays without a link if [Host.Join] says so. It waits for a disk that DRBD still attaches.
func (h *Host) EnsureUp(ctx context.Context, v volume.Volume) error {
	err := h.EnsureAttached(ctx, v)
	for start := h.Now(); errors.Is(err, ErrAttaching) && h.Now().Sub(start) < attachTime; {
		if pause.For(ctx, Poll) != nil {
			return err
		}
		switch st, up, readErr := h.Replica(v.Minor); {
		case readErr != nil || !up:
			return err
		case !Attaching(st):
			err = h.EnsureAttached(ctx, v)
		}
	}
	if err == nil {
		err = h.Join(ctx, v)
	}
	if errors.Is(err, ErrMayNotJoin) {
		return nil
	}
	return err
}

// EnsureAttached does what EnsureUp does, but makes no link for a copy that was booted. While DRBD still attaches the disk, which
// an earlier command may have begun, it makes none either, and the error wraps ErrAttaching.
func (h *Host) EnsureAttached(ctx context.Context, v volume.Volume) (err error) {
	ctx, step := traces.Begin(ctx, "bring the replica up")
	defer step.Done(&err)
	changed, err := h.WriteResource(v)
	if err != nil {
		return err
	}
	st, up, err := h.Replica(v.Minor)
	switch {
	case err != nil:
		return err
	case !up:
		if err := h.setDamagedAside(ctx, v); err != nil {
			return err
		}
		return h.attach(ctx, v)
	case st.Connection == drbd.StandAlone && st.Disk.Lost() && h.FailedDisks.Get(v.Name()) == faileddisk.Failed:
		// It has left its peer. A frozen Primary would go on if it came back.
		return v.Fail(escache.CodeInternal,
			"the disk of the replica on %s has failed, and it is not on record as outdated yet; escached goes on reporting it",
			h.Config.Node)
	case st.Role == drbd.Secondary && st.Disk == drbd.Diskless:
		// Adjusting makes DRBD use the disk again.
		if err := h.setDamagedAside(ctx, v); err != nil {
			return err
		}
		return h.Replicator.Adjust(ctx, v.Name())
	case Booted(st):
		return nil
	case Attaching(st):
		return h.attaching(v)
	case changed && (st.Role == drbd.Secondary || !st.Linked()), st.Connection == drbd.StandAlone:
		return h.Replicator.Adjust(ctx, v.Name())
	}
	return nil
}

// attach has DRBD use the disk of a device that is down. It makes the link, too, unless the copy was booted.
func (h *Host) attach(ctx context.Context, v volume.Volume) error {
	if err := h.Replicator.Attach(ctx, v.Name()); err != nil {
		return err
	}
	crashpoint.Reach("start/attached")
	switch st, up, err := h.Replica(v.Minor); {
	case err != nil || up && Booted(st):
		return err
	case !up || Attaching(st):
		return h.attaching(v)
	}
	return h.Replicator.Adjust(ctx, v.Name())
}

func (h *Host) attaching(v volume.Volume) error {
	return fmt.Errorf("%w: %w", ErrAttaching, v.Fail(escache.CodeStuck,
		"%s still attaches the disk of its replica, and makes no link before that has ended; repeat the call", h.Config.Node))
}

// Unused reports whether nothing was ever written to this copy, by this host or by a resync. DRBD
// cannot tell: a new disk and half a resync are both Inconsistent.
func (h *Host) Unused(ctx context.Context, v volume.Volume) (bool, error) {
	st, up, err := h.Replica(v.Minor)
	if err != nil || v.Formatted || up && st.Disk != drbd.Inconsistent {
		return false, err
	}
	return h.Cache(v).Unused(ctx, h.LocalDisk(v))
}

// NeverUsed reports whether this copy has nothing, and none is on its way: nothing was written to it, and its peer has
// nothing to fill it with.
func (h *Host) NeverUsed(ctx context.Context, v volume.Volume, st drbd.Status) bool {
	if v.Formatted || st.Disk != drbd.Inconsistent || st.PeerDisk == drbd.UpToDate {
		return false
	}
	unused, err := h.Cache(v).Unused(ctx, h.LocalDisk(v))
	return err == nil && unused
}

// DirtyHere returns how many bytes in this replica are not yet in Ceph. An error means that this is
// not known.
//
// It counts the local copy only, even if the peer has newer data: what is only on the peer is not
// lost with this copy.
func (h *Host) DirtyHere(ctx context.Context, v volume.Volume) (int64, error) {
	unknown := func(why string) error {
		return v.Fail(escache.CodeDirtyUnknown,
			"it is not known whether the replica on %s is clean: %s; discard=true with its epoch drops it for good", h.Config.Node, why)
	}
	st, up, err := h.Replica(v.Minor)
	if err != nil {
		return 0, err
	}
	if !up {
		return 0, unknown("DRBD does not run it")
	}
	if h.NeverUsed(ctx, v, st) {
		return 0, nil
	}
	if !slices.Contains([]escache.DiskState{drbd.UpToDate, drbd.Consistent, drbd.Outdated}, st.Disk) {
		return 0, unknown("its disk is " + string(st.Disk))
	}
	dirty, err := h.Cache(v).Dirty(ctx, h.LocalDisk(v))
	if err != nil {
		return 0, unknown(err.Error())
	}
	return dirty, nil
}

// UnmapAndDemote removes what a connect leaves besides the device: the link, the maps, the Primary
// role and the permit. It ends a stop, and undoes a connect that failed.
//
// It changes nothing if this host does not have the volume's engine: a device may be there then.
func (h *Host) UnmapAndDemote(ctx context.Context, v volume.Volume) (err error) {
	ctx, step := traces.Begin(ctx, "unmap the image and demote the replica")
	defer step.Done(&err)
	if err := h.Caches.Has(v.Engine); err != nil {
		return v.About(err)
	}
	var errs []error
	errs = append(errs, h.Unlink(v), h.Cache(v).Remove(ctx, v.Name()))
	maps, err := h.Images.Find(v.Pool, v.Image)
	errs = append(errs, err)
	for _, m := range maps {
		errs = append(errs, h.Images.Unmap(ctx, v.Name(), m.ID))
	}
	crashpoint.Reach("unmap_and_demote/unmapped")
	st, up, err := h.Replica(v.Minor)
	errs = append(errs, err)
	if up && st.Role == drbd.Primary {
		errs = append(errs, h.demote(ctx, v.Name()))
	}
	crashpoint.Reach("unmap_and_demote/demoted")
	errs = append(errs, h.DropPermit(ctx, v))
	return errors.Join(errs...)
}

// demoteTries bounds how often a demotion is tried, once each Poll.
const demoteTries = 25

// demote makes the replica Secondary. It tries for a while, because udev opens every new device for
// a moment.
func (h *Host) demote(ctx context.Context, name string) error {
	var err error
	for range demoteTries {
		if err = h.Replicator.Demote(ctx, name); !errors.Is(err, drbd.ErrOpen) {
			return err
		}
		if stop := pause.For(ctx, Poll); stop != nil {
			return stop
		}
	}
	return err
}
