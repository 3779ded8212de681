//go:build e2e

package chaosdriver

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"testing"
	"time"

	"k8s.io/apimachinery/pkg/api/meta"

	"github.com/escache/escache-csi/api/v1alpha1"
	"github.com/escache/escache-csi/test/labtest"
)

// fiveHosts is a group in which two hosts away are more than a third, and one is not.
const fiveHosts = 5

// TestLargerGroup loses hosts of a group of five, one after the other: the copies are spread over all of them, and each that is lost is
// made again on one of the others, unasked. Then it starts with four of the hosts, and the fifth takes the place of one that is deleted.
func TestLargerGroup(t *testing.T) {
	w := open(t)
	if len(w.lab.Hosts) < fiveHosts {
		t.Skipf("it needs a lab of %d hosts: make chaos-larger-group", fiveHosts)
	}
	for range labtest.Runs(t) {
		t.Run("three copies are lost", func(t *testing.T) { threeCopiesLost(w.largerScene(t)) })
		t.Run("a host is deleted, and another is added", func(t *testing.T) { hostDeleted(w.largerScene(t)) })
	}
}

// largerScene begins a row, once volumes can be placed on all hosts.
func (w *world) largerScene(t *testing.T) *scene {
	t.Helper()
	t.Cleanup(func() { w.cleanUp(t) })
	w.ready(t)
	s := w.newScene(t)
	t.Cleanup(func() { s.watch.end(t) })
	return s
}

func threeCopiesLost(s *scene) {
	s.repairs("30s")
	s.open()
	for range len(s.lab.Hosts) - 1 {
		s.another(nil)
	}
	s.spread(2, s.lab.Hosts) // as many volumes as hosts
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

	s.Logf("in use again, or with two copies again, after %s", s.recovered)
	s.whole()
	s.finish()
}

// hostDeleted follows docs/hosts/host-died.md for a host that will never be back, and docs/hosts/replace-a-host.md. The host had a pod, and
// the second copy of another volume. Its Node is deleted before the pod's volume is taken over. Repair does not wait for a host that has
// left the group. It would wait longer than this for one that is silent, so both copies are made again when the new host is there.
func hostDeleted(s *scene) {
	added := s.lab.Hosts[len(s.lab.Hosts)-1]
	s.leaveOut(added)
	s.repairs("10m")
	s.open()
	for range len(s.lab.Hosts) - 2 {
		s.another(nil)
	}
	s.spread(2, s.without(added)) // as many volumes as hosts
	dead, heir := s.holder, s.partner()
	second, idle := s.only("has its second copy on "+dead.Name, s.others, func(o *scene) bool { return o.partner() == dead })
	s.write()
	second.write()

	s.fault()
	second.fault()
	s.powerOff(dead)
	second.goesOn()
	s.loses()
	s.deletes(dead)
	s.takes(heir)

	s.fault()
	second.fault()
	s.escache("replace-host", dead.Name, added.Name, "--apply")
	s.allReady(s, len(s.lab.Hosts)-1)
	for _, o := range []*scene{s, second} {
		o.leftBy(dead)
		o.redundant()
		o.goesOn()
	}
	s.waitsForNobody()
	s.Logf("in use again, or with two copies again, after %s and %s", s.recovered, second.recovered)

	// The new host may have got one of both copies only, if they were made at the same time. The next volumes go where there is least.
	had := len(s.others)
	for range 2 {
		s.another(nil)
	}
	s.spread(3, s.without(dead))
	created, more := s.only("is new and has a copy on "+added.Name, s.others[had:],
		func(o *scene) bool { return o.record().Spec.HasReplica(added.Name) })
	if created.holder != added {
		created.leaves()
		created.use(added)
	}
	created.write()

	for _, o := range []*scene{created, second} {
		o.takenOver = true // the second copy of one volume is read: its holder is lost
		o.finish()
	}
	for _, o := range slices.Concat(idle, more) {
		o.remove()
	}
	s.takenOver = false // the copy that was made again was not read yet
	s.finish()
	check(s, s.waitForNothing(s.Context())) // without the host that is deleted
}

// leaveOut takes a host out of the NodeGroup until the row ends.
func (s *scene) leaveOut(h *labtest.Host) {
	s.Helper()
	s.Cleanup(func() { s.groupOf(s, s.names()) })
	var nodes []string
	for _, other := range s.without(h) {
		nodes = append(nodes, other.Name)
	}
	s.groupOf(s, nodes)
	s.allReady(s, len(nodes))
}

// without returns all hosts but one.
func (s *scene) without(h *labtest.Host) []*labtest.Host {
	return slices.DeleteFunc(slices.Clone(s.lab.Hosts), func(other *labtest.Host) bool { return other == h })
}

// only ends the pods of these volumes, except that of the first one that fits.
func (s *scene) only(what string, all []*scene, fits func(*scene) bool) (one *scene, idle []*scene) {
	s.Helper()
	for _, o := range all {
		if one == nil && fits(o) {
			one = o
			continue
		}
		o.leaves()
		idle = append(idle, o)
	}
	if one == nil {
		s.Fatalf("there is no volume that %s", what)
	}
	return one, idle
}

// deletes takes the Node of a host that is off away. The host stays off until the row ends. Then a machine with empty disks has its name,
// for the next row.
func (s *scene) deletes(h *labtest.Host) {
	s.Helper()
	s.kubectl(s, "delete", "node", h.Name)
	s.deleted = h.Name
	s.Cleanup(func() { // before cleanUp boots it
		s.deleted = ""
		ctx := context.WithoutCancel(s.Context())
		if err := errors.Join(s.client.Reinstall(ctx, h.Name), s.client.NewDisk(ctx, h.Name)); err != nil {
			s.Errorf("%v", err)
		}
	})
}

// waitsForNobody waits until the group has nothing on record about hosts outside it, or about copies that are to be removed.
func (s *scene) waitsForNobody() {
	s.Helper()
	labtest.WaitForCommand(s, "the group waits for no host", podTime, func(ctx context.Context) error {
		var g v1alpha1.NodeGroup
		err := s.get(ctx, &g, "nodegroup", group)
		outside := meta.FindStatusCondition(g.Status.Conditions, v1alpha1.GroupFormerMembers)
		if err == nil && (outside != nil || len(g.Status.StaleReplicas) > 0) {
			err = fmt.Errorf("%+v, stale replicas %+v", outside, g.Status.StaleReplicas)
		}
		return err
	})
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

// spread fails unless each of these hosts has so many copies, and no other has any.
func (s *scene) spread(copies int, on []*labtest.Host) {
	s.Helper()
	has := map[string]int{}
	for _, o := range append([]*scene{s}, s.others...) {
		for _, name := range o.record().Spec.Replicas {
			has[name]++
		}
	}
	for _, h := range s.lab.Hosts {
		want := 0
		if slices.Contains(on, h) {
			want = copies
		}
		if has[h.Name] != want {
			s.Errorf("%s does not have %d copies: %v", h.Name, want, has)
		}
	}
}
