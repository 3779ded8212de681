package cacheflush

import (
	"context"
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"

	"github.com/escache/escache-csi/api/escache"
	"github.com/escache/escache-csi/api/escache/escachetest"
	"github.com/escache/escache-csi/api/v1alpha1"
	"github.com/escache/escache-csi/internal/cachevolume"
)

func TestFlushOfEachKindOfTarget(t *testing.T) {
	for name, tc := range map[string]struct {
		spec    v1alpha1.CacheFlushSpec
		flushed []string
	}{
		"volume": {v1alpha1.CacheFlushSpec{Volume: "a"}, []string{"a"}},
		"claim":  {v1alpha1.CacheFlushSpec{PersistentVolumeClaim: &v1alpha1.ClaimReference{Namespace: "shop", Name: "data"}}, []string{"b"}},
		"node":   {v1alpha1.CacheFlushSpec{Node: "n1"}, []string{"a", "b"}},
		"group":  {v1alpha1.CacheFlushSpec{NodeGroup: "g1"}, []string{"a", "b", "c"}},
	} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t)
			w.attach("a", "n1", mib)
			w.attach("b", "n1", 2*mib)
			w.attach("c", "n2", 4*mib)
			w.claim("shop", "data", "b", v1alpha1.DriverName)
			w.flush(tc.spec)
			f := w.until(v1alpha1.FlushComplete)
			if f.Status.Percent != 100 || f.Status.LeftBytes != 0 || f.Status.TotalBytes == 0 || !strings.HasPrefix(complete(f), "True Clean") {
				t.Errorf("status %+v, %s", f.Status, complete(f))
			}
			var flushed []string
			for volume, node := range map[string]string{"a": "n1", "b": "n1", "c": "n2"} {
				if *w.on(node, volume).DirtyBytes == 0 {
					flushed = append(flushed, volume)
				}
				if v := w.volume(volume); v.Status.Authority != v1alpha1.AuthorityCache || len(v.Status.WriteThrough) > 0 {
					t.Errorf("a flush changed the record of %s: %+v", volume, v.Status)
				}
			}
			if slices.Sort(flushed); !slices.Equal(flushed, tc.flushed) {
				t.Errorf("flushed %v, want %v", flushed, tc.flushed)
			}
		})
	}
}

func TestTargetThatIsNotThere(t *testing.T) {
	w := newWorld(t)
	w.claim("shop", "foreign", "x", "other.csi")
	for says, spec := range map[string]v1alpha1.CacheFlushSpec{
		"no CacheVolume zz": {Volume: "zz"}, "no node n9": {Node: "n9"}, "no NodeGroup g9": {NodeGroup: "g9"},
		"no PersistentVolumeClaim shop/zz": {PersistentVolumeClaim: &v1alpha1.ClaimReference{Namespace: "shop", Name: "zz"}},
		"not a volume of csi.escache.io":   {PersistentVolumeClaim: &v1alpha1.ClaimReference{Namespace: "shop", Name: "foreign"}, Mode: "Drain"},
	} {
		w.flush(spec)
		if f := w.pass(); f.Status.Phase != v1alpha1.FlushFailed || !strings.Contains(complete(f), says) {
			t.Errorf("want %q, got %s %s", says, f.Status.Phase, complete(f))
		}
		w.remove()
		if w.pass() != nil {
			t.Error("it is still there")
		}
	}
}

