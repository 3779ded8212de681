package csi_test

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
)

// mayLeave makes a volume whose class allows nodes outside its group.
func (w *world) mayLeave(name string) *v1alpha1.CacheVolume {
	w.t.Helper()
	r := createRequest(name)
	r.Parameters["uncachedFallback"] = "true"
	out, err := w.service.CreateVolume(w.t.Context(), r)
	must(w.t, err)
	var keys []string
	for _, term := range out.GetVolume().GetAccessibleTopology() {
		for key, value := range term.GetSegments() {
			keys = append(keys, key+"="+value)
		}
	}
	if want := []string{"topology.escache.io/group=g1", "g1.uncached.escache.io/allowed=true"}; !slices.Equal(keys, want) {
		w.t.Errorf("accessible from %q, want %q", keys, want)
	}
	return w.volume(name)
}

// stageOutside maps the image on a host as its csi-node would, and returns its Ceph client.
func (w *world) stageOutside(id, node string) string {
	w.t.Helper()
	v := w.volume(id)
	answer, err := w.host(node).Host.Connect(context.Background(), cachevolume.ConnectRequest(v))
	must(w.t, err)
	v.Status.ClientAddress = answer.ClientAddress
	must(w.t, w.api.Status().Update(context.Background(), v))
	w.images.open[volumes.ImageOf(v)] = []string{answer.ClientAddress}
	return answer.ClientAddress
}

func (w *world) unstageOutside(id, node string) {
	w.t.Helper()
	v := w.volume(id)
	must(w.t, w.host(node).Host.Stop(context.Background(), escache.StopRequest{VolumeRef: ref(v)}))
	delete(w.images.open, volumes.ImageOf(v))
}

func (w *world) uncached(id string) *metav1.Condition {
	return meta.FindStatusCondition(w.volume(id).Status.Conditions, v1alpha1.ConditionUncached)
}

// used is a volume that was used in its group, is detached, and has clean caches there.
func (w *world) usedOnce(id string) *v1alpha1.CacheVolume {
	w.t.Helper()
	v := w.mayLeave(id)
	node := v.Spec.Replicas[0]
	_, err := w.publish(id, node)
	must(w.t, err)
	w.host(node).Connect(ref(v), "10.0.0.1:0/1")
	w.host(node).Release(ref(v))
	must(w.t, w.unpublish(id, node))
	return w.volume(id)
}

func TestANodeOutsideTheGroupGetsTheVolumeWithoutACacheAndTheGroupItsCacheBack(t *testing.T) {
	w := newWorld(t)
	v := w.usedOnce("pvc-1")
	generation := v.Spec.LinkGeneration
	for range 2 { // a repeated call finds the same attachment
		out, err := w.publish("pvc-1", "n9")
		must(t, err)
		s := w.volume("pvc-1").Status
		if out[v1alpha1.PublishContextEpoch] != "2" || s.AttachedNode != "n9" || !s.UncachedAttached() || s.Uncached.HostID != "disks-of-n9" ||
			s.Authority != v1alpha1.AuthorityCeph || !slices.Equal(s.Outdated, v.Spec.Replicas) {
			t.Errorf("epoch %v, status %+v", out, s)
		}
	}
	if note := w.images.notes[volumes.ImageOf(v)]; !note.Uncached || note.Epoch != 2 || len(note.Outdated) != 2 {
		t.Errorf("noted %+v", note)
	}
	if c := w.uncached("pvc-1"); c == nil || c.Status != metav1.ConditionTrue || c.Reason != v1alpha1.ReasonUncachedOutside {
		t.Errorf("condition %+v", c)
	}
	w.stageOutside("pvc-1", "n9")
	wants(t, w.unpublish("pvc-1", "n9"), codes.FailedPrecondition, "still connected")
	_, err := w.publish("pvc-1", "n1")
	wants(t, err, codes.FailedPrecondition, "attached to node n9")
	_, err = w.service.CreateSnapshot(t.Context(), &csi.CreateSnapshotRequest{Name: "s", SourceVolumeId: "pvc-1"})
	wants(t, err, codes.FailedPrecondition, "without a cache")

	w.unstageOutside("pvc-1", "n9")
	must(t, w.unpublish("pvc-1", "n9"))
	s := w.volume("pvc-1").Status
	if s.AttachedNode != "" || s.Uncached != nil || len(s.Outdated) != 2 || len(s.Fenced) > 0 || s.Authority != v1alpha1.AuthorityCeph {
		t.Errorf("detached: %+v", s)
	}
	if c := w.uncached("pvc-1"); c == nil || c.Status != metav1.ConditionFalse || c.Reason != v1alpha1.ReasonUncachedDetached {
		t.Errorf("detached: condition %+v", c)
	}

	_, err = w.publish("pvc-1", v.Spec.Replicas[1])
	must(t, err)
	now := w.volume("pvc-1")
	if now.Status.Authority != v1alpha1.AuthorityCache || len(now.Status.Outdated) > 0 || now.Status.UncachedAttached() || w.uncached("pvc-1") != nil {
		t.Errorf("in its group again: %+v", now.Status)
	}
	if now.Spec.LinkGeneration != generation+1 {
		t.Errorf("the replicas were not created again: generation %d, before %d", now.Spec.LinkGeneration, generation)
	}
}

