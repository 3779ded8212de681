package nodegroup

import (
	"context"
	"slices"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"

	"github.com/escache/escache-csi/api/v1alpha1"
)

func inGroup(name, group string, replicas ...string) *v1alpha1.CacheVolume {
	v := &v1alpha1.CacheVolume{ObjectMeta: metav1.ObjectMeta{Name: name}}
	v.Spec = v1alpha1.CacheVolumeSpec{Group: group, Replicas: replicas, CacheBytes: 60, Port: 7800, Image: name}
	return v
}

// group returns the group as it is on record, nil if it is gone.
func (b *bench) group(name string) *v1alpha1.NodeGroup {
	b.t.Helper()
	g := &v1alpha1.NodeGroup{}
	err := b.api.Get(b.t.Context(), client.ObjectKey{Name: name}, g)
	if apierrors.IsNotFound(err) {
		return nil
	}
	if err != nil {
		b.t.Fatal(err)
	}
	return g
}

func (b *bench) reconcile(name string) ctrl.Result {
	b.t.Helper()
	again, err := b.r.Reconcile(b.t.Context(), ctrl.Request{NamespacedName: client.ObjectKey{Name: name}})
	if err != nil {
		b.t.Fatal(err)
	}
	return again
}

func (b *bench) must(err error) {
	b.t.Helper()
	if err != nil {
		b.t.Fatal(err)
	}
}

func (b *bench) kept(name string) bool {
	b.t.Helper()
	g := b.group(name)
	return g != nil && slices.Contains(g.Finalizers, v1alpha1.GroupFinalizer)
}

// says returns the first Event that is about this, and drops the others.
func (b *bench) says(about string) string {
	found := ""
	for e := b.event(); e != ""; e = b.event() {
		if found == "" && strings.Contains(e, about) {
			found = e
		}
	}
	return found
}

func TestAGroupHasAFinalizerWhileItHasVolumes(t *testing.T) {
	b := newBench(t, group("g", 0, "n1", "n2", "n3"))
	b.reconcile("g")
	if b.kept("g") {
		t.Fatal("an empty group has a finalizer: it could not be deleted without csi-controller")
	}
	v := inGroup("v", "g", "n1", "n2") // of an older version, which set none
	b.must(b.api.Create(t.Context(), v))
	b.reconcile("g")
	if !b.kept("g") {
		t.Fatal("a group with a volume has none")
	}
	b.must(b.api.Delete(t.Context(), v))
	b.reconcile("g")
	if b.kept("g") {
		t.Error("the last volume is gone, and the finalizer is not")
	}
}

func TestADeletedGroupStaysForItsVolumesAndGoesWithTheLast(t *testing.T) {
	v := inGroup("pvc-1", "g", "n1", "n2")
	b := newBench(t, group("g", 0, "n1", "n2", "n3"), v)
	b.must(Rebuild(t.Context(), b.api, b.book))
	b.reconcile("g")
	b.must(b.api.Delete(t.Context(), b.group("g")))
	b.says("")
	again := b.reconcile("g")
	g := b.group("g")
	if g == nil || again.RequeueAfter == 0 {
		t.Fatal("the group is gone, or nobody looks after it")
	}
	c := meta.FindStatusCondition(g.Status.Conditions, v1alpha1.GroupDeletionBlocked)
	if c == nil || c.Status != metav1.ConditionTrue || c.Reason != v1alpha1.ReasonVolumesLeft {
		t.Fatalf("condition %+v", c)
	}
	for _, word := range []string{"pvc-1", "delete their claims", "kubectl escache release"} {
		if !strings.Contains(c.Message, word) {
			t.Errorf("the condition does not say %q: %s", word, c.Message)
		}
	}
	if e := b.says(v1alpha1.GroupDeletionBlocked); !strings.Contains(e, "pvc-1") {
		t.Errorf("no Event names the volume: %q", e)
	}
	if !b.book.Ready("g", "n1") || len(g.Status.Members) != 3 || !g.Status.Members[0].Ready {
		t.Error("its members are not polled any more: its volume would lay no replica there")
	}
	if meta.IsStatusConditionTrue(g.Status.Conditions, v1alpha1.GroupReady) {
		t.Error("it is ready for new volumes")
	}
	if _, err := b.book.Reserve("w", 1, "", nil); err == nil {
		t.Error("a new volume was placed in it")
	}
	b.reconcile("g")
	if e := b.says(v1alpha1.GroupDeletionBlocked); e != "" {
		t.Errorf("said again: %s", e)
	}
	b.must(b.api.Delete(t.Context(), v))
	b.book.Forget("pvc-1")
	b.reconcile("g")
	if b.group("g") != nil {
		t.Fatal("its last volume is gone, and the group is not")
	}
	if again := b.reconcile("g"); again.RequeueAfter != 0 {
		t.Error("a group that is gone is polled")
	}
}

