package engine

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"

	"github.com/escache/escache-csi/api/escache"
	"github.com/escache/escache-csi/internal/escached/deviceusers"
	"github.com/escache/escache-csi/internal/escached/drbd"
	"github.com/escache/escache-csi/internal/escached/volume"
)

type worldDRBD world

func (d *worldDRBD) Read() (drbd.Table, error) {
	defer func() { d.drbdRead() }()
	table := drbd.Table{Version: "8.4.11", Devices: maps.Clone(d.minors)}
	for minor, st := range d.minors {
		if st.Connection == drbd.StandAlone && st.Disk == drbd.Diskless && st.Role != drbd.Primary {
			delete(table.Devices, minor)
			table.Unconfigured = append(table.Unconfigured, minor)
		}
	}
	return table, nil
}

// configure has the kernel take a resource's file. drbdadm refuses a file with an address of this host that it
// does not have, or with the same one for both ends.
func (d *worldDRBD) configure(name string) error {
	file := d.files[name]
	switch {
	case file.LocalAddress != d.address:
		return fmt.Errorf("IP %s not found on this host", file.LocalAddress)
	case file.LocalAddress == file.PeerAddress:
		return fmt.Errorf("conflicting use of IP %s", file.LocalAddress)
	}
	d.running[name] = file
	return nil
}

func (d *worldDRBD) CreateMetadata(_ context.Context, name string) error {
	if err := (*world)(d).step("create-md"); err != nil {
		return err
	}
	if st, up := d.minors[(*world)(d).minorOf(name)]; up && st.Disk != drbd.Diskless {
		d.t.Errorf("create-md on a disk in use")
	}
	d.md[name] = true
	return nil
}

func (d *worldDRBD) WipeMetadata(_ context.Context, name string) error {
	if err := (*world)(d).step("wipe-md"); err != nil {
		return err
	}
	if _, up := d.minors[(*world)(d).minorOf(name)]; up {
		d.t.Errorf("wipe-md on a device that is up")
	}
	delete(d.md, name)
	return nil
}

func (d *worldDRBD) Up(ctx context.Context, name string) error {
	if err := d.use("up", name); err != nil {
		return err
	}
	return d.link(name)
}

func (d *worldDRBD) Attach(_ context.Context, name string) error { return d.use("attach", name) }

// use has the kernel use the disk of a device that is down. What DRBD says of a copy that was used here once is
// that it is consistent.
func (d *worldDRBD) use(step, name string) error {
	if err := (*world)(d).step("%s", step); err != nil {
		return err
	}
	if !d.lvs[name].Active {
		return fmt.Errorf("%s: no such file or directory", d.files[name].Disk)
	}
	if !d.md[name] {
		d.t.Errorf("%s without metadata", step)
	}
	st := cut(drbd.Inconsistent)
	d.fresh[name] = false
	switch v, err := volume.Parse(d.lvs[name]); {
	case err != nil:
		return err
	case d.outdated[name]:
		st.Disk = drbd.Outdated
	case v.Formatted && !d.conceded[name]:
		st.Disk = drbd.Consistent
	default:
		d.fresh[name] = true
	}
	st.Connection = drbd.StandAlone
	d.minors[(*world)(d).minorOf(name)] = st
	return nil
}

// link makes the link of a device that has none.
func (d *worldDRBD) link(name string) error {
	if err := d.configure(name); err != nil {
		return err
	}
	d.set(name, func(st *drbd.Status) {
		switch {
		case st.Connection != drbd.StandAlone:
		case d.conceded[name] && d.peerWaits:
			*st = linked("SyncTarget", drbd.Inconsistent)
		case d.peerWaits: // a former Primary has the newer data, says DRBD, also if it is outdated
			*st = linked("SyncSource", drbd.Outdated)
			st.PeerDisk = drbd.Inconsistent
		case d.fresh[name]: // so is the peer's
			*st = linked(drbd.Connected, drbd.Inconsistent)
			st.PeerDisk = drbd.Inconsistent
		default:
			st.Connection = "WFConnection"
		}
	})
	d.fresh[name] = false
	return nil
}

func (d *worldDRBD) Adjust(_ context.Context, name string) error {
	if err := (*world)(d).step("adjust"); err != nil {
		return err
	}
	return d.link(name)
}

func (d *worldDRBD) Freeze(_ context.Context, name string, freeze bool) error {
	if err := (*world)(d).step("freeze %v", freeze); err != nil {
		return err
	}
	minor := (*world)(d).minorOf(name)
	if d.minors[minor].Disk.Lost() {
		d.t.Errorf("disk options without a disk")
	}
	if d.files[name].NoFreeze == freeze {
		d.t.Errorf("the kernel is told %v, and the resource's file says the opposite", freeze)
	}
	d.unfrozen[minor] = !freeze
	return nil
}

func (d *worldDRBD) Down(_ context.Context, name string) error {
	if err := (*world)(d).step("down"); err != nil {
		return err
	}
	minor := (*world)(d).minorOf(name)
	if d.minors[minor].Role == drbd.Primary {
		return errors.New("down while Primary")
	}
	delete(d.minors, minor)
	return nil
}

func (d *worldDRBD) set(name string, change func(*drbd.Status)) {
	minor := (*world)(d).minorOf(name)
	st := d.minors[minor]
	change(&st)
	d.minors[minor] = st
}

