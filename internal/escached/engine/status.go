package engine

import (
	"cmp"
	"context"
	"fmt"
	"time"

	"github.com/escache/escache-csi/api/escache"
	"github.com/escache/escache-csi/internal/command"
	"github.com/escache/escache-csi/internal/escached/cache"
	"github.com/escache/escache-csi/internal/escached/drbd"
	"github.com/escache/escache-csi/internal/escached/krbd"
	"github.com/escache/escache-csi/internal/escached/permit"
	"github.com/escache/escache-csi/internal/escached/problem"
	"github.com/escache/escache-csi/internal/escached/volume"
)

// Status reports the volumes on this host. It takes no lock and does not wait for I/O. Without a
// ref it reports all volumes and starts no child process, because it is polled. With a ref it
// reports exactly that volume, which may be absent. The caller then usually has to decide
// something, so Status scans a standby's disk if it has to.
func (e *Engine) Status(ctx context.Context, ref *escache.VolumeRef) (escache.Status, error) {
	out, err := e.status(ctx, ref)
	for i := range out.Volumes {
		out.Volumes[i].Node, out.Volumes[i].HostID = e.Config.Node, e.HostID()
	}
	return out, err
}

func (e *Engine) status(ctx context.Context, ref *escache.VolumeRef) (escache.Status, error) {
	out := escache.Status{Volumes: []escache.VolumeStatus{}}
	volumes := e.Volumes.List()
	if ref == nil {
		for _, u := range e.Volumes.Unreadable() {
			if u.VolumeRef != (escache.VolumeRef{}) {
				out.Volumes = append(out.Volumes, unreadable(u.VolumeRef, u.Err))
			}
		}
		mapped, err := e.uncached.Statuses()
		if err != nil {
			return out, err
		}
		out.Volumes = append(out.Volumes, mapped...)
	} else {
		if u, ok := e.Volumes.Unreadable()[volume.NameOf(*ref)]; ok {
			out.Volumes = append(out.Volumes, unreadable(*ref, u.Err))
			return out, nil
		}
		v, ok := e.Volumes.Get(volume.NameOf(*ref))
		if !ok {
			if s, mapped, err := e.uncached.Status(*ref); mapped || err != nil {
				out.Volumes = append(out.Volumes, s)
				return out, err
			}
			s, err := e.withoutReplica(ctx, *ref)
			out.Volumes = append(out.Volumes, s)
			return out, err
		}
		volumes = []volume.Volume{v}
	}
	// Before what the kernel says: what comes meanwhile is in that.
	stuck, connecting := e.Stuck(), e.connecting(volumes)
	turning := e.turning(volumes, connecting)
	readings, err := e.read(ctx, volumes)
	if err != nil || len(readings) == 0 {
		return out, err
	}
	maps, err := e.Images.Find("", "")
	if err != nil {
		return out, err
	}
	for _, r := range readings {
		if ref != nil {
			e.lookAgain(ctx, r)
		}
		s := e.describe(r)
		s.ClientAddress = clientOf(r, maps)
		s.Connecting = connecting[r.Name()] || krbd.MayMap(stuck[r.Name()])
		switch {
		case r.Connected:
			e.describeDevice(&s, r, turning[r.Name()])
		case s.Connecting: // clean or not, it does not stay so
		case r.Up && ref != nil:
			s.DirtyBytes = e.dirtyOf(ctx, r)
		case r.Up:
			s.DirtyBytes = e.standbys.Known(r.Name(), r.Replica)
		}
		e.describeFault(&s, r, stuck[r.Name()])
		out.Volumes = append(out.Volumes, s)
	}
	return out, nil
}

// dirtyOf returns how much is dirty in a replica without a device, nil if that is not known.
func (e *Engine) dirtyOf(ctx context.Context, r volume.Reading) *int64 {
	dirty := e.standbys.Dirty(ctx, r.Volume, r.Replica)
	if dirty == nil && r.Phase == volume.Ready && e.NeverUsed(ctx, r.Volume, r.Replica) {
		return new(int64)
	}
	return dirty
}

// withoutReplica reports a volume that has no replica here. It is absent only if the kernel has
// nothing of it either: when the disk with the replica and its tags is gone, device and map still
// exist.
func (e *Engine) withoutReplica(ctx context.Context, ref escache.VolumeRef) (escache.VolumeStatus, error) {
	s := escache.VolumeStatus{VolumeRef: ref, State: escache.StateAbsent, Role: escache.RoleUnknown, SyncedPercent: 100}
	mayCome := e.MapMayCome(ref)
	maps, err := e.Images.Find(ref.Pool, ref.Image)
	if err != nil {
		return s, err
	}
	for _, m := range maps {
		s.ClientAddress = m.ClientAddress
	}
	devices, err := e.Caches.States(ctx, volume.NamePrefix)
	if err != nil {
		return s, err
	}
	if _, connected := devices[volume.NameOf(ref)]; connected {
		s.Device = e.DevicePath(volume.Volume{VolumeRef: ref})
	}
	switch {
	case s.ClientAddress != "" || s.Device != "":
		s.State, s.SyncedPercent = escache.StateError, 0
		s.Error = fault(escache.CodeInternal,
			"its replica is gone from the volume group, but the kernel still has its device or its map; reboot this host")
	case mayCome != nil:
		s.State, s.SyncedPercent, s.Device = escache.StateError, 0, e.DevicePath(volume.Volume{VolumeRef: ref})
		s.Connecting = true
		s.Error = fault(escache.CodeStuck, "the image may still be mapped: "+mayCome.Error())
	}
	return s, nil
}

