package fleet

import (
	"slices"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/escache/escache-csi/api/v1alpha1"
	"github.com/escache/escache-csi/internal/placement"
)

const gib = 1 << 30

func group(name string, nodes ...string) v1alpha1.NodeGroup {
	g := v1alpha1.NodeGroup{ObjectMeta: metav1.ObjectMeta{Name: name}}
	g.Spec.Nodes = nodes
	for _, node := range nodes {
		g.Status.Members = append(g.Status.Members, v1alpha1.NodeGroupMember{Name: node, Ready: true, CacheCapacityBytes: 100 * gib})
	}
	return g
}

func TestStateIsWhatIsOnRecord(t *testing.T) {
	first, second := group("a", "n1", "n2", "n3", "n4"), group("b", "n4", "n5", "n6")
	first.Spec.CordonedNodes = []string{"n2"}
	first.Status.Members[2].Ready = false
	first.Status.StaleReplicas = []v1alpha1.StaleReplica{{Node: "n1", CacheBytes: 30 * gib}}
	second.DeletionTimestamp = new(metav1.Now())
	v := v1alpha1.CacheVolume{ObjectMeta: metav1.ObjectMeta{Name: "v"}}
	v.Spec.Group, v.Spec.Replicas, v.Spec.CacheBytes = "a", []string{"n1", "n4"}, 10*gib
	s, err := State([]v1alpha1.NodeGroup{first, second}, []v1alpha1.CacheVolume{v, {}})
	if err != nil {
		t.Fatal(err)
	}
	usage := s.Usage()
	a, b := usage[0], usage[1]
	want := []placement.MemberUsage{
		{Name: "n1", Ready: true, CapacityBytes: 70 * gib, AllocatedBytes: 10 * gib, Replicas: 1, Primaries: 1},
		{Name: "n2", Cordoned: true, CapacityBytes: 100 * gib},
		{Name: "n3", CapacityBytes: 100 * gib},
		{Name: "n4", Ready: true, CapacityBytes: 100 * gib, AllocatedBytes: 10 * gib, Replicas: 1},
	}
	if !slices.Equal(a.Members, want) || a.Volumes != 1 || a.Cordoned {
		t.Errorf("group a: %+v", a)
	}
	if len(b.Members) != 2 || !b.Cordoned {
		t.Errorf("group b has the host of an older group, or takes volumes although it is being deleted: %+v", b)
	}
}

func TestAHostTakesWhatItsMemoryAllows(t *testing.T) {
	g := group("a", "n1", "n2", "n3")
	connectable := int64(7 * gib)
	g.Status.Members[1].ConnectableBytes, g.Status.Members[2].ConnectableBytes = &connectable, new(int64)
	s, err := State([]v1alpha1.NodeGroup{g}, nil)
	if err != nil {
		t.Fatal(err)
	}
	if got := s.Usage()[0].LargestBytes; got != connectable {
		t.Errorf("the largest cache for which two hosts have memory is one of %d bytes, want %d", got, connectable)
	}
}

func TestOnlyVolumesMoveThatNoNodeHas(t *testing.T) {
	attached := func(v *v1alpha1.CacheVolume) {
		v.Status.AttachedNode, v.Status.Epoch, v.Status.Authority = "n1", 3, v1alpha1.AuthorityCache
	}
	for name, tc := range map[string]struct {
		change func(v *v1alpha1.CacheVolume)
		says   string // empty: it can move
		later  string // the same if it may also move later
	}{
		"detached and clean": {func(*v1alpha1.CacheVolume) {}, "", ""},
		"drained": {func(v *v1alpha1.CacheVolume) {
			v.Status.AttachedNode, v.Status.Epoch = "n1", 3
			v.Status.WriteThrough = []v1alpha1.WriteThroughClaim{{Owner: "cacheflush/f", Epoch: 3}}
		}, "stop the pod", ""},
		"attached": {attached, "stop the pod", ""},
		"attached, and being repaired": {func(v *v1alpha1.CacheVolume) {
			attached(v)
			v.Status.Repair = &v1alpha1.ReplicaRepair{}
		}, "replaced", ""},
		"detached, dirty": {func(v *v1alpha1.CacheVolume) {
			v.Status.Authority, v.Spec.Replicas = v1alpha1.AuthorityCache, []string{"n1", "n2"}
		}, "", ""},
		"detached, dirty, and lost": {func(v *v1alpha1.CacheVolume) {
			v.Status.Authority, v.Spec.Replicas, v.Status.Outdated = v1alpha1.AuthorityCache, []string{"n1", "n2"}, []string{"n1", "n2"}
		}, "no copy", "no copy"},
		"asked to move":  {func(v *v1alpha1.CacheVolume) { v.Spec.MoveTo = &v1alpha1.MoveTarget{Group: "b"} }, "on its way", "on its way"},
		"moving":         {func(v *v1alpha1.CacheVolume) { v.Status.Move = &v1alpha1.VolumeMove{Group: "b"} }, "on its way", "on its way"},
		"being deleted":  {func(v *v1alpha1.CacheVolume) { v.DeletionTimestamp = new(metav1.Now()) }, "deleted", "deleted"},
		"being released": {func(v *v1alpha1.CacheVolume) { v.Spec.Release = true }, "released", "released"},
		"copies differ":  {func(v *v1alpha1.CacheVolume) { v.Status.Phase = v1alpha1.VolumeConflict }, "adopt --all", "adopt --all"},
		"being created":  {func(v *v1alpha1.CacheVolume) { v.Status.Phase = "" }, "created", "created"},
		"being repaired": {func(v *v1alpha1.CacheVolume) { v.Status.Repair = &v1alpha1.ReplicaRepair{} }, "replaced", "replaced"},
		"being written back": {func(v *v1alpha1.CacheVolume) {
			v.Status.AttachedNode, v.Status.Epoch, v.Status.FlushEpoch = "n1", 3, 3
		}, "written back", "written back"},
		"its record was set back": {func(v *v1alpha1.CacheVolume) {
			v.Status.Conditions = []metav1.Condition{{Type: v1alpha1.ConditionRecordBehindDisks, Status: metav1.ConditionTrue}}
		}, "restore-etcd", "restore-etcd"},
	} {
		t.Run(name, func(t *testing.T) {
			v := &v1alpha1.CacheVolume{}
			v.Status.Phase, v.Status.Authority = v1alpha1.VolumeReady, v1alpha1.AuthorityCeph
			tc.change(v)
			for later, want := range map[bool]string{false: tc.says, true: tc.later} {
				if got := Fixed(v, later); (got == "") != (want == "") || !strings.Contains(got, want) {
					t.Errorf("later %t: got %q, want %q", later, got, want)
				}
			}
		})
	}
}

