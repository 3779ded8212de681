//go:build e2e

package chaosdriver

import (
	"context"
	"fmt"
	"strings"
	"time"

	"github.com/escache/escache-csi/test/labtest"
)

// A host stands still for a while and then goes on as if nothing had been. Its clock stood still,
// too.
func frozenRows() []row {
	return []row{
		{when: "frozen", what: "the holder, thawed after another host has the volume", core: true, run: frozenHolder},
		{when: "frozen", what: "the holder, thawed before anybody takes the volume", run: frozenAndBack},
		{when: "frozen", what: "the host of the second copy", run: frozenPartner},
		{when: "frozen", what: "the holder, and its successor loses its power before it is thawed", run: frozenThenPower},
		{when: "frozen", what: "csi-node alone between its look and the connect, until another has it", run: connectTooLate},
	}
}

func frozenHolder(s *scene) {
	s.write()
	old, boot := s.holder, s.bootID(s.holder)
	s.fault()
	s.lab.Freeze(s, old)
	s.loses()
	s.takes(s.partner())
	s.lab.Thaw(s, old)
	s.writer.WaitForMore(s, 50, goOnTime) // time in which the old one could write if it were allowed to
	s.untaint(old)
	s.givenUp(old)
	s.redundant()
	if s.bootID(old) != boot {
		s.Errorf("%s was booted anew", old.Name)
	}
	s.whole()
	s.finish()
}

// frozenAndBack is longer than DRBD's patience and Ceph's watch, so links and watch are gone.
func frozenAndBack(s *scene) {
	s.write()
	s.fault()
	s.lab.Freeze(s, s.holder)
	time.Sleep(40 * time.Second)
	s.lab.Thaw(s, s.holder)
	s.goesOn()
	s.whole()
	s.finish()
}

func frozenPartner(s *scene) {
	s.write()
	partner := s.partner()
	s.fault()
	s.lab.Freeze(s, partner)
	s.goesOn()
	s.isOutdated(partner)
	s.lab.Thaw(s, partner)
	s.whole()
	s.finish()
}

// frozenThenPower: the thawed host's copy is old, and the only other one is away. It must not be
// used.
func frozenThenPower(s *scene) {
	s.write()
	old, heir := s.holder, s.partner()
	s.fault()
	s.lab.Freeze(s, old)
	s.loses()
	s.takes(heir)
	s.powerOff(heir)
	s.lab.Thaw(s, old)
	s.untaint(old)
	s.loses()
	s.refuses(old, "node "+heir.Name+" .*at stake")
	check(s, s.mend(s.Context()))
	s.fault()
	s.takes(heir)
	s.whole()
	s.finish()
}

// connectTooLate: csi-node has read that its host may have the volume, and goes on when that has not been true
// for a while. The link is cut, so that escached there does not see the new holder either.
func connectTooLate(s *scene) {
	s.write()
	s.writer.Stop(s)
	s.writer = nil
	s.leaves()
	old, heir := s.holder, s.partner()
	old.TraceCrashPoints(s)
	old.StopAt(s, "node_stage/compared")
	s.ask(old)
	s.isStopped(old, "csi-node")
	looked := time.Now()
	s.cutBoth(old, heir)
	s.forced(old)
	s.use(heir)
	s.isOutdated(old)
	s.goOn(old, "csi-node")
	s.Logf("csi-node on %s goes on %s after it looked; the kubelet's call ends after 2 minutes", old.Name, time.Since(looked))
	s.tookOver()
	s.staysUnused(old, 20*time.Second)
	s.writer.WaitForMore(s, 30, goOnTime)
	s.goOn(old, "kubelet")
	s.untaint(old)
	s.whole()
	s.takenOver = false // the old copy was filled since, and is read
	s.finish()
}

// isStopped waits until a service of a host has been stopped.
func (s *scene) isStopped(h *labtest.Host, service string) {
	s.Helper()
	labtest.WaitFor(s, service+" on "+h.Name+" is stopped", podTime, func(ctx context.Context) error {
		state, err := h.Try(ctx, nil, "sh", "-c", "sed -n 's/^State:[^A-Z]*//p' /proc/$(cat "+serviceDir+service+".pid)/status")
		if err == nil && !strings.HasPrefix(state, "T") {
			err = fmt.Errorf("it is %q", state)
		}
		return err
	})
}
