package fallback_test

import (
	"context"
	"slices"
	"testing"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/grpc/codes"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/escache/escache-csi/api/escache"
	"github.com/escache/escache-csi/api/v1alpha1"
	"github.com/escache/escache-csi/internal/cachevolume"
	"github.com/escache/escache-csi/internal/controller/volumes"
	"github.com/escache/escache-csi/test/csitest"
)

// stageOutside maps the image on a host as its csi-node would, and returns its Ceph client.
func (w *world) stageOutside(id, node string) string {
	w.T.Helper()
	v := w.Volume(id)
	answer, err := w.Host(node).Host.Connect(context.Background(), cachevolume.ConnectRequest(v))
	csitest.Must(w.T, err)
	v.Status.ClientAddress = answer.ClientAddress
	csitest.Must(w.T, w.API.Status().Update(context.Background(), v))
	w.Images.Open[volumes.ImageOf(v)] = []string{answer.ClientAddress}
	return answer.ClientAddress
}

func (w *world) unstageOutside(id, node string) {
	w.T.Helper()
	v := w.Volume(id)
	csitest.Must(w.T, w.Host(node).Host.Stop(context.Background(), escache.StopRequest{VolumeRef: csitest.Ref(v)}))
	delete(w.Images.Open, volumes.ImageOf(v))
}

func (w *world) uncached(id string) *metav1.Condition {
	return meta.FindStatusCondition(w.Volume(id).Status.Conditions, v1alpha1.ConditionUncached)
}

func TestANodeOutsideTheGroupGetsTheVolumeWithoutACacheAndTheGroupItsCacheBack(t *testing.T) {
	w := newWorld(t)
	v := w.UsedOnce("pvc-1")
	generation := v.Spec.LinkGeneration
	for range 2 { // a repeated call finds the same attachment
		out, err := w.Publish("pvc-1", "n9")
		csitest.Must(t, err)
		s := w.Volume("pvc-1").Status
		if out[v1alpha1.PublishContextEpoch] != "2" || s.AttachedNode != "n9" || !s.UncachedAttached() ||
			s.Uncached.HostID != "disks-of-n9" ||
			s.Authority != v1alpha1.AuthorityCeph || !slices.Equal(s.Outdated, v.Spec.Replicas) {
			t.Errorf("epoch %v, status %+v", out, s)
		}
	}
	if note := w.Images.Notes[volumes.ImageOf(v)]; !note.Uncached || note.Epoch != 2 || len(note.Outdated) != 2 {
		t.Errorf("noted %+v", note)
	}
	if c := w.uncached("pvc-1"); c == nil || c.Status != metav1.ConditionTrue || c.Reason != v1alpha1.ReasonUncachedOutside {
		t.Errorf("condition %+v", c)
	}
	w.stageOutside("pvc-1", "n9")
	csitest.Wants(t, w.Unpublish("pvc-1", "n9"), codes.FailedPrecondition, "still connected")
	_, err := w.Publish("pvc-1", "n1")
	csitest.Wants(t, err, codes.FailedPrecondition, "attached to node n9")
	_, err = w.Service.CreateSnapshot(t.Context(), &csi.CreateSnapshotRequest{Name: "s", SourceVolumeId: "pvc-1"})
	csitest.Wants(t, err, codes.FailedPrecondition, "without a cache")

	w.unstageOutside("pvc-1", "n9")
	csitest.Must(t, w.Unpublish("pvc-1", "n9"))
	s := w.Volume("pvc-1").Status
	if s.AttachedNode != "" || s.Uncached != nil || len(s.Outdated) != 2 || len(s.Fenced) > 0 || s.Authority != v1alpha1.AuthorityCeph {
		t.Errorf("detached: %+v", s)
	}
	if c := w.uncached("pvc-1"); c == nil || c.Status != metav1.ConditionFalse || c.Reason != v1alpha1.ReasonUncachedDetached {
		t.Errorf("detached: condition %+v", c)
	}

	_, err = w.Publish("pvc-1", v.Spec.Replicas[1])
	csitest.Must(t, err)
	now := w.Volume("pvc-1")
	if now.Status.Authority != v1alpha1.AuthorityCache || len(now.Status.Outdated) > 0 || now.Status.UncachedAttached() ||
		w.uncached("pvc-1") != nil {
		t.Errorf("in its group again: %+v", now.Status)
	}
	if now.Spec.LinkGeneration != generation+1 {
		t.Errorf("the replicas were not created again: generation %d, before %d", now.Spec.LinkGeneration, generation)
	}
}

