package repair_test

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"k8s.io/apimachinery/pkg/api/meta"

	"github.com/escache/escache-csi/api/escache"
	"github.com/escache/escache-csi/api/v1alpha1"
	"github.com/escache/escache-csi/internal/controller/repair"
)

// leave takes a volume from its holder, with so much dirty on both of its hosts.
func (w *world) leave(name string, dirty int64) {
	w.t.Helper()
	for _, node := range w.volume(name).Spec.Replicas {
		w.fleet.Hosts[node].Release(ref(name))
		w.fleet.Hosts[node].Write(ref(name), dirty)
	}
	w.record(name, func(v *v1alpha1.CacheVolume) {
		v.Status.AttachedNode, v.Status.ClientAddress, v.Status.DirtyBytes = "", "", dirty
	})
}

// until polls until the truth of the volume is in Ceph and no node has it.
func (w *world) until(name string) *v1alpha1.CacheVolume {
	w.t.Helper()
	for range 6 {
		w.steps(1)
		if s := w.volume(name).Status; s.Authority == v1alpha1.AuthorityCeph && s.AttachedNode == "" {
			return w.volume(name)
		}
	}
	w.t.Fatalf("it is not written back: %+v", w.volume(name).Status)
	return nil
}

func TestADetachedVolumeIsWrittenBackWhenItsOtherHostStaysAway(t *testing.T) {
	w := newWorld(t, "v")
	w.policy.After = 10 * time.Minute
	w.leave("v", 4096)
	w.fleet.Hosts["n1"].Stop() // its last holder, as after a forced detach
	w.poll()
	w.now = w.now.Add(2 * time.Minute)
	w.steps(1)
	if why, s := w.whyNot("v"), w.volume("v").Status; why != v1alpha1.ReasonHostSilent || s.Authority != v1alpha1.AuthorityCache {
		t.Errorf("one of two hosts is away for two minutes, and the record says %q: %+v", why, s)
	}
	w.now = w.now.Add(10 * time.Minute)
	v := w.until("v")
	if _, connected := w.fleet.Hosts["n2"].Connected(ref("v")); connected || v.Status.Epoch != 2 {
		t.Errorf("n2 still has it: %+v", v.Status)
	}
	w.at("v", "Flushing", "has not answered since")
	if !w.told("RepairFlushing") {
		t.Error("nobody is told")
	}
	w.steps(1)
	w.at("v", repair.ReasonNone, "")
	if c := meta.FindStatusCondition(w.volume("v").Status.Conditions, v1alpha1.ConditionRedundant); c == nil || c.Status != "True" {
		t.Errorf("nothing is at stake any more, and the record says %+v", c)
	}
}

func TestADetachedVolumeIsWrittenBackAtOnceIfItsSecondCopyIsLost(t *testing.T) {
	for name, tc := range map[string]struct {
		lose func(w *world)
		why  string
	}{
		"on record as outdated": {func(w *world) { w.record("v", func(v *v1alpha1.CacheVolume) { v.Status.Outdated = []string{"n2"} }) },
			v1alpha1.ReasonPeerOutdated},
		"its disk has failed": {func(w *world) { w.fleet.Hosts["n2"].SetDisk(ref("v"), escache.DiskDiskless) }, v1alpha1.ReasonPeerDiskLost},
		"its host came back empty": {func(w *world) {
			w.record("v", func(v *v1alpha1.CacheVolume) { v.Status.SetHostID("n2", w.fleet.Hosts["n2"].Host.Node().HostID) })
			w.fleet.Hosts["n2"].Replace()
		}, v1alpha1.ReasonHostReinstalled},
	} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t, "v")
			w.leave("v", 4096)
			w.steps(2)
			if v := w.volume("v"); v.Status.Authority != v1alpha1.AuthorityCache || len(v.Status.Conditions) > 0 {
				t.Fatalf("both copies are there, and the record says %+v", v.Status)
			}
			tc.lose(w)
			w.fleet.Hosts["n1"].FlushAtMost(1024)
			w.steps(1)
			if why := w.whyNot("v"); why != tc.why {
				t.Errorf("the record says %s", why)
			}
			w.steps(1)
			w.at("v", "Flushing", "3Ki are left")
			w.fleet.Hosts["n1"].FlushAtMost(0)
			w.until("v")
		})
	}
}

