package conformance

import (
	"github.com/escache/escache-csi/api/escache"
)

func moveChecks() []Check {
	return []Check{
		{"a standby tells that its linked peer is Primary", standbyKnowsPrimary, beside},
		{"the second host is refused while the first has the device", secondHostRefused, beside},
		{"an orderly move takes the data along", orderlyMove, beside},
	}
}

func secondHostRefused(s *suite) {
	v := s.connected()
	data := v.makeDirty(s.first)
	refused(s, "connect on the second host", s.second.connect(v, v.epoch+1, v.id), escache.CodeConnected, escache.CodeImageInUse)
	status := s.second.status(v.VolumeRef)
	if status.State != escache.StateStandby || status.Role == escache.RolePrimary || status.Device != "" {
		s.Errorf("a refused connect left the second host's status %+v", shown(status))
	}
	status = s.first.status(v.VolumeRef)
	if status.State != escache.StateConnected || status.Role != escache.RolePrimary || status.IOSuspended || status.Error != nil {
		s.Errorf("a refused connect on the second host left the first with %+v", shown(status))
	}
	more := v.write(s.first, 8*mib, mib)
	v.holds(s.first, 0, data)
	v.holds(s.first, 8*mib, more)
	v.epoch++ // the refused call may have been recorded
}

func orderlyMove(s *suite) {
	v := s.connected()
	data := v.makeDirty(s.first)
	v.detach(s.first)
	before := v.epoch
	v.attach(s.second)
	v.holds(s.second, 0, data)
	refused(s, "connect on the first host after the move", s.first.connect(v, v.epoch, v.id), escache.CodeConnected, escache.CodeImageInUse)
	more := v.write(s.second, 16*mib, mib)
	v.detach(s.second)

	v.attach(s.first)
	v.holds(s.first, 0, data)
	v.holds(s.first, 16*mib, more)
	refused(s, "the epoch from before the move", s.first.connect(v, before, v.id), escache.CodeStaleEpoch)
	v.detach(s.first)
}

// standbyKnowsPrimary: the host that writes may be cut off from its callers and not from its peer.
// Then the standby's word is all that they have.
func standbyKnowsPrimary(s *suite) {
	v := s.connected()
	s.eventually("the standby on "+s.second.Name+" sees a Primary", func() (bool, any) {
		status := s.second.status(v.VolumeRef)
		return len(status.Peers) == 1 && status.Peers[0].Role == escache.RolePrimary && status.Peers[0].Linked(), shown(status)
	})
	v.detach(s.first)
	s.eventually("the standby on "+s.second.Name+" sees no Primary any more", func() (bool, any) {
		status := s.second.status(v.VolumeRef)
		return len(status.Peers) == 1 && status.Peers[0].Role == escache.RoleSecondary, shown(status)
	})
}