// A host that does not answer keeps its old cache. It must never be used again.
func TestAnOldCacheOnASilentHostIsNotUsedAgain(t *testing.T) {
	w := newWorld(t)
	v := w.usedOnce("pvc-1")
	silent, node := v.Spec.Replicas[1], v.Spec.Replicas[0]
	w.host(silent).Stop()
	w.poll()
	_, err := w.publish("pvc-1", "n9")
	must(t, err)
	must(t, w.unpublish("pvc-1", "n9"))
	_, err = w.publish("pvc-1", node)
	must(t, err)
	if now := w.volume("pvc-1"); now.Spec.HasReplica(silent) || len(now.Status.Outdated) > 0 && !slices.Contains(now.Status.Outdated, now.Spec.Replicas[0]) {
		t.Errorf("replicas %v, outdated %v", now.Spec.Replicas, now.Status.Outdated)
	}
	if g := w.groupNow(); len(g.Status.StaleReplicas) != 1 || g.Status.StaleReplicas[0].Node != silent {
		t.Errorf("to be removed: %+v", g.Status.StaleReplicas)
	}
}

func (w *world) groupNow() *v1alpha1.NodeGroup {
	w.t.Helper()
	g := &v1alpha1.NodeGroup{}
	must(w.t, w.api.Get(context.Background(), client.ObjectKey{Name: "g1"}, g))
	return g
}

func TestOnlyAVolumeWhoseDataIsInCephLeavesItsGroup(t *testing.T) {
	w := newWorld(t)
	v := w.mayLeave("pvc-1")
	holder := v.Spec.Replicas[0]
	_, err := w.publish("pvc-1", holder)
	must(t, err)
	w.host(holder).Connect(ref(v), "10.0.0.1:0/1")
	for _, n := range v.Spec.Replicas {
		w.host(n).Write(ref(v), 4096)
	}
	w.host(holder).Release(ref(v))
	must(t, w.unpublish("pvc-1", holder))
	for _, n := range v.Spec.Replicas {
		w.host(n).Stop()
	}
	_, err = w.publish("pvc-1", "n9")
	wants(t, err, codes.Unavailable, "does not answer")
	if s := w.volume("pvc-1").Status; s.AttachedNode != "" || s.Authority != v1alpha1.AuthorityCache || len(s.Outdated) > 0 {
		t.Errorf("refused, and on record %+v", s)
	}
	for _, n := range v.Spec.Replicas {
		w.host(n).Restart(t)
	}
	_, err = w.publish("pvc-1", "n9") // it is written back first
	must(t, err)
	if s := w.volume("pvc-1").Status; !s.UncachedAttached() || s.Epoch != 3 || s.Uncached.HostID == "" {
		t.Errorf("%+v", s)
	}
	for _, n := range v.Spec.Replicas {
		if dirty := w.host(n).Status(ref(v)).DirtyBytes; *dirty != 0 {
			t.Errorf("%s has %d bytes dirty", n, *dirty)
		}
	}
}

func TestWithoutUncachedFallbackNoNodeOutsideTheGroupGetsTheVolume(t *testing.T) {
	w := newWorld(t)
	w.create("pvc-1")
	_, err := w.publish("pvc-1", "n9")
	wants(t, err, codes.FailedPrecondition, "not in the volume's group")

	w.noFallback = true
	w.restart()
	r := createRequest("pvc-2")
	r.Parameters["uncachedFallback"] = "true"
	_, err = w.service.CreateVolume(t.Context(), r)
	wants(t, err, codes.InvalidArgument, "controller.recovery.uncachedFallback")
}

