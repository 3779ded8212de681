//go:build e2e

package chaosdriver

import (
	"context"

	"github.com/escache/escache-csi/test/labtest"
)

// Nothing is broken: hosts are taken down on purpose.
func maintenanceRows() []row {
	return []row{
		{when: "maintenance", what: "rolling reboot under a writer: never dirty on one copy", run: rollingReboot},
		{when: "maintenance", what: "second copies are moved off a host under a writer: never dirty on one copy", run: copiesMove},
	}
}

// copiesMove evacuates the host of the second copy with --protect=move, twice, so that the copy goes to the third
// host and back. Each time the volume writes back before the evacuated host is switched off.
func copiesMove(s *scene) {
	s.repairs("15m") // as the chart has it
	s.Cleanup(s.uncordonAll)
	s.write()
	s.watch.twoCopies(true)
	for range 2 {
		from, to := s.partner(), s.third()
		s.fault()
		s.escache("evacuate", from.Name, "--protect=move", "--wait", "--timeout=10m")
		s.copied(to)
		s.writesBack()
		s.goesOn()
		s.fault()
		s.powerOff(from)
		s.goesOn()
		s.boot(from)
		s.escache("uncordon", from.Name, "--timeout=10m")
		if now := s.partner(); now != to {
			s.Errorf("the second copy is on %s, and was moved to %s", now.Name, to.Name)
		}
		s.redundant()
		s.goesOn()
	}
	s.whole()
	s.watch.twoCopies(false) // the holder is lost now, to read the other copy
	s.finish()
}

// rollingReboot follows docs/hosts/rolling-reboot.md: first the host of the second copy, then the holder, and
// last the one that has the second copy by then.
func rollingReboot(s *scene) {
	s.repairs("15m") // as the chart has it
	s.Cleanup(s.uncordonAll)
	s.write()
	s.watch.twoCopies(true)
	for _, h := range []*labtest.Host{s.partner(), s.holder, s.third()} {
		s.reboots(h)
	}
	s.whole()
	s.watch.twoCopies(false) // the holder is lost now, to read the other copy
	s.takenOver = false      // the pod has moved in good order, and Ceph had everything
	s.finish()
}

// reboots takes a host down and back, as the page says. A pod there goes to the host of the other copy.
func (s *scene) reboots(h *labtest.Host) {
	s.Helper()
	s.escache("evacuate", h.Name, "--protect=drain", "--wait", "--timeout=10m")
	heir := s.partner()
	if h == s.holder {
		s.writer.Stop(s)
	}
	// The pods of these tests have no owner that would make them anew, so they need --force.
	s.kubectl(s, "drain", h.Name, "--ignore-daemonsets", "--delete-emptydir-data", "--force", "--timeout=240s")
	if h == s.holder {
		s.fault()
		s.detached()
		s.takes(heir)
	}
	s.fault()
	s.powerOff(h)
	s.goesOn()
	s.boot(h)
	s.kubectl(s, "uncordon", h.Name)
	s.escache("uncordon", h.Name, "--timeout=10m")
	s.redundant()
	s.writesBack()
	s.goesOn()
}

// escache runs kubectl escache, which has to succeed.
func (s *scene) escache(args ...string) {
	s.Helper()
	said := labtest.Escache(s, "", args...)
	if said.Code != 0 {
		s.Fatalf("kubectl escache %q: exit code %d: %s", args, said.Code, said.All())
	}
	s.Logf("%s", said.All())
}

// uncordonAll takes hosts back after a failure.
func (s *scene) uncordonAll() {
	if !s.Failed() {
		return
	}
	ctx := context.WithoutCancel(s.Context())
	for _, h := range s.lab.Hosts {
		_, _ = s.try(ctx, "", "uncordon", h.Name)
		_, _ = s.try(ctx, "", "delete", "cacheflush", "evacuate-"+h.Name, "--ignore-not-found", "--wait=false")
	}
	_, _ = s.try(ctx, "", "patch", "nodegroup", group, "--type=merge", "-p", `{"spec":{"cordonedNodes":null}}`)
}