// A host that does not answer keeps its old cache. It must never be used again.
func TestAnOldCacheOnASilentHostIsNotUsedAgain(t *testing.T) {
	w := newWorld(t)
	v := w.UsedOnce("pvc-1")
	silent, node := v.Spec.Replicas[1], v.Spec.Replicas[0]
	w.Host(silent).Stop()
	w.Poll()
	_, err := w.Publish("pvc-1", "n9")
	csitest.Must(t, err)
	csitest.Must(t, w.Unpublish("pvc-1", "n9"))
	_, err = w.Publish("pvc-1", node)
	csitest.Must(t, err)
	if now := w.Volume("pvc-1"); now.Spec.HasReplica(silent) || len(now.Status.Outdated) > 0 &&
		!slices.Contains(now.Status.Outdated, now.Spec.Replicas[0]) {
		t.Errorf("replicas %v, outdated %v", now.Spec.Replicas, now.Status.Outdated)
	}
	if g := w.groupNow(); len(g.Status.StaleReplicas) != 1 || g.Status.StaleReplicas[0].Node != silent {
		t.Errorf("to be removed: %+v", g.Status.StaleReplicas)
	}
}

func (w *world) groupNow() *v1alpha1.NodeGroup {
	w.T.Helper()
	g := &v1alpha1.NodeGroup{}
	csitest.Must(w.T, w.API.Get(context.Background(), client.ObjectKey{Name: "g1"}, g))
	return g
}

func TestOnlyAVolumeWhoseDataIsInCephLeavesItsGroup(t *testing.T) {
	w := newWorld(t)
	v := w.MayLeave("pvc-1")
	holder := v.Spec.Replicas[0]
	_, err := w.Publish("pvc-1", holder)
	csitest.Must(t, err)
	w.Host(holder).Connect(csitest.Ref(v), "10.0.0.1:0/1")
	for _, n := range v.Spec.Replicas {
		w.Host(n).Write(csitest.Ref(v), 4096)
	}
	w.Host(holder).Release(csitest.Ref(v))
	csitest.Must(t, w.Unpublish("pvc-1", holder))
	for _, n := range v.Spec.Replicas {
		w.Host(n).Stop()
	}
	_, err = w.Publish("pvc-1", "n9")
	csitest.Wants(t, err, codes.Unavailable, "does not answer")
	if s := w.Volume("pvc-1").Status; s.AttachedNode != "" || s.Authority != v1alpha1.AuthorityCache || len(s.Outdated) > 0 {
		t.Errorf("refused, and on record %+v", s)
	}
	for _, n := range v.Spec.Replicas {
		w.Host(n).Restart(t)
	}
	_, err = w.Publish("pvc-1", "n9") // it is written back first
	csitest.Must(t, err)
	if s := w.Volume("pvc-1").Status; !s.UncachedAttached() || s.Epoch != 3 || s.Uncached.HostID == "" {
		t.Errorf("%+v", s)
	}
	for _, n := range v.Spec.Replicas {
		if dirty := w.Host(n).Status(csitest.Ref(v)).DirtyBytes; *dirty != 0 {
			t.Errorf("%s has %d bytes dirty", n, *dirty)
		}
	}
}

func TestWithoutUncachedFallbackNoNodeOutsideTheGroupGetsTheVolume(t *testing.T) {
	w := newWorld(t)
	w.Create("pvc-1")
	_, err := w.Publish("pvc-1", "n9")
	csitest.Wants(t, err, codes.FailedPrecondition, "not in the volume's group")

	w.NoFallback = true
	w.Restart()
	r := csitest.CreateRequest("pvc-2")
	r.Parameters["uncachedFallback"] = "true"
	_, err = w.Service.CreateVolume(t.Context(), r)
	csitest.Wants(t, err, codes.InvalidArgument, "controller.recovery.uncachedFallback")
}

