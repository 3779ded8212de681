package conformance

import (
	"errors"

	"github.com/escache/escache-csi/api/escache"
)

func stopChecks() []Check {
	return []Check{
		{"stop removes the device once", stopRemoves, beside},
		{"stop is refused while dirty", stopWhileDirty, beside},
		{"stop is refused while the device is open", stopWhileOpen, beside},
	}
}

func stopRemoves(s *suite) {
	refused(s, "stop an unknown volume", s.first.stop(s.nameVolume()), escache.CodeNotFound)
	v := s.laid()
	done(s, "stop a standby", s.first.stop(v))
	v.attach(s.first)
	v.clean(s.first)
	for _, what := range []string{"stop", "stop again"} {
		done(s, what, s.first.stopClosed(v))
		status := s.first.status(v.VolumeRef)
		if status.State != escache.StateStandby || status.Role == escache.RolePrimary || status.Device != "" ||
			status.ClientAddress != "" || status.Epoch != v.epoch {
			s.Errorf("%s: the status is %+v", what, shown(status))
		}
	}
	if size, err := s.first.Devices.Size(s.Context(), v.device); err == nil {
		s.Errorf("the device %s still exists after stop and has %d bytes", v.device, size)
	}
	lock, err := s.target.Storage.Occupy(s.Context(), v.VolumeRef)
	if err == nil {
		err = lock.Close()
	}
	if err != nil && !errors.Is(err, ErrUnsupported) {
		s.Errorf("another client cannot take the image after stop: %v", err)
	}
}

func stopWhileDirty(s *suite) {
	v := s.connected()
	data := v.makeDirty(s.first)
	refused(s, "stop while dirty", s.first.stopClosed(v), escache.CodeDirty)
	if status := s.first.status(v.VolumeRef); status.State != escache.StateConnected || status.Device != v.device {
		s.Errorf("a refused stop left the status %+v", shown(status))
	}
	v.holds(s.first, 0, data)
	v.detach(s.first)
}

func stopWhileOpen(s *suite) {
	v := s.connected()
	open, err := s.first.Devices.Open(s.Context(), v.device)
	if err != nil {
		s.Fatalf("open %s: %v", v.device, err)
	}
	v.clean(s.first)
	refused(s, "stop while the device is open", s.first.stop(v), escache.CodeDeviceOpen)
	if status := s.first.status(v.VolumeRef); status.State != escache.StateConnected || status.Role != escache.RolePrimary {
		s.Errorf("a refused stop left the status %+v", shown(status))
	}
	if err := open.Close(); err != nil {
		s.Fatalf("close %s: %v", v.device, err)
	}
	done(s, "stop once the device is closed", s.first.stopClosed(v))
}
