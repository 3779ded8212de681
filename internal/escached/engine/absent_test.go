package engine

import (
	"testing"

	"github.com/escache/escache-csi/api/escache"
	"github.com/escache/escache-csi/internal/escached/volume"
)

// TestADeviceWithoutItsReplicaIsNotAbsent: the tags are on the disk of the cache. When that disk is
// gone, the kernel still has the device, and its writer.
func TestADeviceWithoutItsReplicaIsNotAbsent(t *testing.T) {
	w, _ := inUse(t)
	delete(w.lvs, volume.NameOf(ref))
	e := w.restarted()
	ask := func() escache.VolumeStatus {
		t.Helper()
		s, err := e.Status(t.Context(), &ref)
		if err != nil {
			t.Fatal(err)
		}
		return s.Volumes[0]
	}
	if s := ask(); s.State != escache.StateError || s.ClientAddress != w.image.ClientAddress || s.Device == "" || s.Error == nil {
		t.Errorf("with device and map: %+v", s)
	}
	w.caches.Reboot()
	if s := ask(); s.State != escache.StateError || s.ClientAddress != w.image.ClientAddress || s.Error == nil {
		t.Errorf("with the map alone: %+v", s)
	}
	w.maps = nil
	if s := ask(); s.State != escache.StateAbsent || s.Error != nil {
		t.Errorf("with nothing: %+v", s)
	}
}
