package conformance

import (
	"github.com/escache/escache-csi/api/escache"
)

func resizeChecks() []Check {
	return []Check{{"resize grows the device and keeps its data", resizeGrows, beside}}
}

func resizeGrows(s *suite) {
	before, after := s.target.ImageBytes, s.target.ImageBytes+64*mib
	refused(s, "resize an unknown volume", s.first.resize(s.nameVolume(), before), escache.CodeNotFound)
	v := s.laid()
	refused(s, "resize a standby", s.first.resize(v, before), escache.CodeNotConnected)
	v.attach(s.first)
	low, end := v.write(s.first, 0, mib), v.write(s.first, before-mib, mib)
	refused(s, "resize above the image's size", s.first.resize(v, after), escache.CodeInvalidRequest)
	refused(s, "resize below the device's size", s.first.resize(v, before-4*mib), escache.CodeInvalidRequest)
	done(s, "resize to the size it has", s.first.resize(v, before))
	s.size(s.first, v, before)

	if err := s.target.Storage.Grow(s.Context(), v.VolumeRef, after); err != nil {
		s.Fatalf("grow %s: %v", v, err)
	}
	for range 2 {
		done(s, "resize", s.first.resize(v, after))
		s.size(s.first, v, after)
	}
	beyond := v.write(s.first, after-mib, mib)
	for offset, data := range map[int64][]byte{0: low, before - mib: end, after - mib: beyond} {
		v.holds(s.first, offset, data)
	}
	refused(s, "resize back", s.first.resize(v, before), escache.CodeInvalidRequest)

	// The other host learns the size when it connects.
	v.detach(s.first)
	v.attach(s.second)
	s.size(s.second, v, after)
	v.holds(s.second, after-mib, beyond)
}

func (s *suite) size(h *host, v *volume, want int64) {
	s.Helper()
	size, err := h.Devices.Size(s.Context(), v.device)
	if err != nil || size != want {
		s.Errorf("%s: the device has %d bytes (%v), want %d", h.Name, size, err, want)
	}
	if status := h.status(v.VolumeRef); status.SizeBytes != want {
		s.Errorf("%s: sizeBytes is %d, want %d", h.Name, status.SizeBytes, want)
	}
}
