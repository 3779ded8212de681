package uncached

import (
	"github.com/escache/escache-csi/api/escache"
	"github.com/escache/escache-csi/internal/escached/volume"
)

// Status reports one image; false if it is not mapped without a cache. It takes no lock.
func (m *Maps) Status(ref escache.VolumeRef) (escache.VolumeStatus, bool, error) {
	record, there, err := m.records.Get(ref)
	if err != nil {
		return unreadable(ref, err), true, nil
	}
	if !there {
		return escache.VolumeStatus{}, false, nil
	}
	return m.describe(record)
}

// Statuses reports all images that are mapped without a cache. It takes no lock.
func (m *Maps) Statuses() ([]escache.VolumeStatus, error) {
	records, err := m.records.List()
	if err != nil {
		m.log.Error("which images are mapped without a cache is not known for all", "error", err)
	}
	var out []escache.VolumeStatus
	for _, record := range records {
		s, mapped, err := m.describe(record)
		if err != nil {
			return nil, err
		}
		if mapped {
			out = append(out, s)
		}
	}
	return out, nil
}

func (m *Maps) describe(record Record) (s escache.VolumeStatus, mapped bool, err error) {
	maps, err := m.Images.Find(record.Pool, record.Image)
	if err != nil || len(maps) == 0 {
		return s, false, err
	}
	v, image, nothing := volume.Volume{VolumeRef: record.VolumeRef}, maps[0], int64(0)
	s = escache.VolumeStatus{
		VolumeRef: record.VolumeRef, ImageID: record.ImageID, State: escache.StateConnected, Role: escache.RoleUnknown, Uncached: true,
		Epoch: record.Epoch, Mode: escache.ModeWritethrough, DirtyBytes: &nothing, SizeBytes: image.Bytes, Device: m.DevicePath(v),
		SyncedPercent: 100, ClientAddress: image.ClientAddress,
	}
	stuck := m.Stuck()[v.Name()]
	switch {
	case stuck != nil:
		s.Error = &escache.Fault{Code: escache.CodeStuck, Detail: stuck.Error()}
	case len(maps) > 1, image.ImageID != record.ImageID:
		s.State = escache.StateError
		s.Error = &escache.Fault{Code: escache.CodeInternal, Detail: "the kernel has another map of the image than is on record here; " +
			"reboot this host"}
	}
	return s, true, nil
}

// unreadable reports an image of which nothing is known but that it may be mapped.
func unreadable(ref escache.VolumeRef, why error) escache.VolumeStatus {
	return escache.VolumeStatus{
		VolumeRef: ref, State: escache.StateError, Role: escache.RoleUnknown, Uncached: true,
		Error: &escache.Fault{Code: escache.CodeInternal, Detail: why.Error() + "; reboot this host"},
	}
}
