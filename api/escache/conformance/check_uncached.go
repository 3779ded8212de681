package conformance

import (
	"github.com/escache/escache-csi/api/escache"
)

func uncachedChecks() []Check {
	return []Check{
		{"an image is mapped without a cache, by one host", uncachedMaps, beside},
		{"a replica and a map without a cache keep each other out", uncachedBesideReplica, beside},
		{"a request to map without a cache names the image and no cache", uncachedRequests, beside},
	}
}

func (h *host) connectUncached(v *volume, epoch int64, imageID string) *answer {
	h.s.Helper()
	return h.post(escache.PathDevConnect, escache.ConnectRequest{VolumeRef: v.VolumeRef, ImageID: imageID, Epoch: epoch, Uncached: true})
}

// attachUncached maps the image on a host with a new epoch, on record.
func (v *volume) attachUncached(h *host) escache.ConnectResponse {
	v.s.Helper()
	v.record(h, v.epoch+1)
	var connected escache.ConnectResponse
	decode(v.s, h.connectUncached(v, v.epoch, v.id), &connected)
	v.device = connected.Device
	return connected
}

func uncachedMaps(s *suite) {
	v := s.newVolume()
	v.epoch = 4
	first := v.attachUncached(s.first)
	size, err := s.first.Devices.Size(s.Context(), first.Device)
	if err != nil || size != s.target.ImageBytes {
		s.Errorf("the device %s has %d bytes (%v), the image %d", first.Device, size, err, s.target.ImageBytes)
	}
	status := s.first.status(v.VolumeRef)
	if status.State != escache.StateConnected || !status.Uncached || status.Epoch != v.epoch || status.Device != first.Device ||
		status.ClientAddress != first.ClientAddress || status.ImageID != v.id || status.SizeBytes != s.target.ImageBytes ||
		status.DirtyBytes == nil || *status.DirtyBytes != 0 || status.Mode != escache.ModeWritethrough || len(status.Peers) > 0 {
		s.Errorf("dev_connect without a cache answered %+v and left the status %+v", first, shown(status))
	}
	data := v.write(s.first, mib, mib)
	if dirty := v.dirty(s.first); dirty != 0 {
		s.Errorf("%d bytes are dirty, and there is no cache", dirty)
	}
	refused(s, "an older epoch", s.first.connectUncached(v, v.epoch-1, v.id), escache.CodeStaleEpoch)
	late := escache.StopRequest{VolumeRef: v.VolumeRef, Epoch: v.epoch - 1}
	refused(s, "stop of an earlier attachment", s.first.post(escache.PathStop, late), escache.CodeStaleEpoch)
	refused(s, "another image", s.first.connectUncached(v, v.epoch, "0"+v.id), escache.CodeIdentityMismatch)
	refused(s, "the same image on another host", s.second.connectUncached(v, v.epoch+1, v.id), escache.CodeImageInUse)
	var repeated escache.ConnectResponse
	decode(s, s.first.connectUncached(v, v.epoch, v.id), &repeated)
	if repeated != first {
		s.Errorf("connected again: %+v, at first it was %+v", repeated, first)
	}
	v.clean(s.first)
	v.stopUncached(s.first)
	v.attachUncached(s.second)
	v.holds(s.second, mib, data)
	v.stopUncached(s.second)
}

// stopUncached stops a device without a cache, of which nothing is left then.
func (v *volume) stopUncached(h *host) {
	v.s.Helper()
	open, err := h.Devices.Open(v.s.Context(), v.device)
	if err != nil {
		v.s.Fatalf("open %s: %v", v.device, err)
	}
	refused(v.s, "stop while the device is open", h.stop(v), escache.CodeDeviceOpen)
	if err := open.Close(); err != nil {
		v.s.Fatalf("close %s: %v", v.device, err)
	}
	done(v.s, "stop a device without a cache", h.stopClosed(v))
	if status := h.status(v.VolumeRef); status.State != escache.StateAbsent || status.ClientAddress != "" || status.Device != "" {
		v.s.Errorf("stop left the status %+v", shown(status))
	}
	refused(v.s, "stop again", h.stop(v), escache.CodeNotFound)
}

func uncachedBesideReplica(s *suite) {
	v := s.laid()
	refused(s, "map an image beside its replica", s.first.connectUncached(v, 1, v.id), escache.CodeReplicaMismatch)
	if status := s.first.status(v.VolumeRef); status.State != escache.StateStandby || status.ClientAddress != "" || status.Epoch != 0 {
		s.Errorf("a refused connect left the status %+v", shown(status))
	}
	w := s.newVolume()
	w.attachUncached(s.first)
	refused(s, "create a replica beside a map without a cache", s.first.put(w.request()), escache.CodeConnected)
	if status := s.first.status(w.VolumeRef); !status.Uncached || status.State != escache.StateConnected {
		s.Errorf("a refused replica left the status %+v", shown(status))
	}
	w.stopUncached(s.first)
}

func uncachedRequests(s *suite) {
	v := s.newVolume()
	refused(s, "no image id", s.first.connectUncached(v, 1, ""), escache.CodeInvalidRequest)
	for what, request := range map[string]escache.ConnectRequest{
		"an engine": {VolumeRef: v.VolumeRef, ImageID: v.id, Epoch: 1, Uncached: true, Engine: escache.EngineWritecache},
		"an option": {
			VolumeRef: v.VolumeRef, ImageID: v.id, Epoch: 1, Uncached: true, Options: escache.ConnectOptions{Mode: escache.ModeWriteback},
		},
	} {
		refused(s, what, s.first.post(escache.PathDevConnect, request), escache.CodeInvalidRequest)
	}
	if state := s.first.status(v.VolumeRef).State; state != escache.StateAbsent {
		s.Errorf("a refused request left the state %q", state)
	}
}
