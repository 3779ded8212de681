//go:build e2e

package chaosdriver

import (
	"context"
	"fmt"
	"time"

	"github.com/escache/escache-csi/api/v1alpha1"
	"github.com/escache/escache-csi/test/labtest"
)

// The host that has no copy gets one, or has to do without.
func thirdHostRows() []row {
	return []row{
		{when: "third host", what: "gets the volume while a host with a copy is off", run: relaidBesideDead},
		{when: "third host", what: "loses its power while the lost copy is being replaced there", run: repairBroken},
		{when: "third host", what: "the holder loses its power while the lost copy is being replaced", run: repairThenHolder},
		{when: "third host", what: "disk of the second copy dead: it gets the copy unasked", run: deadDiskRepaired},
		{when: "third host", what: "host came back empty under its old name: copy restored unasked", run: emptyHostRepaired((*scene).newDisk)},
		{when: "third host", what: "host reinstalled with empty disks: copy restored unasked", run: emptyHostRepaired((*scene).reinstalled)},
		{when: "third host", what: "host reinstalled, its NVMe kept: two current copies unasked", run: onlyRootLost},
		{when: "third host", what: "dead disk replaced by an empty one: its host gets the next copy", run: newDiskIsTarget},
		{when: "third host", what: "the holder dies and no pod comes: written back by the other host unasked", run: writtenBackWithoutAPod},
		{when: "third host", what: "the volume is deleted while a host with a copy is off", run: deletedBesideDead},
	}
}

func relaidBesideDead(s *scene) {
	s.write()
	off := s.alone()
	s.writer.Stop(s)
	s.writer = nil
	s.leaves()
	s.fault()
	s.use(s.third())
	s.recovered = append(s.recovered, time.Since(s.begun))
	s.check.Verify(s, s.holder, s.device)
	s.write()
	s.boot(off)
	s.whole()
	s.takenOver = false
	s.finish()
}

// repairs has csi-controller repair until the row ends.
func (s *scene) repairs(after string) {
	s.Helper()
	check(s, s.client.SetControllerFlags(s.Context(), "--repair-after="+after))
	s.Cleanup(func() { check(s, s.client.SetControllerFlags(context.WithoutCancel(s.Context()))) })
}

// copied waits until the volume's second copy is on a host, and current.
func (s *scene) copied(h *labtest.Host) {
	s.Helper()
	s.recordIs("has its second copy on "+h.Name, func(v *cacheVolume) error {
		if !v.Spec.HasReplica(h.Name) || len(v.Status.Outdated) > 0 || v.Status.Repair != nil || len(v.Status.WriteThrough) > 0 {
			return fmt.Errorf("replicas %q, outdated %q, repair %+v, write-through %+v", v.Spec.Replicas, v.Status.Outdated, v.Status.Repair,
				v.Status.WriteThrough)
		}
		return nil
	})
}

// deadDiskRepaired: nobody waits for a disk that is proven dead, also if its host lives.
func deadDiskRepaired(s *scene) {
	s.repairs("10m")
	s.write()
	s.diskMoves()
	s.whole()
	s.finish()
}

// diskDies has the disk of the second copy die, and the volume go on without it.
func (s *scene) diskDies() (host *labtest.Host) {
	s.Helper()
	host = s.partner()
	s.fault()
	s.lab.FailDisk(s, host)
	s.goesOn()
	s.isOutdated(host)
	return host
}

// diskMoves has the disk of the second copy die, and waits until the third host has that copy.
func (s *scene) diskMoves() (dead *labtest.Host) {
	s.Helper()
	third := s.third()
	dead = s.diskDies()
	s.copied(third)
	s.recovered = append(s.recovered, time.Since(s.begun))
	s.goesOn()
	return dead
}

// newDiskIsTarget: the host whose disk was replaced gets the next copy that is lost.
func newDiskIsTarget(s *scene) {
	s.repairs("10m")
	s.write()
	replaced := s.diskMoves()
	s.powerOff(replaced)
	s.newDisk(replaced)
	s.world.ready(s)
	s.diskMoves()
	if now := s.partner(); now != replaced {
		s.Errorf("the second copy is on %s, and %s has the new disk", now.Name, replaced.Name)
	}
	s.whole()
	s.finish()
}