// What only a host has that does not answer cannot be written back. It is when the host is there again.
func TestADetachedVolumeWaitsForAHostWithACurrentCopy(t *testing.T) {
	w := newWorld(t, "v")
	w.leave("v", 4096)
	w.record("v", func(v *v1alpha1.CacheVolume) { v.Status.Outdated = []string{"n2"} })
	w.fleet.Hosts["n1"].Stop()
	w.steps(3)
	w.at("v", "Waiting", "nobody can write it back now: node n1 does not answer")
	if s := w.volume("v").Status; s.Epoch != 1 || s.AttachedNode != "" {
		t.Errorf("%+v", s)
	}
	w.fleet.Hosts["n1"].Restart(t)
	w.until("v")
}

// A pod whose attachment had it written back is gone: nobody else ends that, also where repair is off.
func TestAWriteBackThatNobodyWaitsForIsFinished(t *testing.T) {
	for name, after := range map[string]time.Duration{"repair is on": time.Minute, "repair is off": 0} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t, "v")
			w.policy.After = after
			w.restart()
			w.leave("v", 4096)
			w.record("v", func(v *v1alpha1.CacheVolume) {
				v.Status.AttachedNode, v.Status.Epoch, v.Status.FlushEpoch = "n2", 2, 2
			})
			if v := w.until("v"); v.Status.Epoch != 2 {
				t.Errorf("%+v", v.Status)
			}
		})
	}
}

func TestDetachedVolumesAreWrittenBackAFewAtATime(t *testing.T) {
	w := newWorld(t, "a", "b", "c")
	w.policy.Parallel = 2
	w.restart()
	for _, name := range []string{"a", "b", "c"} {
		w.leave(name, 4096)
		w.record(name, func(v *v1alpha1.CacheVolume) { v.Status.Outdated = []string{"n2"} })
	}
	w.fleet.Hosts["n1"].FlushAtMost(1024)
	w.poll()
	w.poll()
	var waits []string
	for _, name := range []string{"a", "b", "c"} {
		if !w.volume(name).Status.FlushAttached() {
			waits = append(waits, name)
		}
	}
	if fmt.Sprint(waits) != "[c]" {
		t.Errorf("%q wait", waits)
	}
	w.at("c", "Waiting", "2 volumes are written back already")
	w.fleet.Hosts["n1"].FlushAtMost(0)
	for _, name := range []string{"a", "b", "c"} {
		w.until(name)
	}
}

func TestADetachedVolumeIsLeftAloneWhereRepairIsOff(t *testing.T) {
	w := newWorld(t, "v")
	w.policy.After = 0
	w.leave("v", 4096)
	w.fleet.Hosts["n2"].SetDisk(ref("v"), escache.DiskDiskless)
	w.steps(2)
	if v := w.volume("v"); v.Status.Authority != v1alpha1.AuthorityCache || w.whyNot("v") != v1alpha1.ReasonPeerDiskLost {
		t.Fatalf("%+v", v.Status)
	}
	v := w.volume("v")
	v.Annotations = map[string]string{v1alpha1.AnnotationRepair: "alice"}
	check(t, w.api.Update(t.Context(), v))
	w.until("v")
	w.steps(2)
	if w.volume("v").Annotations[v1alpha1.AnnotationRepair] != "" {
		t.Error("the request was not answered")
	}
}

func TestWhoAsksForARepairOfADirtyDetachedVolumeWithTwoCopiesLearnsWhatHelps(t *testing.T) {
	w := newWorld(t, "v")
	w.leave("v", 4096)
	v := w.volume("v")
	v.Annotations = map[string]string{v1alpha1.AnnotationRepair: "alice"}
	check(t, w.api.Update(t.Context(), v))
	w.poll()
	if e := <-w.events.Events; !strings.Contains(e, "kubectl escache flush --volume=v") {
		t.Error(e)
	}
}
