package escached

import (
	"context"
	"fmt"
	"sync"
	"time"

	"github.com/escache/escache-csi/api/escache"
	"github.com/escache/escache-csi/internal/escached/drbd"
	"github.com/escache/escache-csi/internal/escached/writecache"
)

// Status reports the volumes here. It takes no lock and runs nothing that waits for I/O. With a ref it reports exactly that
// volume, which may be absent.
func (e *Engine) Status(ctx context.Context, ref *escache.VolumeRef) (escache.Status, error) {
	out := escache.Status{Volumes: []escache.VolumeStatus{}}
	volumes := e.reg.list()
	if ref != nil {
		v, ok := e.reg.get(nameOf(*ref))
		if !ok {
			out.Volumes = append(out.Volumes, escache.VolumeStatus{
				VolumeRef: *ref, State: escache.StateAbsent, Role: escache.RoleUnknown, SyncedPercent: 100,
			})
			return out, nil
		}
		volumes = []volume{v}
	}
	if len(volumes) == 0 {
		return out, nil
	}
	table, err := e.States.Read()
	if err != nil {
		return out, err
	}
	devices, err := e.Caches.Devices(ctx, namePrefix)
	if err != nil {
		return out, err
	}
	for _, v := range volumes {
		st, up := table.Devices[v.Minor]
		dev, connected := devices[v.name()]
		s := e.describe(v, st, up)
		if connected {
			e.describeDevice(&s, v, dev)
		} else if up {
			s.DirtyBytes = e.standbyDirty(ctx, v, st)
		}
		e.describeFault(&s, v, st, up, connected)
		out.Volumes = append(out.Volumes, s)
	}
	return out, nil
}

func (e *Engine) describe(v volume, st drbd.Status, up bool) escache.VolumeStatus {
	s := escache.VolumeStatus{
		VolumeRef: v.VolumeRef, ImageID: v.ImageID, State: escache.StateStandby, Role: escache.RoleUnknown, Epoch: v.Epoch,
		CacheBytes: v.CacheBytes, SizeBytes: v.SizeBytes, Port: v.Port, Minor: v.Minor, SyncedPercent: 100,
		Peers: []escache.Peer{{Name: v.Peer.Name, Address: v.Peer.Address, ConnectionState: "Unconfigured", DiskState: "DUnknown"}},
	}
	if up {
		s.Role, s.DiskState = escache.Role(st.Role), st.Disk
		s.SyncedPercent, s.IOSuspended = st.SyncedPercent, st.Suspended
		s.Peers[0].ConnectionState, s.Peers[0].DiskState = st.Connection, st.PeerDisk
	}
	return s
}

func (e *Engine) describeDevice(s *escache.VolumeStatus, v volume, dev writecache.Device) {
	s.State, s.Mode = escache.StateConnected, escache.ModeWriteback
	if dev.Cleaner {
		s.State, s.Mode = escache.StateDraining, escache.ModeWritethrough
	}
	if e.locks.Running(v.name()) == "flush" {
		s.State = escache.StateFlushing
	}
	if dirty := dev.DirtyBytes(); dev.Blocks > 0 {
		s.DirtyBytes = &dirty
	}
	s.SizeBytes = dev.Bytes
	s.Device = devicePath(e.cfg.DeviceDir, v)
	s.HeldUntil = e.holds.until(v.name())
	if image, ok, err := e.imageOf(v, dev); err == nil && ok {
		s.ClientAddress = image.ClientAddress
	}
	if dev.Error {
		s.State = escache.StateError
		s.Error = fault(escache.CodeCacheError,
			"dm-writecache could not write back to Ceph and fails all I/O; flush clears it once Ceph is back")
	}
}

// describeFault names the most serious thing that is wrong.
func (e *Engine) describeFault(s *escache.VolumeStatus, v volume, st drbd.Status, up, connected bool) {
	stuck := e.Stuck()[v.name()]
	switch {
	case stuck != nil:
		s.Error = fault(escache.CodeStuck, stuck.Error())
	case s.Error != nil:
	case v.Phase != phaseReady:
		s.State = escache.StateError
		s.Error = fault(escache.CodeInternal, "the replica is half made or half removed; repeat that call")
	case !up:
		s.State = escache.StateError
		s.Error = fault(escache.CodeInternal, "DRBD does not run the replica; see the kernel's log, then repeat PUT "+escache.PathReplica)
	case st.Disk == drbd.Diskless || st.Disk == "Failed":
		s.Error = fault(escache.CodeCacheError, "this host's cache disk failed; I/O goes on through the peer")
		if !connected {
			s.State = escache.StateError
		}
	case st.Suspended:
		s.Error = fault(escache.CodePeerUnavailable, fmt.Sprintf(
			"I/O is frozen: %s does not answer, and the arbiter has not allowed going on without it", v.Peer.Name))
	}
	if failed, ok := e.faults.Load(v.name()); ok && s.Error == nil {
		s.State = escache.StateError
		s.Error = fault(escache.CodeInternal, fmt.Sprint(failed))
	}
}

func fault(code escache.Code, detail string) *escache.Fault {
	return &escache.Fault{Code: code, Detail: detail}
}

// standbyDirt remembers what the look at a standby's disk found, and at which count of written blocks.
type standbyDirt struct {
	mu    sync.Mutex
	found map[string]dirtReading
}

type dirtReading struct {
	written int64
	at      time.Time
	bytes   *int64
}

func newStandbyDirt() *standbyDirt { return &standbyDirt{found: map[string]dirtReading{}} }

func (d *standbyDirt) drop(name string) {
	d.mu.Lock()
	defer d.mu.Unlock()
	delete(d.found, name)
}

// rereadAfter spares a busy standby's disk: a reading that changes all the time is worth nothing anyway.
const rereadAfter = 5 * time.Second

// standbyDirty returns what a replica that is not connected holds dirty, or nil if that is not certain: the copy must be
// current, and nothing may have been written while it was read.
func (e *Engine) standbyDirty(ctx context.Context, v volume, st drbd.Status) *int64 {
	if !st.Current() || v.Phase != phaseReady {
		return nil
	}
	e.dirt.mu.Lock()
	last, ok := e.dirt.found[v.name()]
	e.dirt.mu.Unlock()
	if ok && (last.written == st.DiskWrittenKiB || e.now().Sub(last.at) < rereadAfter) {
		if last.written == st.DiskWrittenKiB {
			return last.bytes
		}
		return nil
	}
	reading := dirtReading{written: st.DiskWrittenKiB, at: e.now()}
	if bytes, err := e.Disks.CountDirty(ctx, v.name(), e.Store.Path(v.name()), writecache.HeaderBytes); err == nil {
		reading.bytes = &bytes
	}
	if after, up, err := e.replica(v.Minor); err != nil || !up || after.DiskWrittenKiB != st.DiskWrittenKiB || !after.Current() {
		reading.bytes, reading.written = nil, -1
	}
	e.dirt.mu.Lock()
	e.dirt.found[v.name()] = reading
	e.dirt.mu.Unlock()
	return reading.bytes
}
