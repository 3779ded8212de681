package attachment_test

import (
	"slices"
	"testing"

	"google.golang.org/grpc/codes"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/escache/escache-csi/api/escache"
	"github.com/escache/escache-csi/api/v1alpha1"
	"github.com/escache/escache-csi/internal/authority"
	"github.com/escache/escache-csi/internal/cachevolume"
	"github.com/escache/escache-csi/test/csitest"
)

// cordon keeps new replicas off hosts of the group.
func (w *world) cordon(nodes ...string) {
	w.T.Helper()
	g := &v1alpha1.NodeGroup{}
	csitest.Must(w.T, w.API.Get(w.T.Context(), client.ObjectKey{Name: "g1"}, g))
	g.Spec.CordonedNodes = nodes
	csitest.Must(w.T, w.API.Update(w.T.Context(), g))
	w.Poll()
}

// A pod is drained off a host that is evacuated, in a group of three whose third host is down.
func TestACordonedPartnerThatAnswersIsKeptIfNoOtherHostCanStandIn(t *testing.T) {
	w := newWorld(t)
	v, first, second := w.UsedBefore("pvc-1")
	third := csitest.Other(v)
	w.cordon(first)
	w.Host(third).Stop()
	w.Poll()
	_, err := w.Publish("pvc-1", second)
	csitest.Must(t, err)
	now := w.Volume("pvc-1")
	if !slices.Equal(now.Spec.Replicas, v.Spec.Replicas) || now.Spec.LinkGeneration != v.Spec.LinkGeneration ||
		now.Status.AttachedNode != second {
		t.Errorf("spec %+v, status %+v", now.Spec, now.Status)
	}
	if s := now.Status; s.Authority != v1alpha1.AuthorityCache || len(s.Outdated) > 0 {
		t.Errorf("status %+v", s)
	}
}

func TestACordonedPartnerIsLeftIfAnotherHostCanStandIn(t *testing.T) {
	w := newWorld(t)
	v, first, second := w.UsedBefore("pvc-1")
	w.cordon(first)
	_, err := w.Publish("pvc-1", second)
	csitest.Must(t, err)
	if on := w.Volume("pvc-1").Spec.Replicas; !slices.Contains(on, csitest.Other(v)) || slices.Contains(on, first) {
		t.Errorf("replicas on %v", on)
	}
}

// What a cordoned host does not have any more, or what is old there, would have to be created there again.
func TestACordonedHostGetsNoReplica(t *testing.T) {
	for what, change := range map[string]func(w *world, first string){
		"it does not answer":  func(w *world, first string) { w.Host(first).Stop() },
		"it has lost its own": func(w *world, first string) { w.Host(first).Forget() },
		"its own is old": func(w *world, first string) {
			v := w.Volume("pvc-1")
			v.Status.Outdated = []string{first}
			csitest.Must(w.T, w.API.Status().Update(w.T.Context(), v))
		},
	} {
		t.Run(what, func(t *testing.T) {
			w := newWorld(t)
			v, first, second := w.UsedBefore("pvc-1")
			change(w, first)
			w.cordon(first)
			w.Host(csitest.Other(v)).Stop()
			w.Poll()
			_, err := w.Publish("pvc-1", second)
			csitest.Wants(t, err, codes.Unavailable, "no other host can stand in")
		})
	}
}

// Whoever has evacuated a host was told that Ceph has everything of it, and that this stays so.
func TestBesideAnEvacuatedHostAVolumeWritesThroughFromTheBeginning(t *testing.T) {
	for name, tc := range map[string]struct {
		spec    func(s *v1alpha1.CacheFlushSpec)
		deleted bool
		there   bool // it is attached to that host itself
		through bool
		failed  bool // csi-controller has said that it drains nothing
	}{
		"its second copy is there":        {func(*v1alpha1.CacheFlushSpec) {}, false, false, true, false},
		"it is attached there":            {func(s *v1alpha1.CacheFlushSpec) { s.SecondCopies = false }, false, true, true, false},
		"second copies are not protected": {func(s *v1alpha1.CacheFlushSpec) { s.SecondCopies = false }, false, false, false, false},
		"the evacuation ends":             {func(*v1alpha1.CacheFlushSpec) {}, true, false, false, false},
		"the evacuation has failed":       {func(*v1alpha1.CacheFlushSpec) {}, false, false, false, true},
		"another host is evacuated":       {func(s *v1alpha1.CacheFlushSpec) { s.Node = "n9" }, false, false, false, false},
		"a flush, which does not last": {func(s *v1alpha1.CacheFlushSpec) {
			s.Mode, s.SecondCopies = v1alpha1.FlushModeFlush,
				false
		}, false, true, false, false},
		"a drain of another volume, which is named": {func(s *v1alpha1.CacheFlushSpec) { s.Node, s.Volume = "", "pvc-2" }, false, true,
			false, false},
	} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t)
			v, first, second := w.UsedBefore("pvc-1")
			w.cordon(first)
			w.Host(csitest.Other(v)).Stop()
			w.Poll()
			f := &v1alpha1.CacheFlush{ObjectMeta: metav1.ObjectMeta{Name: "evacuate", Finalizers: []string{v1alpha1.FlushFinalizer}}}
			f.Spec = v1alpha1.CacheFlushSpec{Node: first, Mode: v1alpha1.FlushModeDrain, SecondCopies: true}
			tc.spec(&f.Spec)
			if tc.failed {
				f.Status.Phase = v1alpha1.FlushFailed
			}
			csitest.Must(t, w.API.Create(t.Context(), f))
			if tc.deleted {
				csitest.Must(t, w.API.Delete(t.Context(), f))
			}
			node := second
			if tc.there {
				node = first
			}
			out, err := w.Publish("pvc-1", node)
			csitest.Must(t, err)
			v = w.Volume("pvc-1")
			through := v.Status.Authority == v1alpha1.AuthorityCeph && len(authority.Claims(v)) == 1 &&
				cachevolume.ConnectRequest(v).Options.Mode == escache.ModeWritethrough
			if through != tc.through || v.Status.AttachedNode != node || !through && len(v.Status.WriteThrough) > 0 {
				t.Errorf("status %+v", v.Status)
			}
			again, err := w.Publish("pvc-1", node)
			if err != nil || again[v1alpha1.PublishContextEpoch] != out[v1alpha1.PublishContextEpoch] {
				t.Errorf("repeated: %v, %v", again, err)
			}
			if now := w.Volume("pvc-1"); !slices.Equal(authority.Claims(now), authority.Claims(v)) ||
				now.Status.Authority != v.Status.Authority {
				t.Errorf("repeated: status %+v", now.Status)
			}
		})
	}
}
