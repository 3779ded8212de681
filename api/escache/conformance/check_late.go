package conformance

import (
	"net/http"
	"reflect"

	"github.com/escache/escache-csi/api/escache"
)

func lateChecks() []Check {
	return []Check{
		{"a call of an earlier attachment changes nothing", lateCalls, beside},
		{"a call for another host changes nothing", callsForAnotherHost, beside},
	}
}

// steady is what of a volume changes only by calls.
func (h *host) steady(v *volume) escache.VolumeStatus {
	h.s.Helper()
	status := h.status(v.VolumeRef)
	status.Role, status.DiskState, status.Peers, status.SyncedPercent, status.Resync = "", "", nil, 0, nil
	status.DirtyBytes = nil
	return status
}

// lateCalls: the host has been given the volume again since the call was made. A late writeback would make data
// dirty that the record takes to be in Ceph.
func lateCalls(s *suite) {
	v := s.laid()
	v.epoch = 4
	v.attach(s.first)
	data := v.makeDirty(s.first)
	ref, late := v.VolumeRef, v.epoch-1
	refuses := func(what, path string, body any) {
		s.Helper()
		before := s.first.steady(v)
		refused(s, what+" of an earlier attachment", s.first.post(path, body), escache.CodeStaleEpoch)
		if now := s.first.steady(v); !reflect.DeepEqual(now, before) {
			s.Errorf("a late %s changed the status from %s to %s", what, shown(before), shown(now))
		}
	}
	stop := escache.StopRequest{VolumeRef: ref, Epoch: late}
	refuses("stop", escache.PathStop, stop)
	refuses("flush", escache.PathFlush, escache.FlushRequest{VolumeRef: ref, Epoch: late, TimeoutSeconds: s.seconds()})
	refuses("mode", escache.PathMode, escache.ModeRequest{VolumeRef: ref, Epoch: late, Mode: escache.ModeWritethrough})
	refuses("resize", escache.PathResize, escache.ResizeRequest{VolumeRef: ref, Epoch: late, SizeBytes: s.target.ImageBytes})
	if v.dirty(s.first) == 0 {
		s.Errorf("a late call has written the volume back")
	}
	refuses("hold", escache.PathHold, escache.HoldRequest{VolumeRef: ref, Epoch: late, MaxSeconds: 60})
	var held escache.HoldResponse
	decode(s, s.first.post(escache.PathHold, escache.HoldRequest{VolumeRef: ref, Epoch: v.epoch, MaxSeconds: 60}), &held)
	refuses("release", escache.PathRelease, escache.ReleaseRequest{VolumeRef: ref, Epoch: late})
	done(s, "release", s.first.post(escache.PathRelease, escache.ReleaseRequest{VolumeRef: ref, Epoch: v.epoch}))
	v.holds(s.first, 0, data)

	v.clean(s.first)
	refuses("stop of a clean device", escache.PathStop, stop)
	done(s, "mode", s.first.post(escache.PathMode, escache.ModeRequest{VolumeRef: ref, Epoch: v.epoch, Mode: escache.ModeWritethrough}))
	refuses("mode", escache.PathMode, escache.ModeRequest{VolumeRef: ref, Epoch: late, Mode: escache.ModeWriteback})
	v.detach(s.first)
	refuses("stop of a standby", escache.PathStop, stop)
}

// callsForAnotherHost come to a machine that has the name or the address of the one that is meant.
func callsForAnotherHost(s *suite) {
	own, other := s.first.node().HostID, s.second.node().HostID
	if own == "" || other == "" {
		s.Fatalf("the host ids are %q and %q; each host needs one", own, other)
	}
	v := s.connected()
	before := s.first.steady(v)
	remove := request{method: http.MethodDelete, path: escache.PathReplica, query: v.query()}
	calls := []request{remove}
	for _, c := range bodyCalls(v) {
		calls = append(calls, request{method: c.method, path: c.path, body: encode(s, c.right)})
	}
	for _, call := range calls {
		call.meant = other
		refused(s, call.method+" "+call.path+" for another host", s.first.send(call), escache.CodeOtherHost)
		if now := s.first.steady(v); !reflect.DeepEqual(now, before) {
			s.Fatalf("%s %s for another host changed the status from %s to %s", call.method, call.path, shown(before), shown(now))
		}
	}
	v.detach(s.first)
	remove.meant = own
	done(s, "delete for the host itself", s.first.send(remove))
}
