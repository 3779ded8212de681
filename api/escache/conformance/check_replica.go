package conformance

import (
	"errors"
	"net/http"
	"sync"

	"github.com/escache/escache-csi/api/escache"
)

func replicaChecks() []Check {
	return []Check{
		{"a replica is created once", replicaLaid, alone},
		{"a replica with other parameters is refused", replicaMismatch, alone},
		{"ports and minors belong to one volume", portsInUse, alone},
		{"a cache larger than the free space is refused", noRoom, alone},
		{"a replica is deleted once", replicaDeleted, beside},
		{"a connected replica is not deleted", connectedNotDeleted, beside},
		{"a standby is not deleted while the cache is dirty", dirtyStandbyNotDeleted, beside},
		{"a standby is not deleted while it is the only copy of a running volume", onlyCopyNotDeleted, alone},
		{"a request of an earlier attachment changes nothing", earlierAttachment, alone},
	}
}

func replicaLaid(s *suite) {
	v := s.newVolume()
	want := v.request()
	early := want
	early.ImageID = "" // as long as nobody has opened the image
	done(s, "create the replica without an image id", s.first.put(early))
	done(s, "create it again with one", s.first.put(want))
	status := s.first.status(v.VolumeRef)
	if status.State != escache.StateStandby || status.ImageID != want.ImageID || status.CacheBytes < want.CacheBytes ||
		status.SizeBytes != want.SizeBytes || status.Port != want.Port || status.Minor != want.Minor || status.Epoch != 0 ||
		status.Role == escache.RolePrimary {
		s.Errorf("the status after creating %+v is %+v", want, shown(status))
	}
	s.first.unchanged(func() {
		done(s, "create it a third time", s.first.put(want))
		done(s, "create it without the image id once more", s.first.put(early))
	})
	grown := want
	grown.SizeBytes += 4 * mib
	done(s, "create it after the image grew", s.first.put(grown))
	done(s, "create it by a record that does not know of that", s.first.put(want))
	if status := s.first.status(v.VolumeRef); status.SizeBytes != grown.SizeBytes {
		s.Errorf("by an older record the size became %d, it was %d", status.SizeBytes, grown.SizeBytes)
	}
	found := false
	for _, listed := range s.first.statuses() {
		found = found || listed.VolumeRef == v.VolumeRef
	}
	if !found {
		s.Errorf("the list of all volumes does not have %s", v)
	}
}

func replicaMismatch(s *suite) {
	v := s.laid()
	s.first.unchanged(func() {
		for what, tc := range map[string]struct {
			change func(*escache.ReplicaRequest)
			code   escache.Code
		}{
			"another cache size": {func(r *escache.ReplicaRequest) { r.CacheBytes += 4 * mib }, escache.CodeReplicaMismatch},
			"another port":       {func(r *escache.ReplicaRequest) { r.Port += portsAndMinors / 2 }, escache.CodeReplicaMismatch},
			"another minor":      {func(r *escache.ReplicaRequest) { r.Minor += portsAndMinors / 2 }, escache.CodeReplicaMismatch},
			"another engine": {func(r *escache.ReplicaRequest) {
				if r.Engine == escache.EngineLog {
					r.Engine = escache.EngineWritecache
				} else {
					r.Engine = escache.EngineLog
				}
			}, escache.CodeReplicaMismatch},
			"another image id": {func(r *escache.ReplicaRequest) { r.ImageID = "0" + r.ImageID }, escache.CodeIdentityMismatch},
		} {
			r := v.request()
			tc.change(&r)
			refused(s, "a replica with "+what, s.first.put(r), tc.code)
		}
	})
}

func portsInUse(s *suite) {
	v, other := s.laid(), s.nameVolume()
	s.first.unchanged(func() {
		r := other.request()
		r.Port = v.port
		refused(s, "a replica with another volume's port", s.first.put(r), escache.CodePortInUse)
		r = other.request()
		r.Minor = v.minor
		refused(s, "a replica with another volume's minor", s.first.put(r), escache.CodePortInUse)
	})
}

func noRoom(s *suite) {
	r := s.nameVolume().request()
	r.CacheBytes = s.first.node().CacheFreeBytes/4096*4096 + 64*mib
	s.first.unchanged(func() {
		refused(s, "a replica larger than the free space", s.first.put(r), escache.CodeNoRoom)
	})
}

func replicaDeleted(s *suite) {
	v := s.laid()
	for _, what := range []string{"delete the replica", "delete it again"} {
		done(s, what, s.first.delete(v))
		if status := s.first.status(v.VolumeRef); status.State != escache.StateAbsent {
			s.Errorf("%s: the state is %q, want %q", what, status.State, escache.StateAbsent)
		}
	}
	done(s, "delete with discard what is gone", s.first.discard(v))
	done(s, "create it again", s.first.put(v.request()))
	done(s, "delete a clean replica with discard", s.first.discard(v))
	done(s, "delete what was never there", s.first.delete(s.nameVolume()))
}

