package repair_test

import (
	"errors"
	"slices"
	"strings"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/escache/escache-csi/api/escache"
	"github.com/escache/escache-csi/api/v1alpha1"
	"github.com/escache/escache-csi/internal/authority"
	"github.com/escache/escache-csi/internal/controller/repair"
)

const evacuation = "evacuate-n2"

// evacuate cordons n2, as kubectl escache evacuate --protect=move does, and has these volumes write through.
func (w *world) evacuate(volumes ...string) {
	w.t.Helper()
	g := &v1alpha1.NodeGroup{}
	check(w.t, w.api.Get(w.t.Context(), client.ObjectKey{Name: "g"}, g))
	g.Spec.CordonedNodes = append(g.Spec.CordonedNodes, "n2")
	check(w.t, w.api.Update(w.t.Context(), g))
	f := &v1alpha1.CacheFlush{ObjectMeta: metav1.ObjectMeta{Name: evacuation}}
	f.Spec = v1alpha1.CacheFlushSpec{Node: "n2", Mode: v1alpha1.FlushModeDrain, SecondCopies: true, MoveSecondCopies: true}
	check(w.t, w.api.Create(w.t.Context(), f))
	for _, name := range volumes {
		_, err := w.drain.Turn(w.t.Context(), name, v1alpha1.FlushOwner(evacuation))
		check(w.t, err)
		w.settle(name)
	}
}

// settle plays what the evacuation does with a volume that writes through.
func (w *world) settle(name string) {
	w.t.Helper()
	_, _, err := w.drain.Settle(w.t.Context(), name)
	check(w.t, err)
}

// uncordon ends the evacuation, as kubectl escache uncordon does.
func (w *world) uncordon(volumes ...string) {
	w.t.Helper()
	g := &v1alpha1.NodeGroup{}
	check(w.t, w.api.Get(w.t.Context(), client.ObjectKey{Name: "g"}, g))
	g.Spec.CordonedNodes = nil
	check(w.t, w.api.Update(w.t.Context(), g))
	check(w.t, w.api.Delete(w.t.Context(), &v1alpha1.CacheFlush{ObjectMeta: metav1.ObjectMeta{Name: evacuation}}))
	for _, name := range volumes {
		check(w.t, w.drain.Restore(w.t.Context(), name, v1alpha1.FlushOwner(evacuation)))
	}
}

// kept fails if the volume may become dirty while fewer than two copies count.
func (w *world) kept(name string) {
	w.t.Helper()
	v := w.volume(name)
	s := w.fleet.Hosts["n1"].Status(ref(name))
	outdated := slices.ContainsFunc(v.Spec.Replicas, v.Status.IsOutdated)
	if outdated && (v.Status.Authority != v1alpha1.AuthorityCeph || s.Mode != escache.ModeWritethrough) {
		w.t.Fatalf("it may become dirty on one copy: the cache is %s, replicas %v, status %+v", s.Mode, v.Spec.Replicas, v.Status)
	}
}

// TestMove goes through the whole move of a second copy. Before every poll another process takes over, which
// knows only what is on record.
func TestMove(t *testing.T) {
	w := newWorld(t, "v")
	holder := w.fleet.Hosts["n1"]
	holder.Write(ref("v"), 4096)
	holder.Sync(ref("v"), 100)
	step := func() { w.restart(); w.poll(); w.kept("v") }
	w.evacuate("v")
	step()
	w.at("v", "Beginning", "the copy on n2 goes to another host, as CacheFlush evacuate-n2 wants")
	for range 3 {
		step()
		w.at("v", "Draining", "4Ki are left")
		if v := w.volume("v"); !v.Spec.HasReplica("n2") || v.Status.IsOutdated("n2") {
			t.Fatalf("the copy does not count, and not everything is in Ceph: replicas %v, status %+v", v.Spec.Replicas, v.Status)
		}
	}
	holder.Write(ref("v"), 0)
	step()
	step()
	w.at("v", "Copying", "partners")
	v := w.volume("v")
	if !slices.Equal(v.Spec.Replicas, []string{"n1", "n3"}) || !v.Status.IsOutdated("n3") {
		t.Errorf("replicas %v, outdated %v", v.Spec.Replicas, v.Status.Outdated)
	}
	holder.Sync(ref("v"), 40)
	step()
	holder.Sync(ref("v"), 100)
	for range 3 {
		step()
	}
	w.at("v", repair.ReasonNone, "")
	v = w.volume("v")
	if s := v.Status; len(s.Outdated) > 0 || s.Repair != nil || len(s.WriteThrough) != 1 || s.Authority != v1alpha1.AuthorityCeph {
		t.Errorf("only the evacuation is to keep it from writing back now: %+v", s)
	}
	check(t, w.drain.Restore(t.Context(), "v", v1alpha1.FlushOwner(evacuation))) // as package cacheflush does
	step()
	if s := holder.Status(ref("v")); s.Mode != escache.ModeWriteback || w.volume("v").Status.Authority != v1alpha1.AuthorityCache {
		t.Errorf("the holder is in mode %s", s.Mode)
	}
	if w.fleet.Hosts["n2"].Has(ref("v")) || !w.fleet.Hosts["n3"].Has(ref("v")) {
		t.Errorf("replicas on %v", w.fleet.On(ref("v")))
	}
}