func TestADeletedGroupKeepsItsNodesWhileItHasVolumes(t *testing.T) {
	old := group("old", 1, "n1", "n2", "n3")
	b := newBench(t, old, inGroup("v", "old", "n1", "n2"), group("young", 0, "n1", "n2", "n3"))
	b.reconcile("old")
	b.must(b.api.Delete(t.Context(), b.group("old")))
	if s := b.poll("young"); s.Members[0].Ready {
		t.Error("the younger group has a node on which a volume of the other one lives")
	}
}

func TestReplicasThatWaitToBeRemovedKeepAGroup(t *testing.T) {
	stale := v1alpha1.StaleReplica{Node: "n2", Volume: "gone", Pool: "p", Image: "gone", Port: 7800}
	for name, tc := range map[string]struct {
		change func(*bench, *v1alpha1.NodeGroup)
		kept   bool
	}{
		"on a host that does not answer": {func(b *bench, _ *v1alpha1.NodeGroup) { delete(b.hosts, "n2") }, true},
		"on a host that has left the group": {func(b *bench, g *v1alpha1.NodeGroup) {
			g.Spec.Nodes = []string{"n1", "n3", "n4"}
			b.must(b.api.Update(b.t.Context(), g))
		}, false},
		"on a host that Kubernetes does not know": {func(b *bench, _ *v1alpha1.NodeGroup) {
			delete(b.hosts, "n2")
			b.must(b.api.Delete(b.t.Context(), &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "n2"}}))
		}, false},
	} {
		t.Run(name, func(t *testing.T) {
			g := group("g", 0, "n1", "n2", "n3")
			g.Finalizers = []string{v1alpha1.GroupFinalizer}
			g.Status.StaleReplicas = []v1alpha1.StaleReplica{stale}
			b := newBench(t, g)
			tc.change(b, b.group("g"))
			b.must(b.api.Delete(t.Context(), b.group("g")))
			b.reconcile("g")
			is := b.group("g")
			if (is != nil) != tc.kept {
				t.Fatalf("kept: %v", is != nil)
			}
			if is == nil {
				return
			}
			c := meta.FindStatusCondition(is.Status.Conditions, v1alpha1.GroupDeletionBlocked)
			if c == nil || c.Reason != v1alpha1.ReasonReplicasLeft || !strings.Contains(c.Message, "1 on node n2") ||
				!strings.Contains(c.Message, "kubectl delete node") {
				t.Errorf("condition %+v", c)
			}
		})
	}
}

// The cache of objects may not have a volume's record yet, or the record may not be written.
func TestAVolumeThatIsBeingCreatedKeepsItsGroup(t *testing.T) {
	b := newBench(t, group("g", 0, "n1", "n2", "n3"))
	b.reconcile("g")
	place, err := b.book.Reserve("v", 60, "", nil)
	b.must(err)
	b.must(b.guard.Keep(t.Context(), place.Group))
	if !b.kept("g") {
		t.Fatal("the record may be written now, and nothing keeps the group")
	}
	b.must(b.api.Delete(t.Context(), b.group("g")))
	b.reconcile("g")
	if b.group("g") == nil {
		t.Fatal("the group was deleted below a volume that is being created")
	}
	b.book.Forget("v") // its creation has failed
	b.reconcile("g")
	if b.group("g") != nil {
		t.Error("nothing is in the group, and it stays")
	}
	if err := b.guard.Keep(t.Context(), "g"); !apierrors.IsNotFound(err) {
		t.Errorf("keeping a group that is gone: %v", err)
	}
}

// A new leader's book is empty at first.
func TestALeaderWithoutABookRemovesNoFinalizer(t *testing.T) {
	g := group("g", 0, "n1", "n2", "n3")
	g.Finalizers = []string{v1alpha1.GroupFinalizer}
	b := newBench(t, g, inGroup("v", "g", "n1", "n2"))
	if released, err := b.guard.release(t.Context(), "g", func(*v1alpha1.NodeGroup) bool { return false }); released || err != nil || !b.kept("g") {
		t.Errorf("released %v, %v", released, err)
	}
}

