//go:build e2e

package chaosdriver

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"time"

	"github.com/escache/escache-csi/internal/escached/cache"
	"github.com/escache/escache-csi/test/lab/labclient"
	"github.com/escache/escache-csi/test/labtest"
)

// A copy is lost, damaged, or old, and nobody has told anybody.
func diskRows() []row {
	return []row{
		{when: "disk", what: "the only current copy comes back as an empty disk", core: true, run: onlyCopyGone((*scene).newDisk)},
		{when: "disk", what: "the only current copy was removed from its volume group", run: onlyCopyGone((*scene).removedCopy)},
		{when: "disk", what: "one copy damaged after a power loss of both, while the other is away", run: damagedAlone},
		{when: "disk", what: "of the second copy dead while the API server is away, then the holder lost", run: secondDiskUnheard},
		{when: "disk", what: "of the holder dead while its csi-node hangs, then the partner lost", run: holderDiskUnheard},
		{when: "disk", what: "of the holder dead, then the partner lost: the restored disk is old", run: holderDiskThenPartner},
	}
}

// alone has the holder lose its partner and go on: from then on there is one current copy. Some of what it writes then is not
// written again, so only a resync brings it to the partner.
func (s *scene) alone() (partner *labtest.Host) {
	s.Helper()
	partner = s.partner()
	s.fault()
	s.powerOff(partner)
	s.goesOn()
	s.isOutdated(partner)
	s.check.Add(s.holder.Fill(s, s.device, 8*mib, mib))
	s.goesOn()
	return partner
}

// onlyCopyGone: nobody may have the volume, for what it holds is lost; only a person can decide to
// go on with what Ceph has.
func onlyCopyGone(goes func(*scene, *labtest.Host)) func(*scene) {
	return func(s *scene) {
		s.write()
		partner := s.alone()
		holder := s.holder
		s.powerOff(holder)
		s.loses()
		goes(s, holder)
		s.boot(partner)
		s.refuses(holder, "only current copy|at stake")
		s.refuses(partner, "at stake")
		s.discard()
		s.use(partner)
		s.check = labtest.NewChecker() // what was acknowledged is given up, on purpose
		s.image.LaidAnew()
		s.write()
		s.whole()
		s.finish()
	}
}

func (s *scene) newDisk(h *labtest.Host) {
	s.Helper()
	s.lab.NewDisk(s, h)
	s.boot(h)
}

func (s *scene) removedCopy(h *labtest.Host) {
	s.Helper()
	s.boot(h)
	h.Damage(s, "lvremove -q -f -y "+s.image.LogicalVolume()+" >/dev/null")
}

// discard is an operator's decision.
func (s *scene) discard() {
	s.Helper()
	tests, err := os.Executable()
	check(s, err)
	ctx, cancel := context.WithTimeout(s.Context(), podTime)
	defer cancel()
	cmd := exec.CommandContext(ctx, filepath.Join(os.Getenv(labclient.EnvBin), "kubectl"), "escache", "discard-cache", s.volume, "--reason=burnt")
	cmd.Env = append(os.Environ(), "PATH="+filepath.Dir(tests)+":"+os.Getenv("PATH"))
	cmd.Stdin = strings.NewReader(s.volume + "\n")
	out, err := cmd.CombinedOutput()
	s.Logf("kubectl escache discard-cache: %s", out)
	check(s, err)
	s.Cleanup(func() {
		_, _ = s.try(context.WithoutCancel(s.Context()), "", "delete", "cachediscards", "--all", "--timeout=60s")
	})
}

// damagedAlone: the first host comes back alone with a damaged copy. It is put on record as outdated.
// It must neither be used nor condemn the other, nor be copied over it.
func damagedAlone(s *scene) {
	s.write()
	first, second := s.holder, s.partner()
	s.fault()
	s.powerOff(first)
	s.powerOff(second)
	s.loses()
	s.boot(first)
	first.Damage(s, fmt.Sprintf("dd if=/dev/zero of=%s bs=4096 seek=%d count=1 oflag=direct conv=notrunc 2>&1", s.image.LogicalVolume(),
		cache.HeaderBytes/cache.BlockBytes))
	s.isOutdated(first)
	s.refuses(first, "node "+second.Name+" .*at stake")
	if v := s.record(); v.Status.IsOutdated(second.Name) {
		s.Errorf("a damaged copy has condemned the other: outdated %q", v.Status.Outdated)
	}
	s.boot(second)
	s.takes(second)
	s.whole()
	s.finish()
}

// secondDiskUnheard: nobody can be told that the second copy does not count any more. So no write is
// acknowledged from then on.
func secondDiskUnheard(s *scene) {
	s.write()
	holder, partner := s.holder, s.partner()
	s.fault()
	check(s, s.client.StopAPIServer(s.Context()))
	s.lab.FailDisk(s, partner)
	s.pauses(10 * time.Second)
	s.powerOff(holder)
	s.powerOff(partner)
	check(s, s.client.StartAPIServer(s.Context()))
	s.loses()
	s.boot(partner)
	s.refuses(partner, "(?i)at stake|outdated|fencing_refused|did not allow")
	s.fault()
	s.boot(holder)
	s.takes(holder)
	s.whole()
	s.takenOver = false
	s.finish()
}

// holderDiskUnheard is the same on the other side.
func holderDiskUnheard(s *scene) {
	s.write()
	holder, partner := s.holder, s.partner()
	s.fault()
	s.stop(holder, "csi-node")
	s.lab.FailDisk(s, holder)
	s.pauses(10 * time.Second)
	s.powerOff(partner)
	s.powerOff(holder)
	s.loses()
	s.boot(holder)
	s.refuses(holder, "(?i)at stake|outdated|fencing_refused|did not allow")
	s.fault()
	s.boot(partner)
	s.takes(partner)
	s.whole()
	s.finish()
}

// holderDiskThenPartner: everything that was written since the disk died is on the partner alone.
func holderDiskThenPartner(s *scene) {
	s.write()
	holder, partner := s.holder, s.partner()
	s.fault()
	s.lab.FailDisk(s, holder)
	s.goesOn()
	s.isOutdated(holder)
	s.goesOn()
	s.powerOff(partner)
	s.powerOff(holder)
	s.loses()
	s.boot(holder)
	s.refuses(holder, "node "+partner.Name+" .*at stake")
	s.fault()
	s.boot(partner)
	s.takes(partner)
	s.whole()
	s.finish()
}