// The holder's answer counts, not only the record: it may have come back in its own mode, or its disk has failed.
func TestNothingIsMovedThatTheHolderDoesNotShowToBeInCeph(t *testing.T) {
	for name, change := range map[string]func(s *escache.VolumeStatus){
		"it writes back":          func(s *escache.VolumeStatus) { s.Mode = escache.ModeWriteback },
		"it is dirty":             func(s *escache.VolumeStatus) { s.DirtyBytes = new(int64(4096)) },
		"its own disk has failed": func(s *escache.VolumeStatus) { s.DiskState = escache.DiskDiskless },
		"an earlier attachment":   func(s *escache.VolumeStatus) { s.Epoch-- },
	} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t, "v")
			w.policy.Drain = false // else the volume is drained again first
			w.restart()
			w.fleet.Hosts["n1"].Sync(ref("v"), 100)
			w.evacuate("v")
			for range 2 {
				w.poll()
			}
			w.at("v", "Draining", "everything is in Ceph")
			w.fleet.Hosts["n1"].Change(ref("v"), change)
			w.poll()
			w.kept("v")
			if v := w.volume("v"); !v.Spec.HasReplica("n2") || v.Status.IsOutdated("n2") {
				t.Errorf("replicas %v, outdated %v", v.Spec.Replicas, v.Status.Outdated)
			}
		})
	}
}

func TestACopyForWhichThereIsNoOtherHostStays(t *testing.T) {
	for name, tc := range map[string]struct {
		size   int
		before func(w *world)
		says   string
	}{
		"a group of two":                   {2, func(*world) {}, "no other host of the group can take the copy on n2"},
		"the third host is down":           {3, func(w *world) { w.fleet.Hosts["n3"].Stop() }, "no other host of the group can take the copy on n2"},
		"the third host is cordoned, too":  {3, func(w *world) { w.cordon("n3") }, "no other host of the group can take the copy on n2"},
		"the third host has room for none": {3, (*world).fill, "no other host of the group can take the copy on n2"},
	} {
		t.Run(name, func(t *testing.T) {
			w := newGroup(t, tc.size, attached{"v", "n1", "n2"})
			w.fleet.Hosts["n1"].Sync(ref("v"), 100)
			tc.before(w)
			w.poll()
			w.evacuate("v")
			for range 5 {
				w.poll()
				w.kept("v")
			}
			w.at("v", v1alpha1.ReasonNoOtherHost, tc.says)
			v := w.volume("v")
			if s := v.Status; !v.Spec.HasReplica("n2") || len(s.Outdated) > 0 || s.Repair != nil || len(s.WriteThrough) != 1 || s.Authority != v1alpha1.AuthorityCeph {
				t.Errorf("replicas %v, status %+v", v.Spec.Replicas, s)
			}
			v.Annotations = map[string]string{v1alpha1.AnnotationRepair: "now"}
			check(t, w.api.Update(t.Context(), v))
			w.poll()
			if _, asked := w.volume("v").Annotations[v1alpha1.AnnotationRepair]; asked {
				t.Error("who asks for a repair gets no answer: two copies are current")
			}
			w.uncordon("v")
			w.poll()
			w.at("v", repair.ReasonNone, "")
			if s := w.fleet.Hosts["n1"].Status(ref("v")); s.Mode != escache.ModeWriteback {
				t.Errorf("the holder is in mode %s", s.Mode)
			}
		})
	}
}