// The cache of objects may know already that the last volume is gone, and not yet that a replica of it
// waits to be removed.
func TestAReplicaThatWasJustGivenUpKeepsItsGroup(t *testing.T) {
	g := group("g", 0, "n1", "n2", "n3")
	g.Finalizers = []string{v1alpha1.GroupFinalizer}
	b := newBench(t, g)
	delete(b.hosts, "n2")
	b.must(b.api.Delete(t.Context(), b.group("g")))
	early := b.group("g")
	now := b.group("g")
	now.Status.StaleReplicas = []v1alpha1.StaleReplica{{Node: "n2", Volume: "gone", Pool: "p", Image: "gone", Port: 7800}}
	b.must(b.api.Status().Update(t.Context(), now))
	below, ok := b.api.(client.WithWatch)
	if !ok {
		t.Fatal("the client cannot be wrapped")
	}
	b.r.Client = interceptor.NewClient(below, interceptor.Funcs{
		Get: func(ctx context.Context, c client.WithWatch, key client.ObjectKey, o client.Object, opts ...client.GetOption) error {
			if late, is := o.(*v1alpha1.NodeGroup); is {
				early.DeepCopyInto(late)
				return nil
			}
			return c.Get(ctx, key, o, opts...)
		},
	})
	b.reconcile("g")
	if b.group("g") == nil {
		t.Error("the group is gone, and nobody will remove the replica on n2 when that is back")
	}
}

func TestWhatFollowsForReplicasOnAHostThatHasLeftIsSaid(t *testing.T) {
	volume := func(name string, change func(*v1alpha1.CacheVolumeStatus), replicas ...string) *v1alpha1.CacheVolume {
		v := inGroup(name, "g", replicas...)
		v.Status.Authority = v1alpha1.AuthorityCache
		change(&v.Status)
		return v
	}
	at := func(node string) func(*v1alpha1.CacheVolumeStatus) {
		return func(s *v1alpha1.CacheVolumeStatus) { s.AttachedNode = node }
	}
	b := newBench(t, group("g", 0, "n1", "n2", "n3"),
		volume("here", at("n1"), "n1", "n2"),
		volume("second", at("n1"), "n1", "n4"),
		volume("stays", at("n4"), "n4", "n2"),
		volume("behind", func(s *v1alpha1.CacheVolumeStatus) { s.AttachedNode, s.Outdated = "n2", []string{"n4"} }, "n2", "n4"),
		volume("dirty", at(""), "n4", "n1"),
		volume("clean", func(s *v1alpha1.CacheVolumeStatus) { s.Authority = v1alpha1.AuthorityCeph }, "n4", "n1"),
	)
	c := meta.FindStatusCondition(b.poll("g").Conditions, v1alpha1.GroupFormerMembers)
	if c == nil || c.Status != metav1.ConditionTrue {
		t.Fatalf("condition %+v", c)
	}
	for _, part := range []string{
		"node n4 is not in the group any more, and has replicas of 5 volumes",
		"attached there (stays): its pod goes on; restart it",
		"not current there (behind): repair creates another copy in the group",
		"second copy there (second): restart its pod",
		"detached, in Ceph (clean): nothing",
		"detached, dirty (dirty): kubectl escache flush --volume=NAME",
	} {
		if !strings.Contains(c.Message, part) {
			t.Errorf("it does not say %q:\n%s", part, c.Message)
		}
	}
	if strings.Contains(c.Message, "(here") {
		t.Errorf("it names a volume that has nothing there: %s", c.Message)
	}
	if e := b.says(v1alpha1.GroupFormerMembers); !strings.Contains(e, "n4") {
		t.Errorf("no Event tells of it: %q", e)
	}
	for _, name := range []string{"second", "stays", "behind", "dirty", "clean"} {
		b.must(b.api.Delete(t.Context(), &v1alpha1.CacheVolume{ObjectMeta: metav1.ObjectMeta{Name: name}}))
	}
	if c := meta.FindStatusCondition(b.poll("g").Conditions, v1alpha1.GroupFormerMembers); c != nil {
		t.Errorf("nothing is there any more: %+v", c)
	}
	if e := b.says("FormerMembersFree"); e == "" {
		t.Error("no Event says that the host is free")
	}
}
