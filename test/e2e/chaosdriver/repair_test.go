//go:build e2e

package chaosdriver

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	"k8s.io/apimachinery/pkg/api/meta"

	"github.com/escache/escache-csi/api/escache"
	"github.com/escache/escache-csi/api/v1alpha1"
	"github.com/escache/escache-csi/test/lab/labclient"
	"github.com/escache/escache-csi/test/labtest"
)

// The lost copy cannot be replaced, or what replaces it is broken.
func repairRows() []row {
	return []row{
		{when: "repair", what: "the third host is full: written through until there is room", run: thirdHostFull},
		{when: "repair", what: "two hosts of the group away, then back: nothing is replaced", run: twoHostsAway},
		{when: "repair", what: "the link is cut while it copies", run: copyBroken((*scene).cutWhileItCopies)},
		{when: "repair", what: "escached of the target is killed while it copies", run: copyBroken((*scene).killWhileItCopies)},
		{when: "repair", what: "Ceph stalls while it copies", run: copyBroken((*scene).stallWhileItCopies)},
		{when: "repair", what: "escached of all three hosts is killed in its steps", run: repairStepsKilled},
	}
}

// thirdHostFull: without room for a second copy, Ceph is the second copy.
func thirdHostFull(s *scene) {
	s.repairs("10m")
	s.write()
	third := s.third()
	room := s.fill(third)
	s.diskDies()
	s.repairWaits(third.Name + " too full")
	s.writesThrough()
	s.goesOn()
	s.fault()
	room()
	s.copied(third)
	s.recovered = append(s.recovered, time.Since(s.begun))
	s.writesBack()
	s.goesOn()
	s.whole()
	s.finish()
}

// asksHosts is longer than csi-controller takes to ask the hosts again (--poll-interval).
const asksHosts = 10 * time.Second

// fill takes all free room of a host's volume group, and returns when csi-controller knows, what gives it
// room again. An escached that starts reads its volume group at once, any other once a minute.
func (s *scene) fill(h *labtest.Host) (room func()) {
	s.Helper()
	ctx := context.WithoutCancel(s.Context())
	room = sync.OnceFunc(func() {
		if err := s.client.Fill(ctx, h.Name, true); err != nil {
			s.Errorf("%v", err)
		}
	})
	check(s, s.client.Fill(ctx, h.Name, false))
	s.Cleanup(room)
	h.KillService(s)
	labtest.WaitFor(s, h.Name+" has no room", commandTime, func(ctx context.Context) error {
		host, err := h.API.Node(ctx)
		if err == nil && host.CacheFreeBytes >= s.record().Spec.CacheBytes {
			err = fmt.Errorf("it has %d bytes", host.CacheFreeBytes)
		}
		return err
	})
	time.Sleep(asksHosts)
	return room
}

// repairWaits waits until the record and an Event say what the repair waits for.
func (s *scene) repairWaits(why string) {
	s.Helper()
	s.recordIs("has its repair wait: "+why, func(v *cacheVolume) error {
		c := meta.FindStatusCondition(v.Status.Conditions, v1alpha1.ConditionRepairing)
		if c == nil || c.Status != "True" || c.Reason != "Waiting" || !strings.Contains(c.Message, why) {
			return fmt.Errorf("%+v", c)
		}
		return nil
	})
	labtest.WaitForCommand(s, "an Event says what the repair waits for", commandTime, func(ctx context.Context) error {
		told, err := s.said(ctx, "CacheVolume", s.volume)
		if err == nil && !strings.Contains(told["RepairWaiting"], why) {
			err = fmt.Errorf("the Events say %q", told)
		}
		return err
	})
}

// writesThrough waits until Ceph has everything, and each write before it is acknowledged.
func (s *scene) writesThrough() {
	s.Helper()
	s.recordIs("writes through", func(v *cacheVolume) error {
		if v.Status.Authority != v1alpha1.AuthorityCeph || len(v.Status.WriteThrough) == 0 {
			return fmt.Errorf("its truth is in %s, claims %+v", v.Status.Authority, v.Status.WriteThrough)
		}
		return nil
	})
	if status := s.on(s.holder); status.Mode != escache.ModeWritethrough || status.DirtyBytes == nil || *status.DirtyBytes > 0 {
		s.Errorf("its truth is in Ceph, and %s has %+v", s.holder.Name, status)
	}
}