func TestWhatAHostSaysKeepsAVolumeInItsGroup(t *testing.T) {
	for name, c := range map[string]struct {
		before func(w *world, v *v1alpha1.CacheVolume)
		code   codes.Code
		says   string
	}{
		"the node does not answer": {func(w *world, _ *v1alpha1.CacheVolume) { w.Host("n9").Stop() }, codes.Unavailable, "n9"},
		"the node has an old replica": {func(w *world, v *v1alpha1.CacheVolume) {
			csitest.Must(w.T, w.Host("n9").Lay(escache.ReplicaRequest{
				VolumeRef: csitest.Ref(v), SizeBytes: csitest.GiB, CacheBytes: 64 << 20, Port: 7900, Minor: 200,
			}))
		}, codes.FailedPrecondition, "has to go first"},
		"a copy is dirty, against the record": {func(w *world, v *v1alpha1.CacheVolume) {
			w.Host(v.Spec.Replicas[1]).Write(csitest.Ref(v), 4096)
		}, codes.FailedPrecondition, "its copy is standby (dirty)"},
		"a copy has a later attachment": {func(w *world, v *v1alpha1.CacheVolume) {
			w.Host(v.Spec.Replicas[1]).SetEpoch(csitest.Ref(v), 9)
		}, codes.FailedPrecondition, "older than the host's disks"},
	} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t)
			v := w.UsedOnce("pvc-1")
			c.before(w, v)
			_, err := w.Publish("pvc-1", "n9")
			csitest.Wants(t, err, c.code, c.says)
			if s := w.Volume("pvc-1").Status; s.AttachedNode != "" || s.Uncached != nil || len(s.Outdated) > 0 {
				t.Errorf("refused, and on record %+v", s)
			}
		})
	}
}

func TestADeadHolderWithoutACacheIsFenced(t *testing.T) {
	w := newWorld(t)
	v := w.UsedOnce("pvc-1")
	_, err := w.Publish("pvc-1", "n9")
	csitest.Must(t, err)
	mapped := w.stageOutside("pvc-1", "n9")
	w.Taint("n9")
	w.Host("n9").Stop()
	csitest.Must(t, w.Unpublish("pvc-1", "n9"))
	s := w.Volume("pvc-1").Status
	if !slices.Contains(w.Images.Fenced, mapped) || len(s.Fenced) != 1 || s.Fenced[0].Node != "n9" || s.Fenced[0].HostID != "disks-of-n9" {
		t.Errorf("fenced %v, on record %+v", w.Images.Fenced, s.Fenced)
	}
	_, err = w.Publish("pvc-1", v.Spec.Replicas[0])
	csitest.Must(t, err)
	if s := w.Volume("pvc-1").Status; s.Authority != v1alpha1.AuthorityCache || len(s.Outdated) > 0 {
		t.Errorf("%+v", s)
	}
}

// The image is mapped in the end, although its csi-node does not wait for that any more.
func TestANodeThatIsStillMappingTheImageDoesNotLoseTheVolume(t *testing.T) {
	w := newWorld(t)
	w.UsedOnce("pvc-1")
	_, err := w.Publish("pvc-1", "n9")
	csitest.Must(t, err)
	late := cachevolume.ConnectRequest(w.Volume("pvc-1"))
	asked := false
	w.Host("n9").OnMap(func() {
		asked = true
		csitest.Wants(t, w.Unpublish("pvc-1", "n9"), codes.FailedPrecondition, "has to be unstaged there first")
	})
	_, err = w.Host("n9").Host.Connect(t.Context(), late)
	csitest.Must(t, err)
	if s := w.Volume("pvc-1").Status; !asked || s.AttachedNode != "n9" {
		t.Fatalf("asked %v, on record %+v", asked, s)
	}
	csitest.Wants(t, w.Unpublish("pvc-1", "n9"), codes.FailedPrecondition, "still connected")
	w.unstageOutside("pvc-1", "n9")
	csitest.Must(t, w.Unpublish("pvc-1", "n9"))
}

// Another machine in the node's place has no map. That says nothing of the one that has.
func TestWhatAnotherMachineSaysOfAMapIsNotBelieved(t *testing.T) {
	w := newWorld(t, "other")
	w.UsedOnce("pvc-1")
	_, err := w.Publish("pvc-1", "n9")
	csitest.Must(t, err)
	mapped := w.stageOutside("pvc-1", "n9")
	w.Host("n9").GiveAddressTo(w.Host("other"))
	csitest.Must(t, w.Unpublish("pvc-1", "n9"))
	if !slices.Contains(w.Images.Fenced, mapped) {
		t.Errorf("fenced are %v, and not %s", w.Images.Fenced, mapped)
	}
}

