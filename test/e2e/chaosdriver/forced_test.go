//go:build e2e

package chaosdriver

import (
	"context"
	"fmt"
	"os/exec"
	"strings"
	"time"

	"github.com/escache/escache-csi/test/labtest"
)

// againTime is longer than csi-controller takes to look again whether a client is fenced.
const againTime = 30 * time.Second

// The volume is taken from a holder that lives.
func forcedRows() []row {
	return []row{
		{when: "forced", what: "kubelet stopped, the link up: taken over without a reboot", core: true, run: linkUp},
		{when: "forced", what: "kubelet stopped, given back to the same host", run: givenBack},
		{when: "fence", what: "an entry of 60 s was there before, and somebody removes the fence; the old holder is frozen meanwhile", run: shortEntry},
		{when: "fence", what: "the old holder's map is gone: the fence is lifted under a writer", run: lifted},
	}
}

// forced stops the kubelet of the holder, and has Kubernetes take the volume by force. Everything
// else there goes on.
func (s *scene) forced(h *labtest.Host) {
	s.Helper()
	s.fault()
	s.stop(h, "kubelet")
	s.loses()
}

func linkUp(s *scene) {
	s.write()
	old, boot := s.holder, s.bootID(s.holder)
	s.forced(old)
	s.takes(s.partner())
	s.goOn(old, "kubelet")
	s.untaint(old)
	s.redundant()
	if s.bootID(old) != boot {
		s.Errorf("%s was booted anew", old.Name)
	}
	s.givenUp(old)
	s.whole()
	s.finish()
}

// givenBack: the fenced map is of no use to the next pod on the same host.
func givenBack(s *scene) {
	s.write()
	old, client := s.holder, s.record().Status.ClientAddress
	s.forced(old)
	s.writer.End(s) // as the pod's processes end: the device must not be open
	s.goOn(old, "kubelet")
	s.untaint(old)
	s.takes(old)
	if now := s.record().Status.ClientAddress; now == client || now == "" {
		s.Errorf("%s has the volume again as client %q, and %s is fenced", old.Name, now, client)
	}
	s.whole()
	s.takenOver = false // the second copy was not read yet
	s.finish()
}

// shortEntry: Ceph keeps the end of an entry that it has already, and anybody may remove one.
func shortEntry(s *scene) {
	s.write()
	old, client := s.holder, s.record().Status.ClientAddress
	s.fault()
	s.lab.Freeze(s, old)
	s.lab.Command(s, "ceph", "osd", "blocklist", "add", client, "60")
	added := time.Now()
	s.loses()
	s.takes(s.partner())
	s.lab.Command(s, "ceph", "osd", "blocklist", "rm", client)
	s.fencedAgain(client)
	s.staysFenced(client, time.Until(added.Add(80*time.Second)))
	s.lab.Thaw(s, old)
	s.writer.WaitForMore(s, 30, goOnTime)
	s.staysFenced(client, 10*time.Second)
	s.whole()
	s.finish()
}

// lifted: the driver's own end of a fence, while the next holder writes.
func lifted(s *scene) {
	s.write()
	old, client := s.holder, s.record().Status.ClientAddress
	s.forced(old)
	s.takes(s.partner())
	s.goOn(old, "kubelet")
	s.untaint(old)
	s.givenUp(old)
	s.fencedLongAgo()
	s.unfenced(client)
	s.writer.WaitForMore(s, 30, goOnTime)
	s.whole()
	s.finish()
}

func (s *scene) bootID(h *labtest.Host) string {
	s.Helper()
	return h.Run(s, "cat", "/proc/sys/kernel/random/boot_id")
}

func (s *scene) untaint(h *labtest.Host) {
	s.Helper()
	if _, err := s.try(s.Context(), "", "taint", "node", h.Name, outOfService+"-"); err != nil && !strings.Contains(err.Error(), "not found") {
		s.Fatalf("%v", err)
	}
	s.kubectl(s, "wait", "--for=condition=Ready", "node/"+h.Name, fmt.Sprintf("--timeout=%s", podTime))
}

// givenUp waits until an old holder has neither device nor map any more.
func (s *scene) givenUp(h *labtest.Host) {
	s.Helper()
	labtest.WaitFor(s, h.Name+" has given the volume up", podTime, func(ctx context.Context) error {
		status, err := h.API.VolumeStatus(ctx, s.image.VolumeRef)
		if err == nil && (status.Device != "" || status.ClientAddress != "") {
			err = fmt.Errorf("it has %s, client %s", status.Device, status.ClientAddress)
		}
		return err
	})
}

// blocklist is what Ceph lists, a client a line.
func blocklist(ctx context.Context) (string, error) {
	return labtest.Output(exec.CommandContext(ctx, "ceph", "osd", "blocklist", "ls"))
}

// staysFenced looks again and again for so long whether a client is on Ceph's blocklist.
func (s *scene) staysFenced(client string, long time.Duration) {
	s.Helper()
	for begin := time.Now(); time.Since(begin) < long; time.Sleep(3 * time.Second) {
		ctx, cancel := context.WithTimeout(s.Context(), commandTime)
		list, err := blocklist(ctx)
		cancel()
		check(s, err)
		if !strings.Contains(list, client+" ") {
			s.Fatalf("%s is not fenced any more: %q, and on record there is %+v", client, list, s.record().Status.Fenced)
		}
	}
}

// fencedAgain waits until csi-controller has put a client back on Ceph's blocklist, and has told so.
func (s *scene) fencedAgain(client string) {
	s.Helper()
	labtest.WaitForCommand(s, client+" is fenced again", againTime, func(ctx context.Context) error {
		list, err := blocklist(ctx)
		if err == nil && !strings.Contains(list, client+" ") {
			err = fmt.Errorf("blocklist %q", list)
		}
		return err
	})
	labtest.WaitForCommand(s, "an Event says that "+client+" is fenced again", podTime, func(ctx context.Context) error {
		told, err := s.try(ctx, "", "get", "events", "--all-namespaces", "--field-selector=reason=FencedAgain", "-o", "jsonpath={.items[*].message}")
		if err == nil && !strings.Contains(told, client) {
			err = fmt.Errorf("the Events say %q", told)
		}
		return err
	})
}

// unfenced waits until neither Ceph nor the record lists a client.
func (s *scene) unfenced(client string) {
	s.Helper()
	labtest.WaitForCommand(s, client+" is not fenced any more", podTime, func(ctx context.Context) error {
		list, err := blocklist(ctx)
		if err == nil && strings.Contains(list, client+" ") {
			err = fmt.Errorf("blocklist %q", list)
		}
		if fenced := s.record().Status.Fenced; err == nil && len(fenced) > 0 {
			err = fmt.Errorf("on record there is %+v", fenced)
		}
		return err
	})
}
