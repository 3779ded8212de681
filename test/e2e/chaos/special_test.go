//go:build e2e

package chaos

import (
	"context"
	"time"

	"github.com/escache/escache-csi/api/escache"
	"github.com/escache/escache-csi/test/labtest"
)

// special are rows whose course is their own.
func special() []row {
	return []row{
		{when: "idle", what: "power of both", run: powerOfBoth(false)},
		{when: "load", what: "power of both", run: powerOfBoth(true)},
		{when: "load", what: diskDead.what, run: deadDisk},
		{when: "load", what: "local disk of the secondary dead", run: deadDiskOfSecond},
		{when: "load", what: "cache full while Ceph is stalled", run: fullCache},
		{when: "load", what: "Ceph answers writes with errors", run: refused(func(s *scene) {
			s.lab.TakeWrites(s)
			if s.writer != nil {
				s.goesOn()
				s.rest()
			}
			s.v.Flush(s, s.n1)
		})},
		{when: "load", what: "Ceph answers writes with errors, power of the primary", run: refused(func(s *scene) {
			powerOfPrimary.hit(s)
			s.takenOver(s.n2)
			s.lab.TakeWrites(s)
		})},
		{when: "take-over", what: "escached of the new holder killed", run: takeOver(func(s *scene) { s.n2.KillService(s) })},
		{when: "take-over", what: "Ceph stalled", run: takeOver(func(s *scene) {
			s.lab.StallCeph(s)
			time.Sleep(lasts)
			s.lab.ResumeCeph(s)
		})},
		{when: "take-over", what: "power of the new holder", run: takeOver(func(s *scene) {
			s.lab.PowerOff(s, s.n2)
			s.lab.PowerOn(s, s.n2)
			s.n2.WaitForService(s, rebootLimit)
		})},
		{when: "take-over", what: "the old holder returns", run: takeOver(func(s *scene) { s.powerOn() })},
		{when: "resync", what: powerOfPrimary.what, run: primaryLostInResync},
		{when: "twice", what: powerOfPrimary.what, run: thereAndBack},
	}
}

// powerOfBoth: Ceph has nothing of it, and both copies lose their power at once.
func powerOfBoth(writing bool) func(*scene) {
	return func(s *scene) {
		s.write()
		if !writing {
			s.rest()
		}
		s.powerOff(s.n1)
		s.powerOff(s.n2)
		s.lab.Blocklist(s, s.client)
		s.returnsToFirst()
	}
}

// deadDisk: I/O goes on through the peer. The disk is itself again after a reboot, and what it
// holds is old.
func deadDisk(s *scene) {
	s.write()
	diskDead.hit(s)
	s.v.WaitForStatus(s, s.n1, "runs without its disk", noticeLimit, func(st escache.VolumeStatus) bool { return st.DiskState == "Diskless" })
	s.goesOn()
	s.rest()
	s.check.Verify(s, s.n1, s.device)
	s.v.Flush(s, s.n1)
	s.v.Stop(s, s.n1)
	s.powerOff(s.n1)
	s.powerOn()
	s.v.WaitForPeer(s, s.n2)
	s.connect(s.n1)
	s.check.Verify(s, s.n1, s.device)
	s.finish()
}

// deadDiskOfSecond: I/O goes on with one copy, which says so, and it does not stop when that host
// loses its power. The other copy is current again after a reboot, and can be taken over.
func deadDiskOfSecond(s *scene) {
	s.write()
	s.lab.FailDisk(s, s.n2)
	s.v.WaitForStatus(s, s.n1, "says that its peer has no disk", noticeLimit, func(st escache.VolumeStatus) bool { return !labtest.Redundant(st) })
	s.goesOn()
	s.powerOff(s.n2)
	s.goesOn()
	s.powerOn()
	s.v.WaitForPeer(s, s.n1)
	s.goesOn()
	s.powerOff(s.n1)
	s.takenOver(s.n2)
	s.whole()
	s.finish()
}

// fullCache: writes wait, for the cache has no room and Ceph takes nothing; then they go on, and
// nothing that was acknowledged is lost.
func fullCache(s *scene) {
	s.write()
	s.lab.StallCeph(s)
	filler := s.n1.StartWriter(s, s.device, labtest.Writes{Offset: 8 * mib, Span: 48 * mib, Bytes: 48 * mib, Batch: 64})
	before := -1
	labtest.WaitFor(s, "the cache is full", goOnLimit, func(ctx context.Context) error {
		now := filler.Count() + s.writer.Count()
		if now == before {
			return nil
		}
		before = now
		time.Sleep(3 * time.Second) // no write in so long: they wait
		return context.DeadlineExceeded
	})
	s.lab.ResumeCeph(s)
	s.goesOn()
	acks := filler.Finish(s)
	s.check.Add(acks)
	s.finish()
}

// primaryLostInResync: the only current copy is lost while the other is being brought up to date.
// That one must not be used; the first returns and has everything.
func primaryLostInResync(s *scene) {
	s.write()
	s.resyncing()
	s.powerOff(s.n1)
	s.lab.Blocklist(s, s.client)
	if _, err := s.n2.API.DevConnect(s.Context(), s.v.ConnectRequest(s.v.Epoch())); labtest.CodeOf(err) == "" {
		s.Errorf("the copy that was being brought up to date was connected, or not refused: %v", err)
	}
	s.lab.Heal(s)
	s.returnsToFirst()
}

// thereAndBack: the first host is lost, returns and is current; then the second is lost.
func thereAndBack(s *scene) {
	s.write()
	powerOfPrimary.hit(s)
	s.takenOver(s.n2)
	s.whole()
	s.powerOff(s.n2)
	s.takenOver(s.n1)
	s.whole()
	s.finish()
}

// refused: what Ceph does not take stays in the cache, which says so. Nobody lets go of it, and it is all
// there after what comes then. dm-writecache fails all I/O from then on. The log takes writes while it has
// room; then they wait.
func refused(then func(*scene)) func(*scene) {
	return func(s *scene) {
		s.write()
		s.check.Add(s.n1.Fill(s, s.device, 8*mib, 8*mib))
		s.n1.Shell(s, "dmesg -c >/dev/null")
		s.lab.RefuseWrites(s)
		answer, err := s.n1.API.Flush(s.Context(), escache.FlushRequest{VolumeRef: s.v.VolumeRef, TimeoutSeconds: 60})
		if labtest.CodeOf(err) != escache.CodeCacheError {
			s.Errorf("flush: %+v, %v; want %s", answer, err, escache.CodeCacheError)
		}
		s.n1.Shell(s, "dmesg | grep 'rbd: .*write at objno .* result -27'") // EFBIG, and no error of the test's own making
		s.v.WaitForStatus(s, s.n1, "says what is wrong", noticeLimit, func(st escache.VolumeStatus) bool {
			return st.State == escache.StateError && st.Error != nil && st.Error.Code == escache.CodeCacheError && st.DirtyBytes != nil && *st.DirtyBytes > 0
		})
		if labtest.Engine() != escache.EngineLog {
			s.writer.Broken(s)
			s.writer = nil
			if err := s.n1.API.Stop(s.Context(), escache.StopRequest{VolumeRef: s.v.VolumeRef}); labtest.CodeOf(err) != escache.CodeCacheError {
				s.Errorf("stop: %v; want %s", err, escache.CodeCacheError)
			}
		}
		then(s)
		s.goesOn()
		s.check.Verify(s, s.holder, s.device)
		s.whole()
		s.finish()
	}
}
