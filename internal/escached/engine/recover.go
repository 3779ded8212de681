package engine

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"

	"golang.org/x/sync/errgroup"

	"github.com/escache/escache-csi/internal/crashpoint"
	"github.com/escache/escache-csi/internal/escached"
	"github.com/escache/escache-csi/internal/escached/cache"
	"github.com/escache/escache-csi/internal/escached/faileddisk"
	"github.com/escache/escache-csi/internal/escached/host"
	"github.com/escache/escache-csi/internal/escached/lvm"
	"github.com/escache/escache-csi/internal/escached/volume"
)

// Recover runs after a start of the service or of the host. It reads volumes from their tags, and
// DRBD devices, maps and caches from the kernel. It does not disturb I/O, and finishes or undoes
// what a killed verb has left. It fails only if the volume group or device-mapper cannot be read;
// then call it again. Volumes that cannot be recovered are logged and reported by Status and Node, and Watch
// tries them again, but not those whose tags cannot be read.
func (e *Engine) Recover(ctx context.Context) error {
	if err := e.Kernel.Load(ctx); err != nil {
		e.log.Error("kernel modules are missing", "error", err)
	}
	if err := e.space.Refresh(ctx); err != nil {
		return err
	}
	group, _, err := e.space.Latest()
	if err != nil {
		return err
	}
	e.hostID.CompareAndSwap(nil, &group.GroupID)
	lvs, err := e.Store.Volumes(ctx, false)
	if err != nil {
		return err
	}
	devices, err := e.Caches.States(ctx, volume.NamePrefix)
	if err != nil {
		return err
	}
	e.activate(ctx, lvs)
	e.outdated.BeginStart()
	var recovering errgroup.Group
	recovering.SetLimit(e.recoverAtOnce)
	for _, lv := range lvs {
		if !strings.HasPrefix(lv.Name, volume.NamePrefix) {
			continue
		}
		v, err := volume.Parse(lv)
		if err != nil {
			e.fault(lv.Name, err)
			e.Volumes.PutUnreadable(lv.Name, volume.Unreadable{VolumeRef: volume.OwnerOf(lv), Err: err})
			continue
		}
		e.Volumes.Put(v)
		e.Volumes.SetUnsure(v.Name(), len(lv.Twice) > 0) // Watch removes the old ones
		recovering.Go(func() error {
			dev, connected := devices[v.Name()]
			e.fault(lv.Name, e.recoverVolume(ctx, v, lv, dev, connected))
			return nil // the others are recovered all the same
		})
	}
	_ = recovering.Wait()
	if err := e.dropOrphans(lvs); err != nil {
		return err
	}
	if err := e.uncached.Recover(); err != nil {
		e.log.Error("an image that is mapped without a cache could not be recovered", "error", err)
	}
	e.log.Info("recovered", "volumes", len(e.Volumes.List()))
	return nil
}

// activateAtOnce bounds how many LVs one command activates: it has 30 s.
const activateAtOnce = 16

// activate makes the block devices of the complete replicas, which a start of the host leaves without, in few
// commands, and notes that they are there. After an error recoverVolume does so for each volume, and reports
// the volumes whose device cannot be made.
func (e *Engine) activate(ctx context.Context, lvs []lvm.Volume) {
	inactive := map[string]*lvm.Volume{}
	for i := range lvs {
		if v, err := volume.Parse(lvs[i]); err == nil && v.Laid() && !lvs[i].Active {
			inactive[v.Name()] = &lvs[i]
		}
	}
	for names := range slices.Chunk(slices.Sorted(maps.Keys(inactive)), activateAtOnce) {
		if e.Store.Activate(ctx, names...) != nil {
			continue
		}
		for _, name := range names {
			inactive[name].Active = true
		}
	}
}

// errDiskMissing means that LVM does not find a disk of a replica. It was lost while the host was off: DRBD has reported
// nothing. That is no mark of [faileddisk.Marks], which would have the copy wiped when the disk is back. What the peer has
// written since this host was off is on record, so the copy then counts as that of any host that was booted.
var errDiskMissing = errors.New("LVM does not find its disk")

// activateOne makes the block device of a replica, if it has none.
func (e *Engine) activateOne(ctx context.Context, lv lvm.Volume) error {
	if lv.Active {
		return nil
	}
	err := e.Store.Activate(ctx, lv.Name)
	if err != nil && lv.Partial {
		return fmt.Errorf("%w: %w", errDiskMissing, err)
	}
	return err
}

// diskMissing reports whether LVM did not find the disk of a replica when that was recovered.
func (e *Engine) diskMissing(name string) bool {
	fault, _ := e.faults.Load(name)
	err, _ := fault.(error)
	return errors.Is(err, errDiskMissing)
}

// diskFailed reports whether the disk of a replica has failed, or is missing.
func (e *Engine) diskFailed(name string) bool {
	return e.diskMissing(name) || e.FailedDisks.Get(name) != faileddisk.Sound
}