func TestAVolumeThatMovesCountsWhereItWillBe(t *testing.T) {
	groups := []v1alpha1.NodeGroup{group("a", "n1", "n2", "n3"), group("b", "m1", "m2", "m3")}
	for name, tc := range map[string]struct {
		change func(v *v1alpha1.CacheVolume)
		a, b   int
	}{
		"it stays": {func(*v1alpha1.CacheVolume) {}, 1, 0},
		"it moves": {func(v *v1alpha1.CacheVolume) {
			v.Status.Move = &v1alpha1.VolumeMove{Group: "b", Replicas: []string{"m1", "m2"}}
		}, 0, 1},
		"it waits": {func(v *v1alpha1.CacheVolume) { v.Spec.MoveTo = &v1alpha1.MoveTarget{Group: "b"} }, 0, 1},
		"no room": {func(v *v1alpha1.CacheVolume) {
			v.Spec.MoveTo, v.Spec.CacheBytes = &v1alpha1.MoveTarget{Group: "b"}, 101*gib
		}, 1, 0},
		"no such": {func(v *v1alpha1.CacheVolume) { v.Spec.MoveTo = &v1alpha1.MoveTarget{Group: "c"} }, 1, 0},
	} {
		t.Run(name, func(t *testing.T) {
			v := v1alpha1.CacheVolume{ObjectMeta: metav1.ObjectMeta{Name: "v"}}
			v.Spec.Group, v.Spec.Replicas, v.Spec.CacheBytes = "a", []string{"n1", "n2"}, 10*gib
			tc.change(&v)
			s, err := State(groups, []v1alpha1.CacheVolume{v})
			if err != nil {
				t.Fatal(err)
			}
			if u := s.Usage(); u[0].Volumes != tc.a || u[1].Volumes != tc.b {
				t.Errorf("usage %+v", u)
			}
		})
	}
}

func TestAStorageClassAllowsTheGroupsOfItsParameterAndItsTopology(t *testing.T) {
	terms := func(keyValues ...string) []corev1.TopologySelectorTerm {
		var out []corev1.TopologySelectorTerm
		for i := 0; i < len(keyValues); i += 2 {
			out = append(out, corev1.TopologySelectorTerm{MatchLabelExpressions: []corev1.TopologySelectorLabelRequirement{
				{Key: keyValues[i], Values: strings.Split(keyValues[i+1], ",")},
			}})
		}
		return out
	}
	for name, tc := range map[string]struct {
		parameter string
		terms     []corev1.TopologySelectorTerm
		want      []string // nil: all
	}{
		"all":       {"", nil, nil},
		"parameter": {"a, b", nil, []string{"a", "b"}},
		"topology":  {"", terms(v1alpha1.TopologyKey, "b,c", v1alpha1.TopologyKey, "d"), []string{"b", "c", "d"}},
		"both":      {"a,b", terms(v1alpha1.TopologyKey, "b,c"), []string{"b"}},
		"neither":   {"a", terms(v1alpha1.TopologyKey, "b"), []string{}},
		"other key": {"", terms("zone", "b"), []string{}},
	} {
		t.Run(name, func(t *testing.T) {
			class := &storagev1.StorageClass{Parameters: map[string]string{"nodeGroups": tc.parameter}, AllowedTopologies: tc.terms}
			if got := AllowedGroups(class); !slices.Equal(got, tc.want) || (got == nil) != (tc.want == nil) {
				t.Errorf("got %#v, want %#v", got, tc.want)
			}
		})
	}
}