// TestTheVolumeOfAnotherClaimIsNoTarget: whoever makes a claim can write any PersistentVolume into it.
func TestTheVolumeOfAnotherClaimIsNoTarget(t *testing.T) {
	for name, tc := range map[string]struct {
		ref  *corev1.ObjectReference
		says string // "": the claim has the volume
	}{
		"it has it":                  {&corev1.ObjectReference{Namespace: "shop", Name: "data", UID: "u1"}, ""},
		"it is to have it":           {&corev1.ObjectReference{Namespace: "shop", Name: "data"}, ""},
		"of another namespace":       {&corev1.ObjectReference{Namespace: "lab", Name: "data", UID: "u1"}, "another claim"},
		"of another name":            {&corev1.ObjectReference{Namespace: "shop", Name: "log", UID: "u1"}, "another claim"},
		"an earlier one of its name": {&corev1.ObjectReference{Namespace: "shop", Name: "data", UID: "u0"}, "another claim"},
		"nobody's":                   {nil, "another claim, or to none"},
	} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t)
			w.attach("b", "n1", mib)
			w.claim("shop", "data", "b", v1alpha1.DriverName)
			pv, pvc := &corev1.PersistentVolume{}, &corev1.PersistentVolumeClaim{}
			must(t, w.api.Get(t.Context(), client.ObjectKey{Name: "pv-b"}, pv))
			must(t, w.api.Get(t.Context(), client.ObjectKey{Namespace: "shop", Name: "data"}, pvc))
			pv.Spec.ClaimRef, pvc.UID = tc.ref, "u1"
			must(t, w.api.Update(t.Context(), pv))
			must(t, w.api.Update(t.Context(), pvc))
			w.flush(v1alpha1.CacheFlushSpec{PersistentVolumeClaim: &v1alpha1.ClaimReference{Namespace: "shop", Name: "data"}})
			if tc.says == "" {
				w.until(v1alpha1.FlushComplete)
				return
			}
			f := w.pass()
			if f.Status.Phase != v1alpha1.FlushFailed || !strings.Contains(complete(f), tc.says) {
				t.Errorf("want %q, got %s %s", tc.says, f.Status.Phase, complete(f))
			}
			if dirty := *w.on("n1", "b").DirtyBytes; dirty != mib {
				t.Errorf("%d bytes are dirty now", dirty)
			}
		})
	}
}

func TestDrainMovesTheTruthAndCancelBringsItBack(t *testing.T) {
	w := newWorld(t)
	w.attach("a", "n1", 50*mib)
	w.load("n1", "a", escachetest.Traffic{CephPerSecond: 200 * mib, PodPerSecond: 1000 * mib})
	w.flush(v1alpha1.CacheFlushSpec{Volume: "a", Mode: v1alpha1.FlushModeDrain})
	f := w.until(v1alpha1.FlushDrained)
	if !strings.HasPrefix(complete(f), "True Drained") || f.Status.Percent != 100 {
		t.Errorf("%s, %+v", complete(f), f.Status)
	}
	v := w.volume("a")
	if v.Status.Authority != v1alpha1.AuthorityCeph || v.Status.AttachedNode != "n1" || v.Status.LastFlushTime == nil {
		t.Errorf("record %+v", v.Status)
	}
	if s := w.on("n1", "a"); s.Mode != escache.ModeWritethrough || *s.DirtyBytes != 0 {
		t.Errorf("host %+v", s)
	}
	if f = w.pass(); f.Status.Phase != v1alpha1.FlushDrained {
		t.Errorf("looked at again: %+v", f.Status)
	}
	w.remove()
	if f = w.pass(); f != nil {
		t.Fatalf("it is still there: %s", complete(f))
	}
	if v = w.volume("a"); v.Status.Authority != v1alpha1.AuthorityCache || len(v.Status.WriteThrough) > 0 {
		t.Errorf("record after cancel %+v", v.Status)
	}
	if s := w.on("n1", "a"); s.Mode != escache.ModeWriteback {
		t.Errorf("host after cancel %+v", s)
	}
}

func TestFlushUnderLoadGivesUpAndSaysWhy(t *testing.T) {
	w := newWorld(t)
	w.attach("busy", "n1", 50*mib)
	w.attach("quiet", "n1", mib)
	w.load("n1", "busy", escachetest.Traffic{CephPerSecond: 100 * mib, PodPerSecond: 200 * mib})
	w.flush(v1alpha1.CacheFlushSpec{Node: "n1", TimeoutSeconds: 60, Parallel: 1})
	for range 4 {
		w.pass()
	}
	if f := w.record(); of(t, f, "quiet").Phase != v1alpha1.FlushComplete || f.Status.Phase != v1alpha1.FlushRunning {
		t.Fatalf("the quiet one waits for the busy one: %+v", f.Status)
	}
	w.wait(30 * time.Second)
	if f := w.pass(); !strings.Contains(complete(f), "not less dirty than") {
		t.Errorf("what it waits for is not said: %s", complete(f))
	}
	w.wait(40 * time.Second)
	f := w.pass()
	if v := of(t, f, "busy"); f.Status.Phase != v1alpha1.FlushFailed || v.Phase != v1alpha1.FlushFailed ||
		!strings.Contains(v.Message, "given up after 60 s") {
		t.Errorf("%+v", f.Status)
	}
	if f.Status.Percent == 100 || f.Status.LeftBytes == 0 {
		t.Errorf("claims to be clean: %+v", f.Status)
	}
}

