package conformance

import (
	"cmp"
	"errors"

	"github.com/escache/escache-csi/api/escache"
)

func connectChecks() []Check {
	return []Check{
		{"connect makes the device once", connectMakesDevice, beside},
		{"an older epoch is refused", olderEpoch, beside},
		{"another image is refused", otherImage, beside},
		{"another cache engine is refused", otherEngine, beside},
		{"connect without a replica or an image is refused", nothingToConnect, beside},
		{"an image that another client holds is refused", imageInUse, beside},
		{"a cache is connected only if there is memory for it", noMemory, alone},
		{"a device on a fenced client's map is built again", fencedMap, beside},
	}
}

// noMemory lays a cache that is larger than what the host says is connectable. A host with less space
// on its disks than that, or that sets no limit, is not tested.
func noMemory(s *suite) {
	n := s.first.node()
	if n.ConnectableBytes == nil {
		s.Skipf("the host says of no size that its memory is too small for it")
	}
	v := s.newVolume()
	r := v.request()
	more := *n.ConnectableBytes - n.ConnectedBytes
	r.CacheBytes = (more+more/8)/mib*mib + 64*mib // what is available goes up and down
	if r.CacheBytes > n.CacheFreeBytes {
		s.Skipf("%d bytes are connectable, and there is space for %d", more, n.CacheFreeBytes)
	}
	done(s, "create a cache that is too large", s.first.put(r))
	v.record(s.first, 1)
	refused(s, "a cache for which there is no memory", s.first.connect(v, 1, v.id), escache.CodeNoRoom)
	status := s.first.status(v.VolumeRef)
	if status.State != escache.StateStandby || status.Epoch != 0 || status.Role == escache.RolePrimary {
		s.Errorf("a refused connect left the status %+v", shown(status))
	}
}

// fencedMap: the host lost the volume by force, kept the device, and has the volume again.
func fencedMap(s *suite) {
	v := s.connected()
	data := v.makeDirty(s.first)
	fenced := s.first.status(v.VolumeRef).ClientAddress
	request := escache.ConnectRequest{VolumeRef: v.VolumeRef, ImageID: v.id, Epoch: v.epoch, Engine: s.target.Engine,
		Fenced: []string{"10.99.0.1:0/1"}}
	connect := func() string {
		var connected escache.ConnectResponse
		decode(s, s.first.post(escache.PathDevConnect, request), &connected)
		return connected.ClientAddress
	}
	if client := connect(); client != fenced {
		s.Errorf("the client became %s, it was %s, which is not fenced", client, fenced)
	}
	request.Fenced = append(request.Fenced, fenced)
	made := connect()
	status := s.first.status(v.VolumeRef)
	if made == fenced || status.ClientAddress != made || status.State != escache.StateConnected {
		s.Errorf("the client is %s, %s is fenced, and the status %+v", made, fenced, shown(status))
	}
	if dirty := v.dirty(s.first); dirty == 0 {
		s.Errorf("nothing is dirty any more")
	}
	v.holds(s.first, 0, data)
	if again := connect(); again != made {
		s.Errorf("a repeat made the client %s of %s", again, made)
	}
}

func connectMakesDevice(s *suite) {
	v := s.laid()
	first := v.attach(s.first)
	size, err := s.first.Devices.Size(s.Context(), first.Device)
	if err != nil || size != s.target.ImageBytes {
		s.Errorf("the device %s has %d bytes (%v), the image %d", first.Device, size, err, s.target.ImageBytes)
	}
	status := s.first.status(v.VolumeRef)
	if status.State != escache.StateConnected || status.Role != escache.RolePrimary || status.Epoch != v.epoch ||
		status.Device != first.Device || status.ClientAddress != first.ClientAddress || status.ImageID != v.id || first.ImageID != v.id ||
		status.SizeBytes != s.target.ImageBytes || status.Mode != escache.ModeWriteback || status.MayGoOnAlone ||
		status.Connecting {
		s.Errorf("dev_connect with epoch %d of image id %s answered %+v and left the status %+v", v.epoch, v.id, first, shown(status))
	}
	if dirty := v.dirty(s.first); dirty != 0 {
		s.Errorf("%d bytes are dirty before anything was written", dirty)
	}
	data := v.write(s.first, mib, mib)
	for _, step := range []struct {
		what  string
		epoch int64
		id    string
	}{{"again", v.epoch, v.id}, {"without the image id", v.epoch, ""}, {"with a newer epoch", v.epoch + 1, v.id}} {
		v.record(s.first, step.epoch)
		var repeated escache.ConnectResponse
		decode(s, s.first.connect(v, step.epoch, step.id), &repeated)
		if repeated != first {
			s.Errorf("connected %s: %+v, at first it was %+v", step.what, repeated, first)
		}
		if status := s.first.status(v.VolumeRef); status.Epoch != step.epoch || status.State != escache.StateConnected {
			s.Errorf("connected %s: the status is %+v, want epoch %d", step.what, status, step.epoch)
		}
	}
	v.holds(s.first, mib, data)
}

