package conformance

import (
	"github.com/escache/escache-csi/api/escache"
)

func abandonChecks() []Check {
	return []Check{
		{"a device is not abandoned without proof", abandonNeedsProof, beside},
		{"a device whose peer has everything is abandoned when another host is given the volume", abandonWithTheLinkUp, beside},
		{"abandon of what is not connected changes nothing", abandonOfStandby, alone},
	}
}

func (h *host) abandon(v *volume, epoch int64) *answer {
	h.s.Helper()
	return h.post(escache.PathAbandon, escache.AbandonRequest{VolumeRef: v.VolumeRef, Epoch: epoch})
}

// abandonNeedsProof: whatever the caller says, what is dirty here may be all there is.
func abandonNeedsProof(s *suite) {
	v := s.connected()
	data := v.makeDirty(s.first)
	kept := func(what string, epoch int64) {
		s.Helper()
		refused(s, "abandon "+what, s.first.abandon(v, epoch), escache.CodeNotSuperseded)
		status := s.first.status(v.VolumeRef)
		if status.State != escache.StateConnected || status.Role != escache.RolePrimary || status.Device != v.device ||
			status.Epoch != v.epoch || status.IOSuspended || status.Error != nil {
			s.Errorf("a refused abandon %s left the status %+v", what, shown(status))
		}
		v.holds(s.first, 0, data)
	}
	kept("with the epoch of the device", v.epoch)
	kept("with a newer epoch that is on no record", v.epoch+1)
	v.holds(s.first, 8*mib, v.write(s.first, 8*mib, mib))
	v.detach(s.first)
}

// abandonWithTheLinkUp: the holder was fenced and lives. Whoever gets the volume next needs its
// device out of the way, and the peer has all that the holder has acknowledged.
func abandonWithTheLinkUp(s *suite) {
	if s.target.Record == nil {
		s.Skipf("no record can be made for the arbiter of this target")
	}
	v := s.connected()
	data := v.makeDirty(s.first)
	if err := s.target.Record(s.Context(), v.VolumeRef, v.id, s.second.Name, v.epoch+1); err != nil {
		s.Fatalf("record that %s has %s: %v", s.second.Name, v, err)
	}
	done(s, "abandon with the link up", s.first.abandon(v, v.epoch+1))
	status := s.first.status(v.VolumeRef)
	if status.State == escache.StateConnected || status.Role == escache.RolePrimary || status.Device != "" || status.ClientAddress != "" {
		s.Errorf("an abandoned device left the status %+v", shown(status))
	}
	s.eventually("the link is back and the copy that was given up is current", func() (bool, any) {
		status := s.second.status(v.VolumeRef)
		if status.DiskState != escache.DiskUpToDate {
			s.Fatalf("%s has everything, and must be ready to take the volume: %+v", s.second.Name, shown(status))
		}
		return len(status.Peers) == 1 && status.Peers[0].ConnectionState == escache.LinkConnected &&
			status.Peers[0].DiskState == escache.DiskUpToDate, shown(status)
	})
	v.attach(s.second)
	v.holds(s.second, 0, data)
	v.detach(s.second)
}

func abandonOfStandby(s *suite) {
	refused(s, "abandon an unknown volume", s.first.abandon(s.nameVolume(), 1), escache.CodeNotFound)
	v := s.connected()
	data := v.makeDirty(s.first)
	s.second.unchanged(func() {
		for _, what := range []string{"abandon a standby", "abandon it again"} {
			done(s, what, s.second.abandon(v, v.epoch+1))
		}
	})
	v.detach(s.first)
	v.attach(s.second) // its copy was not marked
	v.holds(s.second, 0, data)
	v.detach(s.second)
}