func (d *worldDRBD) Disconnect(_ context.Context, name string) error {
	if err := (*world)(d).step("disconnect"); err != nil {
		return err
	}
	d.set(name, func(st *drbd.Status) {
		st.Connection = drbd.StandAlone
		if d.lostOnLeaving && st.Role == drbd.Primary && !d.unfrozen[(*world)(d).minorOf(name)] {
			st.Suspended, st.PeerDisk = true, "DUnknown"
		}
	})
	return nil
}

func (d *worldDRBD) Connect(_ context.Context, name string) error {
	if err := (*world)(d).step("connect"); err != nil {
		return err
	}
	if err := d.configure(name); err != nil {
		return err
	}
	d.set(name, func(st *drbd.Status) { st.Connection = "WFConnection" })
	return nil
}

func (d *worldDRBD) SkipFirstSync(_ context.Context, name string) error {
	if err := (*world)(d).step("skip first sync"); err != nil {
		return err
	}
	if d.linkLost {
		d.linkLost = false // it is back at the next look
		return drbd.ErrLinkLost
	}
	d.set(name, func(st *drbd.Status) { st.Disk, st.PeerDisk = drbd.UpToDate, drbd.UpToDate })
	return nil
}

func (d *worldDRBD) Promote(_ context.Context, name string) error {
	if err := (*world)(d).step("promote"); err != nil {
		return err
	}
	if d.promote != nil {
		return d.promote
	}
	d.set(name, func(st *drbd.Status) { st.Role = drbd.Primary })
	return nil
}

func (d *worldDRBD) Demote(_ context.Context, name string) error {
	if err := (*world)(d).step("demote"); err != nil {
		return err
	}
	if st := d.minors[(*world)(d).minorOf(name)]; (*world)(d).connected() > 0 || st.Suspended {
		return drbd.ErrOpen
	}
	d.set(name, func(st *drbd.Status) { st.Role = drbd.Secondary })
	return nil
}

func (d *worldDRBD) Leave(_ context.Context, name string) error {
	if err := (*world)(d).step("leave"); err != nil {
		return err
	}
	d.set(name, func(st *drbd.Status) {
		if st.Linked() && st.Role == drbd.Primary {
			if !st.Disk.Lost() && !d.userKilled {
				d.t.Errorf("I/O freezes while a process may have a flush under way: DRBD would never end it")
			}
			st.Suspended, st.PeerDisk = true, "DUnknown"
		}
		st.Connection = drbd.StandAlone
	})
	return nil
}

func (d *worldDRBD) Detach(_ context.Context, name string) error {
	if err := (*world)(d).step("detach"); err != nil {
		return err
	}
	if st := d.minors[(*world)(d).minorOf(name)]; st.Connection != drbd.StandAlone || !st.Suspended {
		d.t.Errorf("detached while the peer may come back, or while I/O goes on: %+v", st)
	}
	d.set(name, func(st *drbd.Status) { st.Disk = drbd.Diskless })
	return nil
}

func (d *worldDRBD) ResumeIO(_ context.Context, name string) error {
	if err := (*world)(d).step("resume-io"); err != nil {
		return err
	}
	if st := d.minors[(*world)(d).minorOf(name)]; st.Disk != drbd.Diskless || st.Connection != drbd.StandAlone {
		d.t.Errorf("I/O goes on without a verdict: %+v", st)
	}
	if !d.userKilled {
		d.t.Errorf("a write that only the local disk has is acknowledged")
	}
	d.set(name, func(st *drbd.Status) { st.Suspended = false })
	d.ioFailed()
	return nil
}

// KillUsers kills the process that uses the device.
func (d *worldDRBD) KillUsers(_ context.Context, paths ...string) ([]deviceusers.Process, error) {
	if err := (*world)(d).step("kill users"); err != nil {
		return nil, err
	}
	device := (*world)(d).state().Path // "" if there is none
	d.userKilled = slices.Contains(paths, drbd.Device(putReq.Minor)) && (device == "" || slices.Contains(paths, device))
	return []deviceusers.Process{{PID: 7, Name: "postgres"}}, nil
}

func (d *worldDRBD) Outdate(_ context.Context, name string) error {
	if err := (*world)(d).step("outdate"); err != nil {
		return err
	}
	minor := (*world)(d).minorOf(name)
	st, up := d.minors[minor]
	switch {
	case st.Role == drbd.Primary:
		return errors.New("outdate while Primary")
	case up && st.Linked():
		return nil
	case up:
		st.Disk = drbd.Outdated
		d.minors[minor] = st
	}
	d.outdated[name] = true
	return nil
}

func (d *worldDRBD) Concede(_ context.Context, name string) error {
	if err := (*world)(d).step("concede"); err != nil {
		return err
	}
	if _, up := d.minors[(*world)(d).minorOf(name)]; up {
		d.t.Errorf("metadata of a device that is up are changed")
	}
	d.conceded[name] = true
	return nil
}

// takenOver is what is on record once n2 was promoted in an epoch.
func (w *world) takenOver(epoch int64) {
	w.recordErr = nil
	w.record = escache.VolumeRecord{
		ImageID: "10ab", AttachedNode: "n2", Epoch: epoch, Replicas: []string{"n1", "n2"}, Outdated: []string{"n1"},
	}
}

// freeze is what DRBD does when the peer of a Primary is lost and the arbiter does not grant going
// on.
func (w *world) freeze(name string) {
	st := w.minors[w.minorOf(name)]
	st.Connection, st.PeerRole, st.PeerDisk, st.Suspended = "WFConnection", "Unknown", "DUnknown", true
	w.minors[w.minorOf(name)], w.userKilled = st, false
}
