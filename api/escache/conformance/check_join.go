package conformance

import (
	"github.com/escache/escache-csi/api/escache"
)

func joinChecks() []Check {
	return []Check{
		{"two copies that are both to be filled are never declared equal", bothJoin, beside},
		{"a copy that joins a running volume is filled from it", joinRunning, beside},
		{"a copy that must exist is not created", mustExist, beside},
	}
}

func (v *volume) joining() escache.ReplicaRequest {
	r := v.request()
	r.Join = true
	return r
}

// mustExist: the copy that holds the data is gone, perhaps with its disk. An empty one in its place
// would be filled from an outdated one.
func mustExist(s *suite) {
	v := s.newVolume()
	there := v.request()
	there.MustExist = true
	refused(s, "create what must exist", s.first.put(there), escache.CodeNotFound)
	if status := s.first.status(v.VolumeRef); status.State != escache.StateAbsent {
		s.Errorf("a refused request left the status %+v", shown(status))
	}
	done(s, "create it", s.first.put(v.request()))
	done(s, "create what exists", s.first.put(there))
}

// bothJoin: somebody laid the copies for a volume whose data is somewhere else. Used as they are,
// they would be an empty cache.
func bothJoin(s *suite) {
	v := s.newVolume()
	for _, h := range []*host{s.first, s.second} {
		done(s, "create a replica that joins on "+h.Name, h.put(v.joining()))
		done(s, "create it again", h.put(v.joining()))
		done(s, "create it again without join", h.put(v.request()))
	}
	for _, h := range []*host{s.first, s.second} {
		refused(s, "connect on "+h.Name+" where both copies wait to be filled", h.connect(v, 1, v.id), escache.CodeOutdated)
		status := h.status(v.VolumeRef)
		if status.State != escache.StateStandby || status.Role == escache.RolePrimary || status.Epoch != 0 {
			s.Errorf("a refused connect left the status %+v", shown(status))
		}
	}
}

func joinRunning(s *suite) {
	v := s.connected()
	data := v.makeDirty(s.first)
	done(s, "drop the second copy", s.second.discard(v))
	more := v.write(s.first, 8*mib, mib)
	done(s, "create it again, to be filled", s.second.put(v.joining()))
	late := v.write(s.first, 16*mib, mib)
	for _, h := range []*host{s.second, s.first} { // DRBD ends a resync at its target first
		s.eventually("the copy of "+v.String()+" on "+s.second.Name+" is filled, and "+h.Name+" says so", func() (bool, any) {
			status := h.status(v.VolumeRef)
			return status.DiskState == escache.DiskUpToDate && status.SyncedPercent == 100 && status.Resync == nil, shown(status)
		})
	}
	holdAll := func(h *host) {
		s.Helper()
		v.holds(h, 0, data)
		v.holds(h, 8*mib, more)
		v.holds(h, 16*mib, late)
	}
	holdAll(s.first)
	done(s, "create the filled copy once more", s.second.put(v.joining()))
	v.detach(s.first)
	v.attach(s.second)
	holdAll(s.second)
	v.detach(s.second)
}
