package engine

import (
	"context"
	"fmt"

	"github.com/escache/escache-csi/api/escache"
	"github.com/escache/escache-csi/internal/escached/cache"
	"github.com/escache/escache-csi/internal/escached/drbd"
	"github.com/escache/escache-csi/internal/escached/volume"
)

// Status reports the volumes on this host. It takes no lock and does not wait for I/O. Without a
// ref it reports all volumes and starts no child process, because it is polled. With a ref it
// reports exactly that volume, which may be absent. The caller then usually has to decide
// something, so Status scans a standby's disk if it has to.
func (e *Engine) Status(ctx context.Context, ref *escache.VolumeRef) (escache.Status, error) {
	out := escache.Status{Volumes: []escache.VolumeStatus{}}
	volumes := e.reg.List()
	if ref != nil {
		v, ok := e.reg.Get(volume.NameOf(*ref))
		if !ok {
			out.Volumes = append(out.Volumes, escache.VolumeStatus{
				VolumeRef: *ref, State: escache.StateAbsent, Role: escache.RoleUnknown, SyncedPercent: 100,
			})
			return out, nil
		}
		volumes = []volume.Volume{v}
	}
	if len(volumes) == 0 {
		return out, nil
	}
	table, err := e.States.Read()
	if err != nil {
		return out, err
	}
	devices, err := e.Caches.States(ctx, volume.NamePrefix)
	if err != nil {
		return out, err
	}
	clients := e.clients()
	for _, v := range volumes {
		st, up := table.Devices[v.Minor]
		dev, connected := devices[v.Name()]
		s := e.describe(v, st, up)
		switch {
		case connected:
			e.describeDevice(&s, v, dev)
			s.ClientAddress = clients[dev.Origin]
		case up && ref != nil:
			s.DirtyBytes = e.standbyDirty(ctx, v, st)
		case up:
			s.DirtyBytes = e.dirt.known(v.Name(), st)
		}
		e.describeFault(&s, v, st, up, connected)
		out.Volumes = append(out.Volumes, s)
	}
	return out, nil
}

// clients returns the Ceph clients of all maps, by the number of the mapped device.
func (e *Engine) clients() map[string]string {
	out := map[string]string{}
	maps, err := e.Images.Find("", "")
	if err != nil {
		return out
	}
	for _, m := range maps {
		out[m.Number] = m.ClientAddress
	}
	return out
}

func (e *Engine) describe(v volume.Volume, st drbd.Status, up bool) escache.VolumeStatus {
	s := escache.VolumeStatus{
		VolumeRef: v.VolumeRef, ImageID: v.ImageID, State: escache.StateStandby, Role: escache.RoleUnknown, Epoch: v.Epoch,
		CacheBytes: v.CacheBytes, SizeBytes: v.SizeBytes, Port: v.Port, Minor: v.Minor, SyncedPercent: 100,
		Peers: []escache.Peer{{Name: v.Peer.Name, Address: v.Peer.Address, ConnectionState: escache.LinkUnconfigured, DiskState: escache.DiskUnknown}},
	}
	if up {
		s.Role, s.DiskState = escache.Role(st.Role), st.Disk
		s.SyncedPercent, s.IOSuspended = st.SyncedPercent, st.Suspended
		s.Peers[0].ConnectionState, s.Peers[0].DiskState = st.Connection, st.PeerDisk
	}
	return s
}

func (e *Engine) describeDevice(s *escache.VolumeStatus, v volume.Volume, dev cache.State) {
	s.State, s.Mode = escache.StateConnected, escache.ModeWriteback
	if dev.Options.Mode == cache.Writethrough {
		s.State, s.Mode = escache.StateDraining, escache.ModeWritethrough
	}
	if e.locks.Running(v.Name()) == "flush" {
		s.State = escache.StateFlushing
	}
	if dev.Known {
		s.DirtyBytes = &dev.Dirty
	}
	s.SizeBytes = dev.Bytes
	s.Device = devicePath(e.cfg.DeviceDir, v)
	s.HeldUntil = e.holds.Until(v.Name())
	if dev.Failed {
		s.State = escache.StateError
		s.Error = fault(escache.CodeCacheError,
			"the cache could not write back to Ceph and fails all I/O; flush clears it once Ceph is back")
	}
}

// describeFault sets the most serious error of the volume.
func (e *Engine) describeFault(s *escache.VolumeStatus, v volume.Volume, st drbd.Status, up, connected bool) {
	stuck := e.Stuck()[v.Name()]
	switch {
	case stuck != nil:
		s.Error = fault(escache.CodeStuck, stuck.Error())
	case s.Error != nil:
	case v.Phase == volume.Abandoning:
		s.State = escache.StateError
		s.Error = fault(escache.CodeStaleEpoch, fmt.Sprintf(
			"another node has taken it over in epoch %d, and its I/O fails here; unmount it, then repeat POST %s",
			v.Epoch, escache.PathAbandon))
	case v.Phase != volume.Ready:
		s.State = escache.StateError
		s.Error = fault(escache.CodeInternal, "the replica was not completely laid or removed; repeat that call")
	case !up:
		s.State = escache.StateError
		s.Error = fault(escache.CodeInternal, "DRBD does not run the replica; see the kernel's log, then repeat PUT "+escache.PathReplica)
	case st.Disk.Lost():
		s.Error = fault(escache.CodeCacheError, "this host's cache disk failed; I/O goes on through the peer")
		if !connected {
			s.State = escache.StateError
		}
	case st.Suspended:
		s.Error = fault(escache.CodePeerUnavailable, fmt.Sprintf(
			"I/O is frozen: %s does not answer, and the arbiter has not allowed going on without it", v.Peer.Name))
	}
	if failed, ok := e.faults.Load(v.Name()); ok && s.Error == nil {
		s.State = escache.StateError
		s.Error = fault(escache.CodeInternal, fmt.Sprint(failed))
	}
}

func fault(code escache.Code, detail string) *escache.Fault {
	return &escache.Fault{Code: code, Detail: detail}
}