// fault remembers why a volume could not be recovered, for Status and Node. Without an error it was, and is no fault any more.
func (e *Engine) fault(name string, err error) {
	if err == nil {
		e.faults.Delete(name)
		return
	}
	if before, known := e.faults.Swap(name, err); known && fmt.Sprint(before) == err.Error() {
		return
	}
	e.log.Error("a volume could not be recovered", "name", name, "error", err)
}

// recoverVolume recovers one volume at the start. A hold of it may be ending just then.
func (e *Engine) recoverVolume(ctx context.Context, v volume.Volume, lv lvm.Volume, dev cache.State, connected bool) error {
	ctx, done, err := e.BeginAfterAll(ctx, v.VolumeRef, host.WorkRecover, host.ChangeTimeout)
	if err != nil {
		return err
	}
	defer done()
	return e.recoverLocked(ctx, v, lv, dev, connected)
}

// recoverLocked recovers a volume that the caller has locked.
func (e *Engine) recoverLocked(ctx context.Context, v volume.Volume, lv lvm.Volume, dev cache.State, connected bool) error {
	crashpoint.Reach("start/begin")
	if v.Laid() {
		if err := e.noteLostSecret(v); err != nil {
			return err
		}
	}
	switch {
	case connected && v.Phase == volume.Abandoning:
		return nil // Watch finishes it: something may still have the device open
	case connected:
		_, err := e.Adopt(ctx, v, dev)
		if errors.Is(err, cache.ErrRecovering) {
			e.log.Warn("a device is not served yet", "pool", v.Pool, "image", v.Image, "error", err)
			return nil // Watch revives it, and the next DevConnect completes it
		}
		return err
	case v.Phase == volume.Deleting && e.Config.Wipe == escached.WipeFull:
		return nil // that may take minutes, and nobody is answered before: PUT and DELETE finish it
	case v.Phase == volume.Deleting:
		err := e.finishDelete(ctx, v)
		kept, _ := e.Volumes.Get(v.Name())
		if !errors.Is(err, errOnlyCopy) || kept.Phase != volume.Ready {
			return err
		}
		v = kept
	case v.Phase == volume.Creating:
		return nil // PUT finishes creating it, DELETE removes it
	}
	_ = e.Holds.Drop(v.Name())
	if err := e.activateOne(ctx, lv); err != nil {
		return err
	}
	crashpoint.Reach("start/activated")
	v, err := e.takeOwnAddress(ctx, v)
	if err != nil {
		return err
	}
	if v.Phase == volume.Abandoning {
		return e.finishAbandon(ctx, v)
	}
	if err := e.outdated.AtStart(ctx, v); err != nil {
		// outdated.Marker tries again. Until then the arbiter, which is asked at the promotion, keeps an
		// outdated copy from being used.
		e.log.Warn("the replica is outdated according to the record, but could not be marked",
			"pool", v.Pool, "image", v.Image, "error", err)
	}
	crashpoint.Reach("start/asked")
	if err := e.EnsureAttached(ctx, v); err != nil { // Watch links it
		return e.staysDown(v, err)
	}
	crashpoint.Reach("start/up")
	return e.UnmapAndDemote(ctx, v)
}

// staysDown returns why a replica could not be brought up, or nil if Watch tries that again.
func (e *Engine) staysDown(v volume.Volume, why error) error {
	switch {
	case isDamage(why): // Watch tries again until the arbiter can be told
		e.damaged.Store(v.Name(), damage{why, unknownWritten})
		e.log.Error("a copy is damaged", "pool", v.Pool, "image", v.Image, "error", why)
		return nil
	case errors.Is(why, host.ErrAttaching):
		e.log.Warn("DRBD takes long to attach a disk", "pool", v.Pool, "image", v.Image, "error", why)
		return nil
	case errors.Is(why, cache.ErrUnchecked): // Watch takes all the time that it needs, and others do not wait for that
		e.log.Warn("a copy was not read to its end", "pool", v.Pool, "image", v.Image, "error", why)
		return nil
	}
	return why
}

// dropOrphans removes resource files and secrets whose volume is gone, or that are half-written. If
// two files had the same port, drbdadm would refuse all files.
func (e *Engine) dropOrphans(lvs []lvm.Volume) error {
	names, err := e.Resources.List(volume.NamePrefix)
	if err != nil {
		return err
	}
	secrets, err := e.Secrets.List()
	errs := []error{err, e.Resources.Tidy(), e.Secrets.Tidy()}
	gone := func(name string) bool {
		return !slices.ContainsFunc(lvs, func(lv lvm.Volume) bool { return lv.Name == name })
	}
	for _, name := range names {
		if gone(name) {
			errs = append(errs, e.Resources.Forget(name))
		}
	}
	for _, name := range secrets {
		if gone(name) {
			errs = append(errs, e.Secrets.Set(name, ""))
		}
	}
	return errors.Join(errs...)
}
