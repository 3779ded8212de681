package model

import (
	"errors"
	"fmt"

	"github.com/escache/escache-csi/api/escache"
	"github.com/escache/escache-csi/api/v1alpha1"
	"github.com/escache/escache-csi/internal/authority"
)

// report is what a host's escached would answer.
type report struct {
	silent, absent, device, primary, current, dirty bool
	// diskless: its disk has failed. written: its peer is linked and Primary.
	diskless, written bool
	// onPeer: its own disk has failed, and its device works with the peer's.
	onPeer bool
	// through: its device writes through. twin: it is another machine with that name.
	through, twin bool
	// plain: its device is the image without a cache.
	plain         bool
	client, epoch uint8
	// other: it is the peer that answers, and says so.
	other bool
}

// report is what the controller gets when it asks for a host.
func (m *Model) report(s *state, h uint8) report {
	n := &s.host[h]
	switch {
	case n.double:
		return report{absent: true, twin: true}
	case n.elsewhere:
		of := report{silent: true}
		if n.peer != nobody && !s.host[n.peer].elsewhere {
			of = m.report(s, n.peer)
		}
		of.other = m.on(OnlyTheHostItself)
		return of
	case n.early && n.up && n.control && !m.on(SilentBeforeRecovery):
		return report{} // taken for a standby
	case !s.reaches(h):
		return report{silent: true}
	}
	return m.answer(s, h)
}

// answer is what the host says if it is asked, and answers.
func (m *Model) answer(s *state, h uint8) report {
	n := &s.host[h]
	onPeer, dirty := n.diskless && n.device && n.primary && !n.frozen && s.cacheOf(h) != nil, n.dirty != 0
	if onPeer {
		dirty = s.cacheOf(h).dirty != 0
	}
	return report{
		onPeer: onPeer, absent: !n.laid && !n.plain, through: n.through || !m.on(DrainedInOneAnswer), device: n.device || n.plain,
		primary: n.primary && !n.plain, plain: n.plain,
		client: n.client, epoch: n.tag,
		current: n.upToDate && !n.inconsistent && !n.diskless, dirty: dirty,
		diskless: n.diskless, written: m.on(PrimaryPeerSeen) && s.connected(h) && s.host[n.peer].primary,
	}
}

var errSilent = errors.New("no answer")

// real is what the host answers.
func (r report) real() (escache.VolumeStatus, error) {
	if r.silent {
		return escache.VolumeStatus{}, errSilent
	}
	s := escache.VolumeStatus{State: escache.StateStandby, Role: escache.RoleSecondary, DiskState: escache.DiskConsistent}
	switch {
	case r.device:
		s.State, s.Device = escache.StateConnected, "/dev/escache/p/i"
	case r.absent:
		s.State = escache.StateAbsent
	}
	if r.other {
		s.Node = "the peer"
	}
	s.HostID, s.Mode = machine, escache.ModeWriteback
	if r.twin {
		s.HostID = "another"
	}
	if r.through {
		s.Mode = escache.ModeWritethrough
	}
	s.Uncached = r.plain
	if r.primary {
		s.Role = escache.RolePrimary
	}
	if r.diskless {
		s.DiskState = escache.DiskDiskless
	}
	if r.written {
		s.Peers = []escache.Peer{{Role: escache.RolePrimary, ConnectionState: escache.LinkConnected}}
	}
	s.Epoch = int64(r.epoch)
	if r.device {
		s.ClientAddress = address(r.client)
	}
	bytes := int64(0)
	if r.dirty {
		bytes = 4096
	}
	switch {
	case r.current:
		s.DiskState, s.DirtyBytes = escache.DiskUpToDate, &bytes
	case r.onPeer:
		s.DirtyBytes, s.Error = &bytes, &escache.Fault{Code: escache.CodeCacheError}
	}
	return s, nil
}

// heard is what is known of the host with this name from its answer.
func (r report) heard(v *v1alpha1.CacheVolume, node string) authority.Report {
	status, err := r.real()
	return authority.Heard(v, node, status, err)
}

// machine is the identity of each host's own machine. A host is only ever compared with itself.
const machine = "its own"

func address(client uint8) string { return fmt.Sprintf("10.0.0.1:0/%d", client) }
