//go:build e2e

package chaosdriver

import (
	"time"

	"github.com/escache/escache-csi/test/labtest"
)

// Whether a host may go on alone is asked, and the answer is late or lost.
func arbiterRows() []row {
	return []row{
		{when: "arbiter", what: "does not answer, and the holder loses its power", run: noAnswer},
		{when: "arbiter", what: "csi-node is killed as soon as the answer is on record, then the holder", run: lostAnswer},
		{when: "arbiter", what: "the link flaps", run: flapping},
		{when: "arbiter", what: "the link flaps, and the holder loses its power in it", run: flappingThenPower},
	}
}

// noAnswer: nothing was acknowledged by one copy alone, so the other one is good.
func noAnswer(s *scene) {
	s.write()
	holder, partner := s.holder, s.partner()
	s.fault()
	s.stop(holder, "csi-node")
	s.cutBoth(holder, partner)
	s.pauses(10 * time.Second)
	s.powerOff(holder)
	check(s, s.client.Heal(s.Context()))
	s.loses()
	s.takes(partner)
	s.whole()
	s.finish()
}

func lostAnswer(s *scene) {
	s.write()
	holder, partner := s.holder, s.partner()
	s.fault()
	s.cutBoth(holder, partner)
	s.isOutdated(partner)
	holder.Shell(s, "kill -9 $(cat "+serviceDir+"csi-node.pid)")
	s.powerOff(holder)
	check(s, s.client.Heal(s.Context()))
	s.loses()
	s.refuses(partner, "node "+holder.Name+" .*at stake")
	s.fault()
	s.boot(holder)
	s.takes(holder)
	s.whole()
	s.takenOver = false
	s.finish()
}

// flap cuts the link and heals it, faster than anybody gets used to it.
func (s *scene) flap(a, b *labtest.Host, times int) {
	s.Helper()
	for i := range times {
		s.cutBoth(a, b)
		time.Sleep(time.Duration(1+i%4) * time.Second)
		check(s, s.client.Heal(s.Context()))
		time.Sleep(time.Duration(1+i%3) * time.Second)
	}
}

func flapping(s *scene) {
	s.write()
	s.fault()
	s.flap(s.holder, s.partner(), 8)
	s.fault()
	s.goesOn()
	s.whole()
	s.finish()
}

// flappingThenPower: the record says whether the other copy counts, and whatever it says holds.
func flappingThenPower(s *scene) {
	s.write()
	holder, partner := s.holder, s.partner()
	s.flap(holder, partner, 3)
	s.cutBoth(holder, partner)
	time.Sleep(2 * time.Second)
	s.fault()
	s.powerOff(holder)
	check(s, s.client.Heal(s.Context()))
	s.loses()
	if s.record().Status.IsOutdated(partner.Name) {
		s.refuses(partner, "node "+holder.Name+" .*at stake")
		s.fault()
		s.boot(holder)
		s.takes(holder)
		s.whole()
		s.takenOver = false
	} else {
		s.takes(partner)
		s.whole()
	}
	s.finish()
}
