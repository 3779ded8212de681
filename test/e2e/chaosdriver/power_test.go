//go:build e2e

package chaosdriver

import "github.com/escache/escache-csi/test/labtest"

// Both hosts lose their power. On forgetful disks that takes everything that was not flushed.
func powerRows() []row {
	return []row{
		{when: "power", what: "of both; the second returns alone and takes over, then the first", core: true, run: bothSecondFirst},
		{when: "power", what: "of both; the first returns alone, then the second", run: bothFirstFirst},
		{when: "power", what: "of both, the second long before; it must not be used when it returns alone", run: secondLongBefore},
		{when: "power", what: "of the holder, with its second copy on a host whose escached is killed", run: powerAndKill},
	}
}

// boot gives a host its power back, and says to Kubernetes that it may be used.
func (s *scene) boot(h *labtest.Host) {
	s.Helper()
	s.lab.PowerOn(s, h)
	s.untaint(h)
}

func bothSecondFirst(s *scene) {
	s.write()
	first, second := s.holder, s.partner()
	s.fault()
	s.powerOff(first)
	s.powerOff(second)
	s.loses()
	s.boot(second)
	s.takes(second)
	s.isOutdated(first)
	s.boot(first)
	s.whole()
	s.finish()
}

func bothFirstFirst(s *scene) {
	s.write()
	first, second := s.holder, s.partner()
	s.fault()
	s.powerOff(first)
	s.powerOff(second)
	s.loses()
	s.boot(first)
	s.takes(first)
	s.isOutdated(second)
	s.boot(second)
	s.whole()
	s.takenOver = false
	s.finish()
}

func secondLongBefore(s *scene) {
	s.write()
	first, second := s.holder, s.partner()
	s.fault()
	s.powerOff(second)
	s.goesOn()
	s.isOutdated(second)
	s.goesOn()
	s.powerOff(first)
	s.loses()
	s.boot(second)
	s.refuses(second, "node "+first.Name+" .*at stake")
	s.fault()
	s.boot(first)
	s.takes(first)
	s.whole()
	s.takenOver = false
	s.finish()
}

func powerAndKill(s *scene) {
	s.write()
	heir := s.partner()
	s.fault()
	s.powerOff(s.holder)
	heir.KillService(s)
	s.loses()
	s.ask(heir)
	heir.KillService(s)
	s.runs(heir)
	s.tookOver()
	s.whole()
	s.finish()
}
