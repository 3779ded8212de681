package cacheflush

import (
	"strings"
	"testing"
	"time"

	"github.com/escache/escache-csi/api/v1alpha1"
	"github.com/escache/escache-csi/internal/cachevolume"
)

// left makes a volume that no node has, and that is dirty on n1 and n2.
func (w *world) left(name string, dirty int64) *v1alpha1.CacheVolume {
	w.t.Helper()
	v := w.pair(name, dirty)
	for _, node := range []string{"n1", "n2"} {
		w.fleet.Hosts[node].Release(cachevolume.Ref(v))
		w.fleet.Hosts[node].Write(cachevolume.Ref(v), dirty)
	}
	v.Status.AttachedNode, v.Status.ClientAddress = "", ""
	must(w.t, w.api.Status().Update(w.t.Context(), v))
	return w.volume(name)
}

// Whoever switches the host off afterwards must not take the second copy of such a volume away.
func TestAnEvacuationWritesBackWhatNoNodeHas(t *testing.T) {
	for _, secondCopies := range []bool{false, true} {
		w := newWorld(t)
		w.left("left", 3*mib)
		w.left("old", mib)
		w.outdated("old", "n2") // what n2 has of it is not needed
		elsewhere := w.left("elsewhere", mib)
		elsewhere.Spec.Replicas = []string{"n1", "n3"}
		must(t, w.api.Update(t.Context(), elsewhere))
		w.evacuate(secondCopies)
		f := w.until(v1alpha1.FlushDrained)
		if s := w.volume("left").Status; s.Authority != v1alpha1.AuthorityCeph || s.AttachedNode != "" {
			t.Errorf("second copies %v: the evacuation is done (%s), and of the volume the record says %+v", secondCopies, complete(f), s)
		}
		for _, other := range []string{"old", "elsewhere"} {
			if w.volume(other).Status.Authority != v1alpha1.AuthorityCache {
				t.Errorf("%s was written back: %+v", other, f.Status.Volumes)
			}
		}
	}
}

func TestAFlushOfAGroupIsForVolumesThatNoNodeHasToo(t *testing.T) {
	w := newWorld(t)
	w.left("left", mib)
	w.attach("attached", "n3", mib)
	w.flush(v1alpha1.CacheFlushSpec{NodeGroup: "g1"})
	f := w.until(v1alpha1.FlushComplete)
	if w.volume("left").Status.Authority != v1alpha1.AuthorityCeph || *w.on("n3", "attached").DirtyBytes != 0 {
		t.Errorf("%+v", f.Status.Volumes)
	}
}

// A flush of a volume that no node has needs no pod, in either mode.
func TestAFlushOfAVolumeThatNoNodeHas(t *testing.T) {
	for _, mode := range []v1alpha1.FlushMode{v1alpha1.FlushModeFlush, v1alpha1.FlushModeDrain} {
		w := newWorld(t)
		w.left("dirty", 5*mib)
		w.left("clean", 0)
		inCeph := w.left("in-ceph", 0)
		inCeph.Status.Authority = v1alpha1.AuthorityCeph
		must(t, w.api.Status().Update(t.Context(), inCeph))
		for _, name := range []string{"dirty", "clean", "in-ceph"} {
			w.flush(v1alpha1.CacheFlushSpec{Volume: name, Mode: mode})
			var s v1alpha1.FlushedVolume
			for range 3 {
				if s = of(t, w.pass(), name); s.Phase == v1alpha1.FlushComplete {
					break
				}
			}
			if v := w.volume(name); s.Phase != v1alpha1.FlushComplete || v.Status.Authority != v1alpha1.AuthorityCeph || v.Status.AttachedNode != "" {
				t.Errorf("%s of %s: %+v, record %+v", mode, name, s, v.Status)
			}
			if epoch := w.volume(name).Status.Epoch; name != "dirty" && epoch != 3 {
				t.Errorf("%s was attached for nothing, epoch %d", name, epoch)
			}
			w.remove()
			w.pass()
		}
	}
}

