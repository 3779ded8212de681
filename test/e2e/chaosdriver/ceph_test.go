//go:build e2e

package chaosdriver

import "time"

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
	ratio := func(name, value string) { s.lab.Command(s, "ceph", "osd", "set-"+name+"-ratio", value) }
	s.Cleanup(func() {
		ratio("full", "0.95")
		ratio("backfillfull", "0.90")
		ratio("nearfull", "0.85")
	})
	ratio("nearfull", "0.0001")
	ratio("backfillfull", "0.0002")
	ratio("full", "0.0003")
	s.fault()
	s.goesOn() // into the cache
	s.rest()
	s.kubectl(s, "delete", "pod", s.pod, "--wait=false")
	s.staysAttached(20 * time.Second)
	ratio("full", "0.95")
	ratio("backfillfull", "0.90")
	ratio("nearfull", "0.85")
	s.fault()
	s.detached()
	s.inCeph()
	s.use(s.partner())
	s.recovered = append(s.recovered, time.Since(s.begun))
	s.check.Verify(s, s.holder, s.device)
	s.write()
	s.finish()
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