func TestWhatAHostSaysKeepsAVolumeInItsGroup(t *testing.T) {
	for name, c := range map[string]struct {
		before func(w *world, v *v1alpha1.CacheVolume)
		code   codes.Code
		says   string
	}{
		"the node does not answer": {func(w *world, _ *v1alpha1.CacheVolume) { w.host("n9").Stop() }, codes.Unavailable, "n9"},
		"the node has an old replica": {func(w *world, v *v1alpha1.CacheVolume) {
			must(w.t, w.host("n9").Lay(escache.ReplicaRequest{
				VolumeRef: ref(v), SizeBytes: gib, CacheBytes: 64 << 20, Port: 7900, Minor: 200,
			}))
		}, codes.FailedPrecondition, "has to go first"},
		"a copy is dirty, against the record": {func(w *world, v *v1alpha1.CacheVolume) {
			w.host(v.Spec.Replicas[1]).Write(ref(v), 4096)
		}, codes.FailedPrecondition, "its copy is standby (dirty)"},
		"a copy has a later attachment": {func(w *world, v *v1alpha1.CacheVolume) {
			w.host(v.Spec.Replicas[1]).SetEpoch(ref(v), 9)
		}, codes.FailedPrecondition, "older than the host's disks"},
	} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t)
			v := w.usedOnce("pvc-1")
			c.before(w, v)
			_, err := w.publish("pvc-1", "n9")
			wants(t, err, c.code, c.says)
			if s := w.volume("pvc-1").Status; s.AttachedNode != "" || s.Uncached != nil || len(s.Outdated) > 0 {
				t.Errorf("refused, and on record %+v", s)
			}
		})
	}
}

func TestADeadHolderWithoutACacheIsFenced(t *testing.T) {
	w := newWorld(t)
	v := w.usedOnce("pvc-1")
	_, err := w.publish("pvc-1", "n9")
	must(t, err)
	mapped := w.stageOutside("pvc-1", "n9")
	w.taint("n9")
	w.host("n9").Stop()
	must(t, w.unpublish("pvc-1", "n9"))
	s := w.volume("pvc-1").Status
	if !slices.Contains(w.images.fenced, mapped) || len(s.Fenced) != 1 || s.Fenced[0].Node != "n9" || s.Fenced[0].HostID != "disks-of-n9" {
		t.Errorf("fenced %v, on record %+v", w.images.fenced, s.Fenced)
	}
	_, err = w.publish("pvc-1", v.Spec.Replicas[0])
	must(t, err)
	if s := w.volume("pvc-1").Status; s.Authority != v1alpha1.AuthorityCache || len(s.Outdated) > 0 {
		t.Errorf("%+v", s)
	}
}

// The image is mapped in the end, although its csi-node does not wait for that any more.
func TestANodeThatIsStillMappingTheImageDoesNotLoseTheVolume(t *testing.T) {
	w := newWorld(t)
	w.usedOnce("pvc-1")
	_, err := w.publish("pvc-1", "n9")
	must(t, err)
	late := cachevolume.ConnectRequest(w.volume("pvc-1"))
	asked := false
	w.host("n9").OnMap(func() {
		asked = true
		wants(t, w.unpublish("pvc-1", "n9"), codes.FailedPrecondition, "has to be unstaged there first")
	})
	_, err = w.host("n9").Host.Connect(t.Context(), late)
	must(t, err)
	if s := w.volume("pvc-1").Status; !asked || s.AttachedNode != "n9" {
		t.Fatalf("asked %v, on record %+v", asked, s)
	}
	wants(t, w.unpublish("pvc-1", "n9"), codes.FailedPrecondition, "still connected")
	w.unstageOutside("pvc-1", "n9")
	must(t, w.unpublish("pvc-1", "n9"))
}

// Another machine in the node's place has no map. That says nothing of the one that has.
func TestWhatAnotherMachineSaysOfAMapIsNotBelieved(t *testing.T) {
	w := newWorld(t, "other")
	w.usedOnce("pvc-1")
	_, err := w.publish("pvc-1", "n9")
	must(t, err)
	mapped := w.stageOutside("pvc-1", "n9")
	w.host("n9").GiveAddressTo(w.host("other"))
	must(t, w.unpublish("pvc-1", "n9"))
	if !slices.Contains(w.images.fenced, mapped) {
		t.Errorf("fenced are %v, and not %s", w.images.fenced, mapped)
	}
}