func TestSilentHostIsNamedWhileOthersGoOn(t *testing.T) {
	w := newWorld(t)
	w.attach("a", "n1", mib)
	w.attach("b", "n2", mib)
	w.fleet.Hosts["n2"].Stop()
	w.flush(v1alpha1.CacheFlushSpec{NodeGroup: "g1", TimeoutSeconds: 60})
	f := w.pass()
	if of(t, f, "a").Phase != v1alpha1.FlushComplete || of(t, f, "b").Message == "" || !strings.Contains(complete(f), "b: ") {
		t.Errorf("%+v", f.Status)
	}
	w.fleet.Hosts["n2"].Restart(t)
	w.until(v1alpha1.FlushComplete)
}

func TestARecordThatOthersJustWroteIsNoFault(t *testing.T) {
	w := newWorld(t)
	w.attach("v", "n1", mib)
	others := true
	w.api = interceptor.NewClient(w.api.(client.WithWatch), interceptor.Funcs{SubResourceUpdate: func(
		ctx context.Context, c client.Client, sub string, object client.Object, options ...client.SubResourceUpdateOption,
	) error {
		if v, ok := object.(*v1alpha1.CacheVolume); ok && others {
			before := w.volume(v.Name)
			before.Status.DirtyBytes++
			must(t, c.Status().Update(ctx, before))
		}
		return c.SubResource(sub).Update(ctx, object, options...)
	}})
	w.restart()
	w.flush(v1alpha1.CacheFlushSpec{Mode: v1alpha1.FlushModeDrain, Volume: "v"})
	for range 3 {
		if got := of(t, w.pass(), "v"); got.Phase != v1alpha1.FlushRunning || got.Message != "" {
			t.Fatalf("a record that was written in between: %+v", got)
		}
	}
	others = false
	w.until(v1alpha1.FlushDrained)
}

func TestAnotherProcessGoesOn(t *testing.T) {
	w := newWorld(t)
	w.attach("a", "n1", 400*mib)
	w.attach("b", "n2", mib)
	w.load("n1", "a", escachetest.Traffic{CephPerSecond: 150 * mib})
	w.flush(v1alpha1.CacheFlushSpec{NodeGroup: "g1", Mode: v1alpha1.FlushModeDrain})
	for range 20 {
		w.restart()
		if w.pass().Status.Phase == v1alpha1.FlushDrained {
			break
		}
	}
	if f := w.record(); f.Status.Phase != v1alpha1.FlushDrained || f.Status.TotalBytes < 401*mib {
		t.Fatalf("%+v", f.Status)
	}
	w.remove()
	w.load("n1", "a", escachetest.Traffic{Refuse: escache.CodeBusy})
	if f := w.pass(); f == nil || !strings.Contains(complete(f), "Restoring") {
		t.Fatal("it went while a volume writes through")
	}
	if v := w.volume("a"); v.Status.Authority != v1alpha1.AuthorityCache {
		t.Error("the truth has to be in the cache before the mode changes")
	}
	w.load("n1", "a", escachetest.Traffic{})
	w.restart()
	if w.pass() != nil || w.on("n1", "a").Mode != escache.ModeWriteback || w.on("n2", "b").Mode != escache.ModeWriteback {
		t.Error("write-back is not restored")
	}
}

