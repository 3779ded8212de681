package conformance

import (
	"github.com/escache/escache-csi/api/escache"
)

func modeChecks() []Check {
	return []Check{
		{"writethrough drains and keeps the cache clean under writes", writethroughStaysClean, beside},
		{"connect may begin in writethrough", connectInWritethrough, beside},
	}
}

func writethroughStaysClean(s *suite) {
	refused(s, "mode of an unknown volume", s.first.mode(s.nameVolume(), escache.ModeWritethrough), escache.CodeNotFound)
	v := s.laid()
	refused(s, "mode of a standby", s.first.mode(v, escache.ModeWritethrough), escache.CodeNotConnected)
	v.attach(s.first)
	data := v.makeDirty(s.first)
	for range 2 {
		done(s, "mode writethrough", s.first.mode(v, escache.ModeWritethrough))
		if status := s.first.status(v.VolumeRef); status.Mode != escache.ModeWritethrough || status.State != escache.StateDraining {
			s.Errorf("the status in writethrough is %+v", shown(status))
		}
	}
	drains := func(when string) {
		s.eventually("the cache drains "+when, func() (bool, any) {
			dirty := v.dirty(s.first)
			return dirty == 0, dirty
		})
	}
	drains("although nobody writes or flushes")
	load := v.startLoad(s.first)
	for range 10 {
		load.proceeds(1)
		if dirty := v.dirty(s.first); dirty != 0 {
			s.Errorf("%d bytes became dirty in writethrough after the cache was clean", dirty)
			break
		}
	}
	load.stop()
	v.holds(s.first, 0, data)
	for range 2 {
		done(s, "mode writeback", s.first.mode(v, escache.ModeWriteback))
		if status := s.first.status(v.VolumeRef); status.Mode != escache.ModeWriteback || status.State != escache.StateConnected {
			s.Errorf("the status in writeback is %+v", shown(status))
		}
	}
	v.makeDirty(s.first)
	load = v.startLoad(s.first)
	done(s, "mode writethrough", s.first.mode(v, escache.ModeWritethrough))
	drains("under writes")
	load.stop()
}

func connectInWritethrough(s *suite) {
	v := s.laid()
	v.record(s.first, 1)
	var connected escache.ConnectResponse
	decode(s, s.first.post(escache.PathDevConnect, escache.ConnectRequest{
		VolumeRef: v.VolumeRef, ImageID: v.id, Epoch: 1, Engine: s.target.Engine,
		Options: escache.ConnectOptions{Mode: escache.ModeWritethrough},
	}), &connected)
	v.device = connected.Device
	data := v.write(s.first, 0, 4*mib)
	status := s.first.status(v.VolumeRef)
	if status.Mode != escache.ModeWritethrough || status.State != escache.StateDraining ||
		status.DirtyBytes == nil || *status.DirtyBytes != 0 {
		s.Errorf("the status after writing in writethrough is %+v", shown(status))
	}
	v.holds(s.first, 0, data)
	done(s, "stop without a flush", s.first.stopClosed(v))
}