// unreadable reports a replica of which only its existence is known.
func unreadable(ref escache.VolumeRef, why error) escache.VolumeStatus {
	return escache.VolumeStatus{
		VolumeRef: ref, State: escache.StateError, Role: escache.RoleUnknown,
		Error: fault(escache.CodeInternal, fmt.Sprintf("the tags of its replica cannot be read: %v", why)),
	}
}

// read returns the volumes with what the kernel says of them now. It starts no child and waits for
// no I/O. Permits are read before DRBD's state. In the other order the peer could be lost without a
// freeze, and the permit be dropped, between the two: the peer would look current although I/O has gone
// on without it.
func (e *Engine) read(ctx context.Context, volumes []volume.Volume) ([]volume.Reading, error) {
	if len(volumes) == 0 {
		return nil, nil
	}
	permits := make([]permit.State, len(volumes))
	for i, v := range volumes {
		permits[i] = e.Permits.Get(v.Name())
	}
	table, err := e.States.Read()
	if err != nil {
		return nil, err
	}
	devices, err := e.Caches.States(ctx, volume.NamePrefix)
	if err != nil {
		return nil, err
	}
	out := make([]volume.Reading, 0, len(volumes))
	for i, v := range volumes {
		r := volume.Reading{Volume: v, MayGoOnAlone: permits[i] != permit.None}
		r.Replica, r.Up = table.Devices[v.Minor]
		r.DiskFailed = !r.Up && e.diskFailed(v.Name())
		r.Device, r.Connected = devices[v.Name()]
		out = append(out, r)
	}
	return out, nil
}

// connecting returns the volumes for which DevConnect runs, also one whose caller has gone.
func (e *Engine) connecting(volumes []volume.Volume) map[string]bool {
	out := map[string]bool{}
	for _, v := range volumes {
		out[v.Name()] = e.Running(v.Name()) == verbConnect
	}
	return out
}

// turning returns the volumes whose mode may change: of which DevConnect or SetMode was called and has not ended, also if
// its caller has gone.
func (e *Engine) turning(volumes []volume.Volume, connecting map[string]bool) map[string]bool {
	out := map[string]bool{}
	for _, v := range volumes {
		out[v.Name()] = connecting[v.Name()] || e.turns.has(v.Name())
	}
	return out
}

// clientOf returns the Ceph client of a volume's map. A volume without a device has a map while it is
// connected or stopped, and if a connect was not finished. Of a Primary it is not told then: csi-node
// would put it on record as that of the device, and the connect may fail.
func clientOf(r volume.Reading, maps []krbd.Device) string {
	standby := !r.Connected && r.Replica.Role != drbd.Primary
	for _, m := range maps {
		if r.Connected && m.Number == r.Device.Origin || standby && m.Pool == r.Pool && m.Image == r.Image {
			return m.ClientAddress
		}
	}
	return ""
}

func (e *Engine) describe(r volume.Reading) escache.VolumeStatus {
	s := escache.VolumeStatus{
		VolumeRef: r.VolumeRef, ImageID: r.ImageID, State: escache.StateStandby, Role: escache.RoleUnknown, Epoch: r.Epoch,
		Engine: r.Engine, CacheBytes: r.CacheBytes, SizeBytes: r.SizeBytes, Port: r.Port, Minor: r.Minor, SyncedPercent: 100,
		Peers: []escache.Peer{{
			Name: r.Peer.Name, Address: r.Peer.Address, ConnectionState: escache.LinkUnconfigured, DiskState: escache.DiskUnknown,
		}},
	}
	if r.DiskFailed {
		s.DiskState = escache.DiskDiskless
	}
	if r.Up {
		s.Role, s.DiskState = escache.Role(r.Replica.Role), r.Replica.Disk
		s.SyncedPercent, s.Resync, s.IOSuspended = r.Replica.SyncedPercent, resyncOf(r.Replica), r.Replica.Suspended
		s.MayGoOnAlone = r.MayGoOnAlone
		s.Peers[0].ConnectionState, s.Peers[0].DiskState = r.Replica.Connection, r.Replica.PeerDisk
		s.Peers[0].Role = cmp.Or(escache.Role(r.Replica.PeerRole), escache.RoleUnknown)
	}
	return s
}

// resyncOf returns how a running resync goes on; nil if none is.
func resyncOf(s drbd.Status) *escache.Resync {
	if !s.Resyncing() {
		return nil
	}
	const kib = 1 << 10
	out := &escache.Resync{LeftBytes: s.OutOfSyncKiB * kib, BytesPerSecond: s.ResyncKiBPerSecond * kib}
	if out.BytesPerSecond > 0 {
		out.RemainingSeconds = int64(s.ResyncLeft / time.Second)
	}
	return out
}