func TestTheLastClaimThatEndsRestoresWriteBack(t *testing.T) {
	w := newWorld(t)
	w.attach("a", "n1", mib)
	w.repairs("a")
	w.flush(v1alpha1.CacheFlushSpec{Volume: "a", Mode: v1alpha1.FlushModeDrain})
	w.until(v1alpha1.FlushDrained)
	w.remove()
	if w.pass() != nil {
		t.Error("it waits for the other")
	}
	if v := w.volume("a"); v.Status.Authority != v1alpha1.AuthorityCeph || w.on("n1", "a").Mode != escache.ModeWritethrough {
		t.Errorf("the other still wants it: %+v", v.Status)
	}
	must(t, w.r.Drain.Restore(t.Context(), "a", "repair"))
	if v := w.volume("a"); v.Status.Authority != v1alpha1.AuthorityCache || w.on("n1", "a").Mode != escache.ModeWriteback {
		t.Errorf("nobody wants it any more: %+v", v.Status)
	}
}

// TestAFlushKeepsNoDrainOut: a flush of what is written to all the time runs again as soon as it has
// ended. A drain that always asks in these moments would never find the volume free.
func TestAFlushKeepsNoDrainOut(t *testing.T) {
	w := newWorld(t)
	w.attach("a", "n1", mib)
	w.load("n1", "a", escachetest.Traffic{Refuse: escache.CodeBusy})
	if _, err := w.r.Drain.Turn(t.Context(), "a", "another"); err == nil {
		t.Fatal("turned although the volume is busy")
	}
	w.load("n1", "a", escachetest.Traffic{})
	w.flush(v1alpha1.CacheFlushSpec{Volume: "a"})
	f := w.pass()
	if v := of(t, f, "a"); *w.on("n1", "a").DirtyBytes != mib || v.Phase != v1alpha1.FlushRunning || !strings.Contains(v.Message, "another") {
		t.Errorf("it was flushed although another waits to drain it: %+v", v)
	}
	if _, err := w.r.Drain.Turn(t.Context(), "a", "another"); err != nil {
		t.Fatal(err)
	}
	w.fleet.Hosts["n1"].Write(cachevolume.Ref(w.volume("a")), 0)
	if _, _, err := w.r.Drain.Settle(t.Context(), "a"); err != nil {
		t.Fatal(err)
	}
	w.until(v1alpha1.FlushComplete)
}

func TestVolumeTurnedBackBehindOurBackIsDirtyAgain(t *testing.T) {
	w := newWorld(t)
	w.attach("a", "n1", mib)
	w.flush(v1alpha1.CacheFlushSpec{Volume: "a", Mode: v1alpha1.FlushModeDrain})
	w.until(v1alpha1.FlushDrained)
	w.fleet.Hosts["n1"].Stage(escache.VolumeRef{Pool: "rbd", Image: "a"}, "10.0.0.1:0/1", 3, escache.ModeWriteback)
	w.fleet.Hosts["n1"].Write(escache.VolumeRef{Pool: "rbd", Image: "a"}, 5*mib)
	if f := w.pass(); f.Status.Phase != v1alpha1.FlushRunning || w.volume("a").Status.Authority != v1alpha1.AuthorityCache {
		t.Errorf("%+v, %+v", f.Status, w.volume("a").Status)
	}
	w.until(v1alpha1.FlushDrained)
	if w.volume("a").Status.Authority != v1alpha1.AuthorityCeph {
		t.Error("not drained again")
	}
}

func TestDrainEndsWithTheMoveOfTheVolume(t *testing.T) {
	w := newWorld(t)
	w.attach("a", "n1", mib)
	w.attach("b", "n1", mib)
	w.flush(v1alpha1.CacheFlushSpec{Node: "n1", Mode: v1alpha1.FlushModeDrain})
	w.until(v1alpha1.FlushDrained)
	// a moves to n2, as unpublish and publish record it.
	v := w.volume("a")
	v.Status.AttachedNode, v.Status.Epoch, v.Status.WriteThrough, v.Status.Authority = "n2", 4, nil, v1alpha1.AuthorityCache
	must(t, w.api.Status().Update(t.Context(), v))
	w.lay(v, "n2", 4, mib)
	f := w.pass()
	if s := of(t, f, "a"); s.Phase != v1alpha1.FlushComplete || !strings.Contains(s.Message, "n2") || f.Status.Phase != v1alpha1.FlushDrained {
		t.Errorf("%+v", f.Status)
	}
	// c comes to the drained node, and a comes back.
	w.attach("c", "n1", mib)
	v = w.volume("a")
	v.Status.AttachedNode, v.Status.Epoch = "n1", 5
	must(t, w.api.Status().Update(t.Context(), v))
	w.fleet.Hosts["n1"].Stage(cachevolume.Ref(v), "10.0.0.1:0/2", 5, escache.ModeWriteback)
	w.pass()
	w.until(v1alpha1.FlushDrained)
	for _, name := range []string{"a", "b", "c"} {
		if w.volume(name).Status.Authority != v1alpha1.AuthorityCeph {
			t.Errorf("%s is not drained", name)
		}
	}
	w.remove()
	if w.pass() != nil || w.on("n2", "a").Mode != escache.ModeWriteback {
		t.Error("what was left on n2 is of no concern")
	}
}