// The bites of a pass show how far it is, and another process goes on. The other host is dead.
func TestAFlushOfAVolumeThatNoNodeHasShowsItsProgress(t *testing.T) {
	w := newWorld(t)
	w.left("v", 6*mib)
	w.fleet.Hosts["n1"].Stop()
	w.fleet.Hosts["n2"].FlushAtMost(2 * mib)
	w.flush(v1alpha1.CacheFlushSpec{Volume: "v"})
	for _, left := range []int64{4 * mib, 2 * mib} {
		s := of(t, w.pass(), "v")
		if s.LeftBytes != left || s.TotalBytes != 6*mib || s.Phase != v1alpha1.FlushRunning || s.Node != "n2" {
			t.Fatalf("want %d left: %+v", left, s)
		}
		w.restart()
	}
	w.until(v1alpha1.FlushComplete)
}

// Nobody promises anything of such a volume before a host with a current copy is back.
func TestAnEvacuationWaitsForAVolumeThatNoNodeHas(t *testing.T) {
	w := newWorld(t)
	w.left("v", mib)
	w.attach("other", "n2", mib)
	w.fleet.Hosts["n2"].SetDisk(cachevolume.Ref(w.volume("v")), "Diskless")
	w.outdated("v", "n1")
	w.fleet.Hosts["n2"].Stop()
	w.evacuate(true)
	var f *v1alpha1.CacheFlush
	for range 3 {
		f = w.pass()
	}
	s := of(t, f, "v")
	if f.Status.Phase != v1alpha1.FlushRunning || s.Phase != v1alpha1.FlushRunning || !strings.Contains(s.Message, "n2 does not answer") {
		t.Fatalf("%s, %+v", complete(f), s)
	}
	w.fleet.Hosts["n2"].SetDisk(cachevolume.Ref(w.volume("v")), "UpToDate")
	w.fleet.Hosts["n2"].Restart(t)
	w.until(v1alpha1.FlushDrained)
	if w.volume("v").Status.Authority != v1alpha1.AuthorityCeph {
		t.Errorf("%+v", w.volume("v").Status)
	}
}

// A volume is attached elsewhere, and its host dies after the evacuation is done.
func TestAnEvacuationLearnsOfAVolumeThatNoNodeHasAnyMore(t *testing.T) {
	w := newWorld(t)
	v := w.pair("v", mib)
	w.evacuate(false)
	w.until(v1alpha1.FlushDrained)
	v = w.volume(v.Name)
	if requests := w.r.concerned(t.Context(), v); len(requests) > 0 {
		t.Errorf("it is attached elsewhere: %v", requests)
	}
	w.fleet.Hosts["n1"].Stop()
	w.fleet.Hosts["n2"].Write(cachevolume.Ref(v), mib)
	v.Status.AttachedNode = ""
	must(t, w.api.Status().Update(t.Context(), v))
	if requests := w.r.concerned(t.Context(), v); len(requests) != 1 || requests[0].Name != "f" {
		t.Errorf("nobody is told: %v", requests)
	}
	for range 5 {
		w.pass()
	}
	if s := w.volume("v").Status; s.Authority != v1alpha1.AuthorityCeph {
		t.Errorf("%+v", s)
	}
}

// A Flush ends when its time is over, and says what it waited for.
func TestAFlushOfAVolumeThatNobodyCanWriteBackGivesUp(t *testing.T) {
	w := newWorld(t)
	w.left("v", mib)
	w.outdated("v", "n1", "n2")
	w.flush(v1alpha1.CacheFlushSpec{Volume: "v", TimeoutSeconds: 60})
	if s := of(t, w.pass(), "v"); s.Phase != v1alpha1.FlushRunning || !strings.Contains(s.Message, "no current replica left") {
		t.Errorf("%+v", s)
	}
	w.wait(2 * time.Minute)
	if f := w.pass(); f.Status.Phase != v1alpha1.FlushFailed || !strings.Contains(complete(f), "no current replica left") {
		t.Errorf("%s", complete(f))
	}
}