// If the record is lost, only the image says that the caches are old.
func TestANodeGetsNothingBeforeTheImageSaysThatTheCachesAreOld(t *testing.T) {
	w := newWorld(t)
	v := w.usedOnce("pvc-1")
	w.images.noting = volumes.ErrUnavailable
	for range 2 {
		_, err := w.publish("pvc-1", "n9")
		wants(t, err, codes.Unavailable)
	}
	w.images.noting = nil
	_, err := w.publish("pvc-1", "n9")
	must(t, err)
	if note := w.images.notes[volumes.ImageOf(v)]; !note.Uncached {
		t.Errorf("noted %+v", note)
	}
}

// An image that says that Ceph has everything lets a rebuild of a lost record give up the caches.
func TestANodeOfTheGroupGetsNothingBeforeTheImageSaysThatCachesMayBeDirty(t *testing.T) {
	for name, prepare := range map[string]func(*world){
		"never attached": func(w *world) { w.mayLeave("pvc-1") },
		"attached without a cache": func(w *world) {
			w.usedOnce("pvc-1")
			_, err := w.publish("pvc-1", "n9")
			must(w.t, err)
			w.stageOutside("pvc-1", "n9")
			w.unstageOutside("pvc-1", "n9")
			must(w.t, w.unpublish("pvc-1", "n9"))
		},
	} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t)
			prepare(w)
			v := w.volume("pvc-1")
			node := v.Spec.Replicas[0]
			w.images.noting = volumes.ErrUnavailable
			for range 2 {
				_, err := w.publish("pvc-1", node)
				wants(t, err, codes.Unavailable)
			}
			w.images.noting = nil
			_, err := w.publish("pvc-1", node)
			must(t, err)
			note := w.images.notes[volumes.ImageOf(v)]
			if note.InCeph() || note.AttachedNode != node || note.Epoch != w.volume("pvc-1").Status.Epoch {
				t.Errorf("noted %+v", note)
			}
		})
	}
}

// olderStatus is an API server whose CRD has no status.uncached.
type olderStatus struct{ client.Client }

func (o olderStatus) Status() client.SubResourceWriter { return olderWriter{o.Client.Status()} }

type olderWriter struct{ client.SubResourceWriter }

func (o olderWriter) Update(ctx context.Context, object client.Object, opts ...client.SubResourceUpdateOption) error {
	if v, ok := object.(*v1alpha1.CacheVolume); ok {
		v.Status.Uncached = nil
	}
	return o.SubResourceWriter.Update(ctx, object, opts...)
}

func TestWithAnOlderCRDNothingIsAttachedWithoutACache(t *testing.T) {
	w := newWorld(t)
	v := w.usedOnce("pvc-1")
	w.cached = olderStatus{w.api}
	w.restart()
	_, err := w.publish("pvc-1", "n9")
	wants(t, err, codes.FailedPrecondition, "apply the chart's CRDs")
	if cachevolume.ConnectRequest(w.volume("pvc-1")).Uncached {
		t.Error("csi-node would map it")
	}
	must(t, w.unpublish("pvc-1", "n9"))
	_, err = w.publish("pvc-1", v.Spec.Replicas[0])
	must(t, err)

	w.cached = older{w.api}
	w.restart()
	r := createRequest("pvc-2")
	r.Parameters["uncachedFallback"] = "true"
	_, err = w.service.CreateVolume(t.Context(), r)
	wants(t, err, codes.FailedPrecondition, "apply the chart's CRDs")
}

// The node may come into the group while it has the volume. Its attachment stays what it is.
func TestANodeThatJoinsTheGroupKeepsTheVolumeWithoutACache(t *testing.T) {
	w := newWorld(t)
	w.usedOnce("pvc-1")
	_, err := w.publish("pvc-1", "n9")
	must(t, err)
	g := w.groupNow()
	g.Spec.Nodes = append(g.Spec.Nodes, "n9")
	must(t, w.api.Update(t.Context(), g))
	out, err := w.publish("pvc-1", "n9")
	must(t, err)
	if s := w.volume("pvc-1").Status; out[v1alpha1.PublishContextEpoch] != "2" || !s.UncachedAttached() || s.Authority != v1alpha1.AuthorityCeph {
		t.Errorf("%v %+v", out, s)
	}
}