// twoHostsAway: what took two hosts at a time brings them back, with their copies.
func twoHostsAway(s *scene) {
	s.repairs("10s")
	s.write()
	pair, partner, third := s.record().Spec.Replicas, s.partner(), s.third()
	s.fault()
	s.powerOff(third)
	s.powerOff(partner)
	s.goesOn()
	s.isOutdated(partner)
	s.repairWaits("do not answer")
	s.writesThrough()
	s.goesOn()
	s.fault()
	s.boot(partner) // while one of them is away, that one is a lost host
	s.boot(third)
	s.copied(partner)
	s.recovered = append(s.recovered, time.Since(s.begun))
	if now := s.record().Spec.Replicas; !slices.Equal(now, pair) {
		s.Errorf("the copies are on %q now, and were on %q", now, pair)
	}
	s.writesBack()
	s.goesOn()
	s.whole()
	s.finish()
}

// copyBroken breaks what fills the new copy, and mends it. The link to the target is slow until then, so
// that the copy is surely under way.
func copyBroken(breaks func(s *scene, target *labtest.Host)) func(*scene) {
	return func(s *scene) {
		s.write()
		target := s.third()
		check(s, s.client.Cut(s.Context(), s.holder.Name, labclient.Cut{From: target.Name, Slow: true}))
		s.repairing()
		s.copies(target)
		s.fault()
		breaks(s, target)
		s.goesOn()
		if !s.record().Status.IsOutdated(target.Name) {
			s.Errorf("the copy on %s was not under way any more", target.Name)
		}
		check(s, s.client.Heal(s.Context()))
		s.copied(target)
		s.writesBack()
		s.goesOn()
		s.whole()
		s.finish()
	}
}

// copies waits until the holder fills the copy of a host.
func (s *scene) copies(target *labtest.Host) {
	s.Helper()
	labtest.WaitFor(s, s.holder.Name+" copies to "+target.Name, podTime, func(ctx context.Context) error {
		status, err := s.holder.API.VolumeStatus(ctx, s.image.VolumeRef)
		if err == nil && !slices.ContainsFunc(status.Peers, func(p escache.Peer) bool {
			return p.Name == target.Name && p.Linked() && p.DiskState == escache.DiskInconsistent
		}) {
			err = fmt.Errorf("its peers are %+v", status.Peers)
		}
		return err
	})
}

func (s *scene) cutWhileItCopies(target *labtest.Host) {
	s.Helper()
	s.cutBoth(s.holder, target)
}

func (s *scene) killWhileItCopies(target *labtest.Host) {
	s.Helper()
	target.KillService(s)
}

// stallWhileItCopies: the volume writes through, so its writes wait for Ceph, too.
func (s *scene) stallWhileItCopies(*labtest.Host) {
	s.Helper()
	s.lab.StallCeph(s)
	time.Sleep(20 * time.Second)
	s.lab.ResumeCeph(s)
}

// repairStepsKilled has the second copy move three times. Each time escached dies on the target where it lays
// the copy, on the holder where it takes the new partner, and on the old partner where that one removes its copy.
// The old partner is frozen meanwhile: a host that is booted forgets where it is to die.
func repairStepsKilled(s *scene) {
	s.repairs("10s")
	for _, h := range s.lab.Hosts {
		h.TraceCrashPoints(s)
	}
	s.write()
	for _, at := range []struct{ target, holder, lost string }{
		{"put_replica/lv_created", "put_replica/repeer", "delete_replica/decided"},
		{"put_replica/metadata_created", "put_replica/old_peer_left", "delete_replica/down"},
		{"put_replica/ready", "put_replica/repeered", "delete_replica/lv_removed"},
	} {
		target, lost := s.third(), s.partner()
		points := map[*labtest.Host]string{target: at.target, s.holder: at.holder, lost: at.lost}
		for h, point := range points {
			h.CrashAt(s, point)
		}
		s.fault()
		s.lab.Freeze(s, lost)
		s.goesOn()
		s.isOutdated(lost)
		s.copied(target)
		s.goesOn()
		s.lab.Thaw(s, lost)
		s.removes(lost)
		for h, point := range points {
			if !h.Crashed(s) {
				s.Errorf("%s was not reached on %s", point, h.Name)
			}
		}
	}
	s.whole()
	s.finish()
}

// removes waits until a host has nothing of the volume any more.
func (s *scene) removes(h *labtest.Host) {
	s.Helper()
	labtest.WaitFor(s, h.Name+" has removed its copy", podTime, func(ctx context.Context) error {
		status, err := h.API.VolumeStatus(ctx, s.image.VolumeRef)
		if err == nil && status.State != escache.StateAbsent {
			err = fmt.Errorf("it has %+v", *status)
		}
		return err
	})
}