func olderEpoch(s *suite) {
	v := s.laid()
	v.epoch = 4
	v.attach(s.first)
	older := func(when string) {
		s.Helper()
		refused(s, "an older epoch "+when, s.first.connect(v, v.epoch-1, v.id), escache.CodeStaleEpoch)
		if status := s.first.status(v.VolumeRef); status.Epoch != v.epoch {
			s.Errorf("%s: a refused epoch changed the epoch from %d to %d", when, v.epoch, status.Epoch)
		}
	}
	older("while connected")
	if state := s.first.status(v.VolumeRef).State; state != escache.StateConnected {
		s.Errorf("a refused epoch left the state %q", state)
	}
	v.detach(s.first)
	older("after stop")
	if state := s.first.status(v.VolumeRef).State; state != escache.StateStandby {
		s.Errorf("a refused epoch left the state %q", state)
	}
}

func otherImage(s *suite) {
	v := s.laid()
	refused(s, "another image id than the replica's", s.first.connect(v, 1, "0"+v.id), escache.CodeIdentityMismatch)

	// An image of the same name, re-created: the replica learned no id, so only the request knows
	// better.
	w := s.newVolume()
	r := w.request()
	r.ImageID = ""
	for _, h := range []*host{s.first, s.second} {
		done(s, "create a replica without an image id", h.put(r))
	}
	refused(s, "another image id than Ceph's", s.first.connect(w, 1, "0"+w.id), escache.CodeIdentityMismatch)

	for _, volume := range []*volume{v, w} {
		if status := s.first.status(volume.VolumeRef); status.State != escache.StateStandby || status.Role == escache.RolePrimary {
			s.Errorf("a refused connect left the status %+v", shown(status))
		}
	}
	v.epoch = 1
	v.attach(s.first) // and nothing stands in the way of the right one
}

// otherEngine: the replica's disks have the format of the engine for which they were laid.
func otherEngine(s *suite) {
	v := s.laid()
	own := cmp.Or(s.target.Engine, escache.EngineWritecache)
	if status := s.first.status(v.VolumeRef); cmp.Or(status.Engine, escache.EngineWritecache) != own {
		s.Errorf("a replica of engine %s has the status %+v", own, shown(status))
	}
	other := escache.EngineLog
	if own == other {
		other = escache.EngineWritecache
	}
	request := escache.ConnectRequest{VolumeRef: v.VolumeRef, ImageID: v.id, Epoch: 1, Engine: other}
	refused(s, "a connect with engine "+string(other), s.first.post(escache.PathDevConnect, request), escache.CodeReplicaMismatch)
	status := s.first.status(v.VolumeRef)
	if status.State != escache.StateStandby || status.Epoch != 0 || status.Role == escache.RolePrimary {
		s.Errorf("a refused connect left the status %+v", shown(status))
	}
	v.attach(s.first)
	request = escache.ConnectRequest{VolumeRef: v.VolumeRef, ImageID: v.id, Epoch: v.epoch + 1, Engine: other}
	refused(s, "a repeated connect with engine "+string(other), s.first.post(escache.PathDevConnect, request), escache.CodeReplicaMismatch)
	if status := s.first.status(v.VolumeRef); status.State != escache.StateConnected || status.Epoch != v.epoch {
		s.Errorf("a refused connect left the status %+v", shown(status))
	}
}

func nothingToConnect(s *suite) {
	v := s.nameVolume()
	refused(s, "connect without a replica", s.first.connect(v, 1, ""), escache.CodeNotFound)
	r := v.request()
	r.ImageID = ""
	s.Cleanup(v.remove)
	for _, h := range []*host{s.first, s.second} {
		done(s, "create a replica before its image", h.put(r))
	}
	refused(s, "connect without an image", s.first.connect(v, 1, ""), escache.CodeImageNotFound)
	status := s.first.status(v.VolumeRef)
	if status.State != escache.StateStandby || status.Role == escache.RolePrimary || status.Device != "" {
		s.Errorf("a refused connect left the status %+v", shown(status))
	}
}

func imageInUse(s *suite) {
	v := s.laid()
	other, err := s.target.Storage.Occupy(s.Context(), v.VolumeRef)
	if errors.Is(err, ErrUnsupported) {
		s.Skipf("the target cannot take an image's lock as another client")
	}
	if err != nil {
		s.Fatalf("take the lock of %s: %v", v, err)
	}
	refused(s, "connect an image that another client holds", s.first.connect(v, 1, v.id), escache.CodeImageInUse)
	if status := s.first.status(v.VolumeRef); status.State != escache.StateStandby || status.Role == escache.RolePrimary {
		s.Errorf("a refused connect left the status %+v", shown(status))
	}
	if err := other.Close(); err != nil {
		s.Fatalf("give the lock of %s back: %v", v, err)
	}
	v.epoch = 1
	v.attach(s.first)
}
