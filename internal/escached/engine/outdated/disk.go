package outdated

import (
	"context"
	"errors"

	"github.com/escache/escache-csi/api/escache"
	"github.com/escache/escache-csi/internal/escached/drbd"
	"github.com/escache/escache-csi/internal/escached/faileddisk"
	"github.com/escache/escache-csi/internal/escached/host"
	"github.com/escache/escache-csi/internal/escached/volume"
)

// CheckDisk repeats what DRBD's handler for a failed disk could not do, and removes the mark of a
// disk that is current again.
func (m *Marker) CheckDisk(ctx context.Context, ref escache.VolumeRef) {
	if v, ok := m.Volumes.Get(volume.NameOf(ref)); !ok || !m.concerned(v) {
		return
	}
	ctx, done, err := m.TryBegin(ctx, ref, host.WorkAskRecord, host.ChangeTimeout)
	if err != nil {
		return // a verb is running; the next round looks again
	}
	defer done()
	v, err := m.Known(ref)
	if err != nil {
		return
	}
	if err := m.checkDisk(ctx, v); err != nil {
		m.log.Warn("the replica's disk has failed", "pool", v.Pool, "image", v.Image, "error", err)
	}
}

// concerned reports whether there is something to do about a replica's disk.
func (m *Marker) concerned(v volume.Volume) bool {
	st, up, err := m.Replica(v.Minor)
	if err != nil || !up {
		return false
	}
	mark := m.FailedDisks.Get(v.Name())
	if st.Disk.Lost() {
		return mark != faileddisk.Recorded
	}
	return mark != faileddisk.Sound
}

func (m *Marker) checkDisk(ctx context.Context, v volume.Volume) error {
	mark := m.FailedDisks.Get(v.Name())
	// Read after the mark: DRBD loses the disk before the handler sets the mark.
	st, up, err := m.Replica(v.Minor)
	switch {
	case err != nil || !up:
		return err
	case !st.Disk.Lost():
		if mark != faileddisk.Sound && st.Connection == drbd.Connected && st.Disk == drbd.UpToDate && st.PeerDisk == drbd.UpToDate {
			return m.dropMark(v)
		}
		return nil
	case mark == faileddisk.Recorded || mark == faileddisk.Sound && !st.Linked():
		return nil // a replica that is not linked may have lost its disk on purpose
	case mark == faileddisk.Sound:
		if err := m.FailedDisks.Set(v.Name(), faileddisk.Failed); err != nil {
			return err
		}
	}
	report := faileddisk.Reporter{Marks: m.FailedDisks, Records: m.Records, Log: m.log}
	replica := faileddisk.Replica{Name: v.Name(), Request: escache.OutdateSelfRequest{
		VolumeRef: v.VolumeRef, ImageID: v.ImageID, Node: m.Config.Node, Peer: v.Peer.Name,
	}}
	if st.Role == drbd.Secondary && st.Linked() {
		return report.ReportOrLeave(ctx, replica, m.Replicator.Leave)
	}
	return report.Report(ctx, replica)
}

// dropMark removes the mark of a disk that is current again. It looks once more afterwards: the disk
// may have failed since it was looked at, and the mark that was removed is then the handler's new one.
func (m *Marker) dropMark(v volume.Volume) error {
	if err := m.FailedDisks.Drop(v.Name()); err != nil {
		return err
	}
	if st, up, err := m.Replica(v.Minor); err != nil || up && st.Disk.Lost() {
		return errors.Join(err, m.FailedDisks.Set(v.Name(), faileddisk.Failed))
	}
	return nil
}

// handOver removes the mark of a failed disk once DRBD's own metadata says that the copy is outdated.
// A resync removes that too, in the same moment in which the copy becomes current. While the replica
// is linked DRBD may have ignored the command, so the mark stays.
func (m *Marker) handOver(v volume.Volume) error {
	st, up, err := m.Replica(v.Minor)
	if err != nil || up && st.Disk != drbd.Outdated {
		return err
	}
	return m.FailedDisks.Drop(v.Name())
}