// If the record is lost, only the image says that the caches are old.
func TestANodeGetsNothingBeforeTheImageSaysThatTheCachesAreOld(t *testing.T) {
	w := newWorld(t)
	v := w.UsedOnce("pvc-1")
	w.Images.Noting = volumes.ErrUnavailable
	for range 2 {
		_, err := w.Publish("pvc-1", "n9")
		csitest.Wants(t, err, codes.Unavailable)
	}
	w.Images.Noting = nil
	_, err := w.Publish("pvc-1", "n9")
	csitest.Must(t, err)
	if note := w.Images.Notes[volumes.ImageOf(v)]; !note.Uncached {
		t.Errorf("noted %+v", note)
	}
}

// An image that says that Ceph has everything lets a rebuild of a lost record give up the caches.
func TestANodeOfTheGroupGetsNothingBeforeTheImageSaysThatCachesMayBeDirty(t *testing.T) {
	for name, prepare := range map[string]func(*world){
		"never attached": func(w *world) { w.MayLeave("pvc-1") },
		"attached without a cache": func(w *world) {
			w.UsedOnce("pvc-1")
			_, err := w.Publish("pvc-1", "n9")
			csitest.Must(w.T, err)
			w.stageOutside("pvc-1", "n9")
			w.unstageOutside("pvc-1", "n9")
			csitest.Must(w.T, w.Unpublish("pvc-1", "n9"))
		},
	} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t)
			prepare(w)
			v := w.Volume("pvc-1")
			node := v.Spec.Replicas[0]
			w.Images.Noting = volumes.ErrUnavailable
			for range 2 {
				_, err := w.Publish("pvc-1", node)
				csitest.Wants(t, err, codes.Unavailable)
			}
			w.Images.Noting = nil
			_, err := w.Publish("pvc-1", node)
			csitest.Must(t, err)
			note := w.Images.Notes[volumes.ImageOf(v)]
			if note.InCeph() || note.AttachedNode != node || note.Epoch != w.Volume("pvc-1").Status.Epoch {
				t.Errorf("noted %+v", note)
			}
		})
	}
}

func TestWithAnOlderCRDNothingIsAttachedWithoutACache(t *testing.T) {
	w := newWorld(t)
	v := w.UsedOnce("pvc-1")
	w.Cached = csitest.WithoutUncached{Client: w.API}
	w.Restart()
	_, err := w.Publish("pvc-1", "n9")
	csitest.Wants(t, err, codes.FailedPrecondition, "apply the chart's CRDs")
	if cachevolume.ConnectRequest(w.Volume("pvc-1")).Uncached {
		t.Error("csi-node would map it")
	}
	csitest.Must(t, w.Unpublish("pvc-1", "n9"))
	_, err = w.Publish("pvc-1", v.Spec.Replicas[0])
	csitest.Must(t, err)

	w.Cached = csitest.OlderCRD{Client: w.API}
	w.Restart()
	r := csitest.CreateRequest("pvc-2")
	r.Parameters["uncachedFallback"] = "true"
	_, err = w.Service.CreateVolume(t.Context(), r)
	csitest.Wants(t, err, codes.FailedPrecondition, "apply the chart's CRDs")
}

// The node may come into the group while it has the volume. Its attachment stays what it is.
func TestANodeThatJoinsTheGroupKeepsTheVolumeWithoutACache(t *testing.T) {
	w := newWorld(t)
	w.UsedOnce("pvc-1")
	_, err := w.Publish("pvc-1", "n9")
	csitest.Must(t, err)
	g := w.groupNow()
	g.Spec.Nodes = append(g.Spec.Nodes, "n9")
	csitest.Must(t, w.API.Update(t.Context(), g))
	out, err := w.Publish("pvc-1", "n9")
	csitest.Must(t, err)
	if s := w.Volume("pvc-1").Status; out[v1alpha1.PublishContextEpoch] != "2" || !s.UncachedAttached() ||
		s.Authority != v1alpha1.AuthorityCeph {
		t.Errorf("%v %+v", out, s)
	}
}