// fill leaves no room on n3: a detached volume has it.
func (w *world) fill() {
	w.t.Helper()
	v := w.volume("v")
	v.Name, v.Spec.Image, v.ResourceVersion, v.Spec.CacheBytes = "big", "big", "", 980*mib
	v.Spec.Replicas, v.Spec.Port, v.Spec.Minor, v.Status = []string{"n2", "n3"}, 7900, 200, v1alpha1.CacheVolumeStatus{Phase: v1alpha1.VolumeReady}
	check(w.t, w.api.Create(w.t.Context(), v))
	w.restart()
}

func (w *world) cordon(node string) {
	w.t.Helper()
	g := &v1alpha1.NodeGroup{}
	check(w.t, w.api.Get(w.t.Context(), client.ObjectKey{Name: "g"}, g))
	g.Spec.CordonedNodes = append(g.Spec.CordonedNodes, node)
	check(w.t, w.api.Update(w.t.Context(), g))
}

// Whatever somebody has seen before who ends the repair's claim: the record decides.
func TestTheClaimOfAMoveDoesNotEndBeforeTheNewCopyCounts(t *testing.T) {
	w := newWorld(t, "v")
	w.fleet.Hosts["n1"].Sync(ref("v"), 100)
	w.evacuate("v")
	for range 4 {
		w.poll()
	}
	w.at("v", "Copying", "")
	w.uncordon("v")
	if err := w.drain.Restore(t.Context(), "v", repair.Owner); !errors.Is(err, authority.ErrRefused) {
		t.Errorf("the claim has ended: %v", err)
	}
	w.kept("v")
}

// The evacuation ends after each step of the move. Before the copy is replaced the host keeps it. Afterwards the
// new one is completed.
func TestAMoveIsCalledOff(t *testing.T) {
	for polls := 1; polls < 6; polls++ {
		w := newWorld(t, "v")
		holder := w.fleet.Hosts["n1"]
		holder.Sync(ref("v"), 100)
		w.evacuate("v")
		for range polls {
			w.poll()
		}
		replaced := !w.volume("v").Spec.HasReplica("n2")
		if replaced != (polls >= 3) {
			t.Errorf("after %d polls the copy is replaced: %v", polls, replaced)
		}
		w.uncordon("v") // package cacheflush keeps its claim for longer; the repair does not rely on that
		for range 4 {
			w.restart()
			w.poll()
			w.kept("v")
			if replaced {
				holder.Sync(ref("v"), 100)
			}
		}
		w.at("v", repair.ReasonNone, "")
		v, s := w.volume("v"), holder.Status(ref("v"))
		if v.Spec.HasReplica("n2") == replaced || len(v.Status.Outdated)+len(v.Status.WriteThrough) > 0 || v.Status.Repair != nil ||
			s.Mode != escache.ModeWriteback {
			t.Errorf("after %d polls: %s, replicas %v, status %+v", polls, s.Mode, v.Spec.Replicas, v.Status)
		}
	}
}

// The record says that the copy is outdated, and not yet where the new one is: csi-controller died there.
func TestACopyThatStayedAfterAllCountsAgain(t *testing.T) {
	w := newWorld(t, "v")
	w.fleet.Hosts["n1"].Sync(ref("v"), 100)
	w.evacuate("v")
	for range 2 {
		w.poll()
	}
	v := w.volume("v")
	v.Status.Repair.Substitute, v.Status.Outdated = "n3", []string{"n2", "n3"}
	v.Status.Summarize()
	check(t, w.api.Status().Update(t.Context(), v))
	w.uncordon()
	for range 3 {
		w.restart()
		w.poll()
		w.kept("v")
	}
	w.at("v", "Waiting", "resynchronises, and nothing is replaced")
	v = w.volume("v")
	v.Status.Outdated = []string{"n3"} // what csi-node does, because the copy is current
	v.Status.Summarize()
	check(t, w.api.Status().Update(t.Context(), v))
	for range 3 {
		w.poll()
	}
	w.at("v", repair.ReasonNone, "")
	if v := w.volume("v"); !v.Spec.HasReplica("n2") || len(v.Status.Outdated) > 0 || v.Status.Repair != nil {
		t.Errorf("replicas %v, status %+v", v.Spec.Replicas, v.Status)
	}
}

