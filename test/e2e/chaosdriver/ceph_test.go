//go:build e2e

package chaosdriver

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"time"

	"github.com/escache/escache-csi/test/labtest"
)

// Ceph does not take what it is given.
func cephRows() []row {
	return []row{
		{when: "Ceph", what: "is full; the pod goes, and Ceph has room again", run: full},
		{when: "Ceph", what: "an administrator evicts the holder; the pod goes, and the entry is removed", run: evicted},
	}
}

// full: what Ceph does not take stays in the cache, and with its host.
func full(s *scene) {
	s.write()
	room := s.fillCeph()
	s.fault()
	s.goesOn() // into the cache
	s.rest()
	s.kubectl(s, "delete", "pod", s.pod, "--wait=false")
	s.staysAttached(20 * time.Second)
	room()
	s.fault()
	s.detached()
	s.inCeph()
	s.use(s.partner())
	s.recovered = append(s.recovered, time.Since(s.begun))
	s.check.Verify(s, s.holder, s.device)
	s.write()
	s.finish()
}

// fillCeph has Ceph take no more data, and returns what gives it room again.
func (s *scene) fillCeph() (room func()) {
	s.Helper()
	const filler = "e2e-filler"
	file := filepath.Join(s.TempDir(), filler)
	check(s, os.WriteFile(file, make([]byte, 16<<20), 0o600)) // of 4 GiB
	ratios := func(nearfull, backfillfull, full string) {
		s.lab.Command(s, "ceph", "osd", "set-full-ratio", full)
		s.lab.Command(s, "ceph", "osd", "set-backfillfull-ratio", backfillfull)
		s.lab.Command(s, "ceph", "osd", "set-nearfull-ratio", nearfull)
	}
	room = sync.OnceFunc(func() {
		ratios("0.85", "0.90", "0.95")
		s.lab.Command(s, "rados", "--pool", "rbd", "rm", filler)
	})
	s.lab.Command(s, "rados", "--pool", "rbd", "put", filler, file)
	s.Cleanup(room)
	ratios("0.0001", "0.0002", "0.0003")
	labtest.WaitForCommand(s, "Ceph is full", commandTime, func(context.Context) error {
		if health := s.lab.Command(s, "ceph", "health", "detail"); !strings.Contains(health, "OSD_FULL") {
			return fmt.Errorf("it says %s", health)
		}
		return nil
	})
	return room
}

// evicted: an entry of an hour that nobody of the driver has made.
func evicted(s *scene) {
	s.write()
	s.rest()
	client := s.record().Status.ClientAddress
	s.lab.Command(s, "ceph", "osd", "blocklist", "add", client)
	s.kubectl(s, "delete", "pod", s.pod, "--wait=false")
	s.staysAttached(20 * time.Second)
	s.lab.Command(s, "ceph", "osd", "blocklist", "rm", client)
	s.fault()
	s.detached()
	s.inCeph()
	s.use(s.partner())
	s.recovered = append(s.recovered, time.Since(s.begun))
	s.check.Verify(s, s.holder, s.device)
	s.write()
	s.finish()
}

// staysAttached looks for so long whether a volume that cannot be written back is kept.
func (s *scene) staysAttached(long time.Duration) {
	s.Helper()
	for begin := time.Now(); time.Since(begin) < long; time.Sleep(time.Second) {
		if v := s.record(); v.Status.AttachedNode != s.holder.Name {
			s.Fatalf("what %s has cannot be written back, and the volume is attached to %q", s.holder.Name, v.Status.AttachedNode)
		}
	}
}