func connectedNotDeleted(s *suite) {
	v := s.connected()
	data := v.write(s.first, 0, mib)
	refused(s, "delete the connected replica", s.first.delete(v), escache.CodeConnected)
	refused(s, "discard the connected replica", s.first.discard(v), escache.CodeConnected)
	query := v.query()
	query.Set("discard", "false")
	kept := s.first.send(request{method: http.MethodDelete, path: escache.PathReplica, query: query})
	refused(s, "delete the connected replica, discard=false", kept, escache.CodeConnected)
	if status := s.first.status(v.VolumeRef); status.State != escache.StateConnected || status.Device != v.device {
		s.Errorf("refused deletes changed the status to %+v", shown(status))
	}
	v.holds(s.first, 0, data)
}

// dirtyStandbyNotDeleted: the standby's copy is the only one that survives the first host.
func dirtyStandbyNotDeleted(s *suite) {
	v := s.connected()
	v.makeDirty(s.first)
	before := s.second.status(v.VolumeRef)
	a := s.second.delete(v)
	refused(s, "delete the standby while the cache is dirty", a, escache.CodeDirty, escache.CodeDirtyUnknown, escache.CodeConnected)
	after := s.second.status(v.VolumeRef)
	if after.State != before.State || after.DiskState != before.DiskState || after.Minor != before.Minor {
		s.Errorf("the refused delete changed the standby from %+v to %+v", shown(before), shown(after))
	}
	v.detach(s.first)
	done(s, "delete the standby of a clean cache", s.second.delete(v))
}

// onlyCopyNotDeleted: the disk of the host that has the device has failed, so what it acknowledges is on the
// standby alone. A caller whose record was set back within the attachment knows its epoch.
func onlyCopyNotDeleted(s *suite) {
	v := s.connected()
	data := v.makeDirty(s.first)
	mend := s.failDisk(v, s.first)
	more := v.write(s.first, 8*mib, mib) // a host may notice the failure only now
	var before escache.VolumeStatus
	s.eventually(s.second.Name+" says that the disk of its peer has failed", func() (bool, any) {
		before = s.second.status(v.VolumeRef)
		return len(before.Peers) == 1 && before.Peers[0].DiskState.Lost(), shown(before)
	})
	refused(s, "delete the only copy", s.second.delete(v), escache.CodeConnected, escache.CodeDirty, escache.CodeDirtyUnknown)
	refused(s, "discard the only copy", s.second.discard(v), escache.CodeConnected)
	after := s.second.status(v.VolumeRef)
	if after.State != before.State || after.DiskState != before.DiskState || after.Minor != before.Minor {
		s.Errorf("the refused deletes changed the standby from %+v to %+v", shown(before), shown(after))
	}
	v.holds(s.first, 0, data)
	v.holds(s.first, 8*mib, more)
	v.detach(s.first)
	mend()
	done(s, "discard the copy on the disk that had failed", s.first.discard(v))
}

// failDisk makes the disk of a host's replica fail, or skips the check. It is undone at the latest when the
// check ends.
func (s *suite) failDisk(v *volume, h *host) (mend func()) {
	s.Helper()
	if s.target.FailDisk == nil {
		s.Skipf("the target cannot make a disk fail")
	}
	failing, err := s.target.FailDisk(s.Context(), v.VolumeRef, h.Name)
	if errors.Is(err, ErrUnsupported) {
		s.Skipf("the target cannot make a disk fail")
	}
	if err != nil {
		s.Fatalf("make the disk of %s fail: %v", h.Name, err)
	}
	mend = sync.OnceFunc(func() {
		if err := failing.Close(); err != nil {
			s.Errorf("mend the disk of %s: %v", h.Name, err)
		}
	})
	s.Cleanup(mend)
	return mend
}

// earlierAttachment: a caller that was paused, or whose record was set back, acts on what it knew
// then.
func earlierAttachment(s *suite) {
	v := s.newVolume()
	want := v.request()
	want.Epoch = 3
	done(s, "create for attachment 3", s.first.put(want))
	want.Epoch = 5
	done(s, "confirm for attachment 5", s.first.put(want))
	want.Epoch = 4
	refused(s, "confirm for attachment 4", s.first.put(want), escache.CodeStaleEpoch)
	want.Epoch = 0
	done(s, "confirm for no attachment", s.first.put(want))
	refused(s, "discard what was written up to attachment 4", s.first.discardUpTo(v, "4"), escache.CodeStaleEpoch)
	if status := s.first.status(v.VolumeRef); status.State != escache.StateStandby || status.Epoch != 5 {
		s.Errorf("the status is %+v, want a standby of epoch 5", shown(status))
	}
	refused(s, "discard what was written up to any attachment", s.first.discardUpTo(v, ""), escache.CodeInvalidRequest)
	for _, epoch := range []string{"-1", "x"} {
		query := v.query()
		query.Set("discard", "true")
		query.Set("epoch", epoch)
		a := s.first.send(request{method: http.MethodDelete, path: escache.PathReplica, query: query, broken: true})
		refused(s, "discard up to attachment "+epoch, a, escache.CodeInvalidRequest)
	}
	done(s, "discard what was written up to attachment 5", s.first.discardUpTo(v, "5"))
}