// The host with the new copy dies before that is current. The volume writes through until a third one has it.
func TestTheNewHostOfAMovedCopyDies(t *testing.T) {
	w := newGroup(t, 4, attached{"v", "n1", "n2"})
	holder := w.fleet.Hosts["n1"]
	holder.Sync(ref("v"), 100)
	w.evacuate("v")
	for range 4 {
		w.poll()
		w.kept("v")
	}
	to := w.volume("v").Status.Repair.Substitute
	w.fleet.Hosts[to].Stop()
	w.poll()
	w.now = w.now.Add(2 * time.Minute)
	for range 5 {
		w.poll()
		w.kept("v")
	}
	other := w.volume("v").Status.Repair.Substitute
	if other == to || other == "n2" {
		t.Fatalf("the next one is on %s, the first was on %s", other, to)
	}
	holder.Sync(ref("v"), 100)
	for range 3 {
		w.poll()
	}
	w.at("v", repair.ReasonNone, "")
	if v := w.volume("v"); !v.Spec.HasReplica(other) || len(v.Status.Outdated) > 0 {
		t.Errorf("replicas %v, outdated %v", v.Spec.Replicas, v.Status.Outdated)
	}
}

func TestMovesGoOneAfterTheOtherAsRepairsDo(t *testing.T) {
	w := newWorld(t, "a", "b")
	for _, name := range []string{"a", "b"} {
		w.fleet.Hosts["n1"].Sync(ref(name), 100)
	}
	w.evacuate("a", "b")
	for range 4 {
		w.poll()
	}
	w.at("a", "Copying", "")
	w.at("b", "Waiting", "copying volume a")
	if v := w.volume("b"); !v.Spec.HasReplica("n2") || v.Status.IsOutdated("n2") {
		t.Error("the copy of b does not count any more")
	}
}

// While a third of the hosts is away, and at least two, nothing is replaced, and nothing is moved.
func TestNothingIsMovedWhileRepairIsPaused(t *testing.T) {
	w := newGroup(t, 5, attached{"v", "n1", "n2"})
	w.fleet.Hosts["n1"].Sync(ref("v"), 100)
	w.fleet.Hosts["n4"].Stop()
	w.fleet.Hosts["n5"].Stop()
	w.poll()
	w.evacuate("v")
	for range 5 {
		w.poll()
	}
	w.at("v", "Waiting", "no copy is replaced")
	if v := w.volume("v"); !v.Spec.HasReplica("n2") || v.Status.IsOutdated("n2") || v.Status.Authority != v1alpha1.AuthorityCeph {
		t.Errorf("replicas %v, status %+v", v.Spec.Replicas, v.Status)
	}
}

// Only the CacheFlush that drains the volume, and that is asked for moves, moves its copy.
func TestOtherDrainsMoveNothing(t *testing.T) {
	for name, change := range map[string]func(f *v1alpha1.CacheFlush){
		"drain only":        func(f *v1alpha1.CacheFlush) { f.Spec.MoveSecondCopies = false },
		"of another host":   func(f *v1alpha1.CacheFlush) { f.Spec.Node = "n3" },
		"of the holder":     func(f *v1alpha1.CacheFlush) { f.Spec.Node = "n1" },
		"not begun with it": func(f *v1alpha1.CacheFlush) { f.Name = strings.Repeat("x", 3) },
		"ending": func(f *v1alpha1.CacheFlush) {
			f.Finalizers = []string{v1alpha1.FlushFinalizer}
		},
	} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t, "v")
			w.fleet.Hosts["n1"].Sync(ref("v"), 100)
			w.evacuate("v")
			f := &v1alpha1.CacheFlush{}
			check(t, w.api.Get(t.Context(), client.ObjectKey{Name: evacuation}, f))
			check(t, w.api.Delete(t.Context(), f.DeepCopy()))
			f.ResourceVersion = ""
			change(f)
			check(t, w.api.Create(t.Context(), f))
			if len(f.Finalizers) > 0 {
				check(t, w.api.Delete(t.Context(), f))
			}
			for range 4 {
				w.poll()
			}
			if v := w.volume("v"); v.Status.Repair != nil || !v.Spec.HasReplica("n2") || v.Status.IsOutdated("n2") {
				t.Errorf("replicas %v, status %+v", v.Spec.Replicas, v.Status)
			}
		})
	}
}
