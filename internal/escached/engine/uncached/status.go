package uncached

import (
	"cmp"

	"github.com/escache/escache-csi/api/escache"
	"github.com/escache/escache-csi/internal/escached/volume"
)

// Status reports one image; false if it is certainly not mapped without a cache, and not being mapped. It
// takes no lock. A volume with a replica here is not its business.
func (m *Maps) Status(ref escache.VolumeRef) (escache.VolumeStatus, bool, error) {
	connecting := m.connecting(ref) // before the record is read: a call that ends meanwhile has written it
	record, there, err := m.records.Get(ref)
	switch {
	case err != nil:
		s, err := m.unreadable(ref, err)
		return s, true, err
	case there:
		s, err := m.describe(record)
		return s, true, err
	case connecting:
		return m.notMapped(Record{VolumeRef: ref}), true, nil
	}
	return escache.VolumeStatus{}, false, nil
}

// Statuses reports all images that are mapped without a cache, or may be. It takes no lock.
func (m *Maps) Statuses() ([]escache.VolumeStatus, error) {
	records, err := m.records.List()
	if err != nil {
		m.log.Error("which images are mapped without a cache is not known for all", "error", err)
	}
	var out []escache.VolumeStatus
	for _, record := range records {
		if m.hasReplica(record.VolumeRef) {
			continue
		}
		s, err := m.describe(record)
		if err != nil {
			return nil, err
		}
		out = append(out, s)
	}
	return out, nil
}

func (m *Maps) describe(record Record) (escache.VolumeStatus, error) {
	maps, err := m.Images.Find(record.Pool, record.Image)
	if err != nil || len(maps) == 0 {
		return m.notMapped(record), err
	}
	s, image := m.recorded(record), maps[0]
	s.State, s.Mode, s.SyncedPercent = escache.StateConnected, escache.ModeWritethrough, 100
	s.SizeBytes, s.ClientAddress = image.Bytes, image.ClientAddress
	stuck := m.MapMayCome(record.VolumeRef)
	s.Connecting = stuck != nil || m.connecting(record.VolumeRef)
	switch {
	case stuck != nil:
		s.Error = &escache.Fault{Code: escache.CodeStuck, Detail: stuck.Error()}
	case len(maps) > 1, image.ImageID != record.ImageID:
		s.State = escache.StateError
		s.Error = &escache.Fault{Code: escache.CodeInternal, Detail: "the kernel has another map of the image than is on record here; " +
			"reboot this host"}
	}
	return s, nil
}

// notMapped reports an image that has a record, or is about to have one, and no map. It is not absent: the
// map may come at any moment. The device is where it is going to be.
func (m *Maps) notMapped(record Record) escache.VolumeStatus {
	s := m.recorded(record)
	s.Error = &escache.Fault{Code: escache.CodeInternal, Detail: "mapping the image was begun and not finished; stop it, or connect " +
		"it again"}
	if stuck := m.MapMayCome(record.VolumeRef); stuck != nil {
		s.Connecting = true
		s.Error = &escache.Fault{Code: escache.CodeStuck, Detail: "the image may still be mapped: " + stuck.Error()}
	}
	if m.connecting(record.VolumeRef) {
		s.Connecting = true
		s.Error = &escache.Fault{Code: escache.CodeBusy, Detail: "the image is being mapped"}
	}
	return s
}

// recorded is what a record says by itself.
func (m *Maps) recorded(record Record) escache.VolumeStatus {
	return escache.VolumeStatus{
		VolumeRef: record.VolumeRef, ImageID: record.ImageID, State: escache.StateError, Role: escache.RoleUnknown, Uncached: true,
		Epoch: record.Epoch, DirtyBytes: new(int64), Device: m.DevicePath(volume.Volume{VolumeRef: record.VolumeRef}),
	}
}

// unreadable reports an image of which nothing is on record but that it may be mapped.
func (m *Maps) unreadable(ref escache.VolumeRef, why error) (escache.VolumeStatus, error) {
	s := m.recorded(Record{VolumeRef: ref})
	s.DirtyBytes = nil
	s.Error = &escache.Fault{Code: escache.CodeInternal, Detail: why.Error() + "; stop it, or reboot this host"}
	maps, err := m.Images.Find(ref.Pool, ref.Image)
	for _, image := range maps {
		s.ClientAddress = cmp.Or(s.ClientAddress, image.ClientAddress)
	}
	return s, err
}