// emptyHostRepaired: the host answers under its old name, and is not what it was.
func emptyHostRepaired(comesBack func(*scene, *labtest.Host)) func(*scene) {
	return func(s *scene) {
		s.repairs("10m")
		s.write()
		partner := s.alone()
		s.fault()
		comesBack(s, partner)
		s.copied(partner)
		s.recovered = append(s.recovered, time.Since(s.begun))
		s.goesOn()
		s.whole()
		s.finish()
	}
}

// reinstalled has a host that is off come back with empty disks: neither its keys, nor the secrets of its
// links, nor what its kubelet knew is there any more.
func (s *scene) reinstalled(h *labtest.Host) {
	s.Helper()
	s.lab.Reinstall(s, h)
	s.newDisk(h)
}

// onlyRootLost: the copy is on the NVMe, and the secret of its link is lost. Repair begins when the host is
// back: before that it would be one that is silent.
func onlyRootLost(s *scene) {
	s.write()
	partner := s.alone()
	s.fault()
	s.lab.Reinstall(s, partner)
	s.boot(partner)
	s.repairs("20s")
	s.redundant()
	s.recovered = append(s.recovered, time.Since(s.begun))
	s.goesOn()
	s.whole()
	s.finish()
}

// writtenBackWithoutAPod: what only one host has any more goes to Ceph, although no pod wants the volume.
func writtenBackWithoutAPod(s *scene) {
	s.repairs("15s")
	s.write()
	s.rest()
	dead, epoch := s.holder, s.record().Status.Epoch
	s.fault()
	s.powerOff(dead)
	s.loses()
	s.recordIs("is written back, and no node has it", func(v *cacheVolume) error {
		if is := v.Status; is.Authority != v1alpha1.AuthorityCeph || is.AttachedNode != "" || is.Epoch <= epoch {
			return fmt.Errorf("truth in %s, node %q, epoch %d, conditions %+v", is.Authority, is.AttachedNode, is.Epoch, is.Conditions)
		}
		return nil
	})
	s.recovered = append(s.recovered, time.Since(s.begun))
	s.inCeph()
	if told, err := s.said(s.Context(), "CacheVolume", s.volume); err != nil || told["RepairFlushing"] == "" {
		s.Errorf("nobody is told: %q, %v", told, err)
	}
	s.use(s.third())
	s.check.Verify(s, s.holder, s.device)
	s.write()
	s.boot(dead)
	s.whole()
	s.finish()
}

// repairing has csi-controller replace the lost copy, and returns as soon as it has chosen where.
func (s *scene) repairing() {
	s.Helper()
	s.repairs("10s")
	s.alone()
	third := s.third()
	s.recordIs("has its copy replaced", func(v *cacheVolume) error {
		if v.Spec.HasReplica(third.Name) || v.Status.Repair != nil && v.Status.Repair.Substitute != "" {
			return nil
		}
		return fmt.Errorf("repair %+v", v.Status.Repair)
	})
}

func repairBroken(s *scene) {
	s.write()
	third := s.third()
	s.repairing()
	s.powerOff(third)
	s.goesOn()
	s.boot(third)
	s.recordIs("has its second copy on "+third.Name, func(v *cacheVolume) error {
		if !v.Spec.HasReplica(third.Name) || v.Status.IsOutdated(third.Name) {
			return fmt.Errorf("replicas %q, outdated %q, repair %+v", v.Spec.Replicas, v.Status.Outdated, v.Status.Repair)
		}
		return nil
	})
	s.whole()
	s.finish()
}

// repairThenHolder: whatever the new copy has by then, it is used only if that is everything.
func repairThenHolder(s *scene) {
	s.write()
	holder, third := s.holder, s.third()
	s.repairing()
	s.powerOff(holder)
	s.loses()
	v := s.record()
	s.fault()
	switch {
	case v.Status.Authority == v1alpha1.AuthorityCeph: // nothing is lost, but a new cache needs two hosts
		s.refuses(third, "no other host can stand in")
		s.boot(holder)
		s.takes(third)
	case v.Spec.HasReplica(third.Name) && !v.Status.IsOutdated(third.Name):
		s.takes(third)
	default:
		s.refuses(third, "node "+holder.Name+" .*at stake")
		s.boot(holder)
		s.takes(holder)
	}
	s.whole()
	s.takenOver = false
	s.finish()
}

func deletedBesideDead(s *scene) {
	s.write()
	partner := s.partner()
	s.rest()
	s.leaves()
	s.inCeph()
	s.powerOff(partner)
	s.watch.pause()
	s.kubectl(s, "delete", "pvc", s.name, "--timeout=240s")
	s.boot(partner) // cleanUp finds what is left
}