// describeDevice describes a connected volume. A device that writes through and may be about to write back, because
// a verb runs, is one that writes back: who hears of write-through may take Ceph for complete from then on.
func (e *Engine) describeDevice(s *escache.VolumeStatus, r volume.Reading, mayTurn bool) {
	s.State, s.Mode = escache.StateConnected, escache.ModeWriteback
	if r.Device.Options.Mode == cache.Writethrough && !mayTurn {
		s.State, s.Mode = escache.StateDraining, escache.ModeWritethrough
	}
	if e.Running(r.Name()) == "flush" {
		s.State = escache.StateFlushing
	}
	if r.Device.Known {
		s.DirtyBytes = &r.Device.Dirty
	}
	s.SizeBytes = r.Device.Bytes
	s.Device = e.DevicePath(r.Volume)
	if hold := e.Holds.Get(r.Name()); hold != nil && r.Device.Held && (!hold.Paused || !r.Device.GoesOn) {
		s.HeldUntil = &hold.Until
	}
	if r.Device.Unserved != "" {
		s.Error = fault(escache.CodeStuck, "I/O waits, and escached tries to let it go on: "+r.Device.Unserved)
	}
	if r.Device.Failed {
		s.State = escache.StateError
		s.Error = fault(escache.CodeCacheError,
			"the cache could not write back to Ceph and fails all I/O; flush clears it once Ceph is back")
	}
}

// describeFault sets the most serious error of the volume. stuck is its command that hangs in the kernel,
// or nil. If that may still map the image, nobody must take this host for one without a device.
func (e *Engine) describeFault(s *escache.VolumeStatus, r volume.Reading, stuck *command.StuckError) {
	damage, damaged := e.damageOf(r.Name())
	noEngine := e.Caches.Has(r.Engine)
	switch {
	case !r.Connected && krbd.MayMap(stuck):
		s.State, s.Device = escache.StateError, e.DevicePath(r.Volume)
		s.Error = fault(escache.CodeStuck, "the image may still be mapped: "+stuck.Error())
	case stuck != nil:
		s.Error = fault(escache.CodeStuck, stuck.Error())
	case s.Error != nil:
	case r.Phase == volume.Abandoning:
		s.State = escache.StateError
		s.Error = fault(escache.CodeStaleEpoch, fmt.Sprintf(
			"another node has taken it over in epoch %d, and its I/O fails here; unmount it, then repeat POST %s",
			r.Epoch, escache.PathAbandon))
	case noEngine != nil:
		// Its device may be there all the same, so this is no standby.
		s.State, s.DirtyBytes = escache.StateError, nil
		s.Error = fault(escache.CodeEngineMissing, noEngine.Error())
	case r.Phase != volume.Ready:
		s.State = escache.StateError
		s.Error = fault(escache.CodeInternal, "the replica was not completely created or removed; repeat that call")
	case !r.Up && !damaged:
		s.State, s.Error = escache.StateError, e.notRunning(r)
	case r.Replica.Disk.Lost():
		s.Error = fault(escache.CodeCacheError, "this host's cache disk failed; I/O goes on through the peer")
		if !r.Connected {
			s.State = escache.StateError
		}
	case r.Replica.Suspended:
		s.Error = fault(escache.CodePeerUnavailable, fmt.Sprintf(
			"I/O is frozen: %s does not answer, and the arbiter has not allowed going on without it", r.Peer.Name))
	}
	if _, lost := e.lost.Load(r.Name()); lost && s.Error == nil {
		s.Error = fault(escache.CodeSecretMissing, fmt.Sprintf(
			"this host has lost the secret of the link to %s, so the copy has no peer; csi-controller gives it again when the volume is "+
				"attached the next time, or repeat PUT %s", r.Peer.Name, escache.PathReplica))
	}
	if damaged && !r.Connected && s.Error == nil {
		p := problem.Of(damage.err)
		s.State, s.Error, s.DirtyBytes = escache.StateError, fault(p.Code, p.Detail), nil
	}
	if failed, ok := e.faults.Load(r.Name()); ok && s.Error == nil {
		s.State = escache.StateError
		s.Error = fault(escache.CodeInternal, fmt.Sprint(failed))
	}
}

// notRunning says why DRBD does not run a replica.
func (e *Engine) notRunning(r volume.Reading) *escache.Fault {
	switch {
	case e.Unchecked(r.Name()) && !r.DiskFailed:
		return fault(escache.CodeRecovering, "it is not known yet whether the copy on "+e.Config.Node+" is in order: its cache is being "+
			"read, again if that took too long, and DRBD does not use it before; wait, or connect the volume on "+r.Peer.Name)
	case r.DiskFailed:
		return fault(escache.CodeCacheError, "this host's cache disk has failed, and DRBD does not use it: replace it")
	}
	return fault(escache.CodeInternal, "DRBD does not run the replica; see the kernel's log, then repeat PUT "+escache.PathReplica)
}

func fault(code escache.Code, detail string) *escache.Fault {
	return &escache.Fault{Code: code, Detail: detail}
}
