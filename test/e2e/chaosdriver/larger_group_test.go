//go:build e2e

package chaosdriver

import (
	"fmt"
	"testing"
	"time"

	"github.com/escache/escache-csi/test/labtest"
)

// fiveHosts is a group in which two hosts away are more than a third, and one is not.
const fiveHosts = 5

// TestLargerGroup loses hosts of a group of five, one after the other: the copies are spread over all of them, and each that is lost is
// made again on one of the others, unasked.
func TestLargerGroup(t *testing.T) {
	w := open(t)
	if len(w.lab.Hosts) < fiveHosts {
		t.Skipf("it needs a lab of %d hosts: make chaos-larger-group", fiveHosts)
	}
	for range labtest.Runs(t) {
		t.Run("three copies are lost", func(t *testing.T) { threeCopiesLost(t, w) })
	}
}

func threeCopiesLost(t *testing.T, w *world) {
	t.Cleanup(func() { w.cleanUp(t) })
	s := w.newScene(t)
	t.Cleanup(func() { s.watch.end(t) })
	s.repairs("30s")
	s.open()
	for range len(w.lab.Hosts) - 1 {
		s.another(nil)
	}
	s.spread()
	for _, o := range s.others {
		o.leaves()
	}
	s.write()

	s.leftBy(s.diskDies())
	s.goesOn()
	off := s.alone()
	s.leftBy(off)
	s.goesOn()

	// A host whose disk is dead answers, so this is the second host that is away: what cannot be replaced is written through.
	heir := s.partner()
	s.fault()
	s.powerOff(s.holder)
	s.loses()
	s.takes(heir)
	s.repairWaits(fmt.Sprintf("2 of the %d hosts", len(s.lab.Hosts)))
	s.writesThrough()
	s.fault()
	s.boot(off)
	s.redundant()
	s.recovered = append(s.recovered, time.Since(s.begun))
	s.writesBack()
	s.goesOn()

	t.Logf("in use again, or with two copies again, after %s", s.recovered)
	s.whole()
	s.finish()
}

// leftBy waits until another host has the copy that a host had, and that copy is current.
func (s *scene) leftBy(h *labtest.Host) {
	s.Helper()
	s.recordIs("has its second copy on another host than "+h.Name, func(v *cacheVolume) error {
		if v.Spec.HasReplica(h.Name) || len(v.Status.Outdated) > 0 || v.Status.Repair != nil || len(v.Status.WriteThrough) > 0 {
			return fmt.Errorf("replicas %q, outdated %q, repair %+v, write-through %+v", v.Spec.Replicas, v.Status.Outdated, v.Status.Repair,
				v.Status.WriteThrough)
		}
		return nil
	})
	s.recovered = append(s.recovered, time.Since(s.begun))
}

// spread fails if one host has more copies than another.
func (s *scene) spread() {
	s.Helper()
	copies := map[string]int{}
	for _, o := range append([]*scene{s}, s.others...) {
		for _, name := range o.record().Spec.Replicas {
			copies[name]++
		}
	}
	for _, h := range s.lab.Hosts {
		if copies[h.Name] != 2 { // as many volumes as hosts
			s.Errorf("%s does not have two copies: %v", h.Name, copies)
		}
	}
}