func TestFinishedIsRemovedInTime(t *testing.T) {
	w := newWorld(t)
	w.attach("a", "n1", mib)
	w.flush(v1alpha1.CacheFlushSpec{Volume: "a", TTLSecondsAfterFinished: new(int32(100))})
	w.until(v1alpha1.FlushComplete)
	w.wait(90 * time.Second)
	if w.pass() == nil {
		t.Fatal("too early")
	}
	w.wait(11 * time.Second)
	w.pass()
	if w.pass() != nil {
		t.Error("too late")
	}
}

func TestRateBoundsANodesAverage(t *testing.T) {
	w := newWorld(t)
	for _, name := range []string{"a", "b", "c"} {
		w.attach(name, "n1", 100*mib)
	}
	w.attach("other", "n2", mib)
	w.flush(v1alpha1.CacheFlushSpec{NodeGroup: "g1", BytesPerSecond: 10 * mib, Parallel: 4})
	done := func(f *v1alpha1.CacheFlush) (n int) {
		for _, v := range f.Status.Volumes {
			if v.Node == "n1" && v.Phase == v1alpha1.FlushComplete {
				n++
			}
		}
		return n
	}
	if f := w.pass(); done(f) != 1 || of(t, f, "other").Phase != v1alpha1.FlushComplete {
		t.Fatalf("100 MiB at once, then none for 10 s: %+v", f.Status.Volumes)
	}
	w.wait(11 * time.Second)
	if f := w.pass(); done(f) != 2 {
		t.Errorf("after 11 s: %+v", f.Status.Volumes)
	}
	w.wait(11 * time.Second)
	w.until(v1alpha1.FlushComplete)
}

func TestFewVolumesOfANodeAtOnce(t *testing.T) {
	w := newWorld(t)
	for _, name := range []string{"a", "b", "c", "d", "e"} {
		w.attach(name, "n1", 30*mib)
		w.load("n1", name, escachetest.Traffic{CephPerSecond: 100 * mib})
	}
	w.flush(v1alpha1.CacheFlushSpec{Node: "n1", Parallel: 2})
	stop, most := make(chan struct{}), make(chan int)
	go func() {
		highest := 0
		for {
			highest = max(highest, w.fleet.Hosts["n1"].Flushes())
			select {
			case <-stop:
				most <- highest
				return
			case <-time.After(time.Millisecond):
			}
		}
	}()
	w.until(v1alpha1.FlushComplete)
	close(stop)
	if n := <-most; n != 2 {
		t.Errorf("%d at once, want 2", n)
	}
}

func TestClaimsOfACacheFlushThatIsGoneEnd(t *testing.T) {
	w := newWorld(t)
	w.attach("a", "n1", mib)
	if _, err := w.r.Drain.Turn(t.Context(), "a", v1alpha1.FlushOwner("f")); err != nil {
		t.Fatal(err)
	}
	requests := w.r.concerned(t.Context(), w.volume("a"))
	if len(requests) != 1 || requests[0].Name != "f" {
		t.Fatalf("%v", requests)
	}
	_, err := w.r.Reconcile(t.Context(), ctrl.Request{NamespacedName: client.ObjectKey{Name: "f"}})
	must(t, err)
	if v := w.volume("a"); len(v.Status.WriteThrough) > 0 || w.on("n1", "a").Mode != escache.ModeWriteback {
		t.Errorf("%+v", v.Status)
	}
}
