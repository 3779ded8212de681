package conformance

import (
	"context"
	"net/http"

	"github.com/escache/escache-csi/api/escache"
)

func mapChecks() []Check {
	return []Check{
		// Alone: kernels give the number of a device that is gone to the next one.
		{"an image without a cache is mapped once", mapOnce, alone},
		{"many hosts map an image read-only", mapReadOnly, alone},
		{"an image with a replica is mapped by its connect", mapBesideReplica, beside},
	}
}

func (h *host) mapImage(v *volume, readOnly bool) *answer {
	h.s.Helper()
	return h.post(escache.PathMap, escache.MapRequest{VolumeRef: v.VolumeRef, ImageID: v.id, ReadOnly: readOnly})
}

func (h *host) unmapImage(v *volume) *answer {
	h.s.Helper()
	return h.post(escache.PathUnmap, escache.UnmapRequest{VolumeRef: v.VolumeRef})
}

// plain makes an image that has no replica, and unmaps it from both hosts when the check ends.
func (s *suite) plain() *volume {
	s.Helper()
	v := s.newVolume()
	unmap := request{method: http.MethodPost, path: escache.PathUnmap, body: encode(s, escache.UnmapRequest{VolumeRef: v.VolumeRef})}
	s.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), s.target.CallTimeout)
		defer cancel()
		for _, ended := range onBoth(s, func(h *host) (*answer, error) { return h.call.do(ctx, unmap) }) {
			if ended.err != nil {
				s.Errorf("unmap %s: %v", v, ended.err)
			}
		}
	})
	return v
}

func (v *volume) mapped(h *host, readOnly bool) (device string) {
	v.s.Helper()
	var mapped escache.MapResponse
	decode(v.s, h.mapImage(v, readOnly), &mapped)
	return mapped.Device
}

func mapOnce(s *suite) {
	missing := s.nameVolume()
	missing.id = "1d1"
	refused(s, "map an image that is not there", s.first.mapImage(missing, false), escache.CodeImageNotFound)
	v := s.plain()
	done(s, "unmap what is not mapped", s.first.unmapImage(v))

	other := *v
	other.id = v.id + "0"
	refused(s, "map another image", s.first.mapImage(&other, false), escache.CodeIdentityMismatch)

	v.device = v.mapped(s.first, false)
	if again := v.mapped(s.first, false); again != v.device {
		s.Errorf("the image is mapped at %s, and at %s when the call is repeated", v.device, again)
	}
	if size, err := s.first.Devices.Size(s.Context(), v.device); err != nil || size != s.target.ImageBytes {
		s.Errorf("the device has %d bytes (%v), and the image %d", size, err, s.target.ImageBytes)
	}
	data := v.write(s.first, 0, mib)
	refused(s, "map on another host", s.second.mapImage(v, false), escache.CodeImageInUse)

	open, err := s.first.Devices.Open(s.Context(), v.device)
	if err != nil {
		s.Fatalf("open %s: %v", v.device, err)
	}
	refused(s, "unmap while open", s.first.unmapImage(v), escache.CodeDeviceOpen)
	if err := open.Close(); err != nil {
		s.Fatalf("close %s: %v", v.device, err)
	}
	v.holds(s.first, 0, data)
	for _, what := range []string{"unmap", "unmap again"} {
		v.unmapClosed(s.first, what)
	}
	if size, err := s.first.Devices.Size(s.Context(), v.device); err == nil {
		s.Errorf("the device %s still exists after unmap and has %d bytes", v.device, size)
	}
	v.device = v.mapped(s.second, false)
	v.holds(s.second, 0, data)
	v.unmapClosed(s.second, "unmap on the other host")
}

// unmapClosed unmaps an image that nobody uses: hosts look at a device whose user has closed it.
func (v *volume) unmapClosed(h *host, what string) {
	v.s.Helper()
	var last *answer
	v.s.eventually(what, func() (bool, any) {
		last = h.unmapImage(v)
		return last.code() != escache.CodeDeviceOpen, last
	})
	done(v.s, what, last)
}

func mapReadOnly(s *suite) {
	v := s.plain()
	v.device = v.mapped(s.first, false)
	data := v.write(s.first, mib, mib)
	v.unmapClosed(s.first, "unmap")
	for _, h := range []*host{s.first, s.second} {
		v.device = v.mapped(h, true)
		v.holds(h, mib, data)
		ctx, cancel := context.WithTimeout(s.Context(), s.target.CallTimeout)
		if err := h.Devices.Write(ctx, v.device, mib, pattern(0, mib)); err == nil {
			s.Errorf("%s: a read-only map takes a write", h.Name)
		}
		cancel()
	}
	for _, h := range []*host{s.first, s.second} {
		v.unmapClosed(h, "unmap")
	}
	v.device = v.mapped(s.first, false)
	v.holds(s.first, mib, data)
	v.unmapClosed(s.first, "unmap")
}

func mapBesideReplica(s *suite) {
	v := s.laid()
	refused(s, "map an image with a replica", s.first.mapImage(v, true), escache.CodeReplicaMismatch)
	refused(s, "unmap an image with a replica", s.first.unmapImage(v), escache.CodeReplicaMismatch)
}
