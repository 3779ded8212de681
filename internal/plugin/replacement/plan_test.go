package replacement

import (
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/escache/escache-csi/api/v1alpha1"
)

var noon = time.Date(2027, 3, 1, 12, 0, 0, 0, time.UTC)

// group is rack1 with hosts n1, n2 and n3, which all answer but those that are down.
func group(down ...string) v1alpha1.NodeGroup {
	g := v1alpha1.NodeGroup{ObjectMeta: metav1.ObjectMeta{Name: "rack1"}, Spec: v1alpha1.NodeGroupSpec{Nodes: []string{"n1", "n2", "n3"}}}
	for _, node := range g.Spec.Nodes {
		m := v1alpha1.NodeGroupMember{Name: node, Ready: true, LastSeen: &metav1.Time{Time: noon.Add(-time.Minute)}}
		if slices.Contains(down, node) {
			m.Ready, m.Message = false, "escached on node "+node+" does not answer"
			m.LastSeen = &metav1.Time{Time: noon.Add(-10 * time.Minute)}
		}
		g.Status.Members = append(g.Status.Members, m)
	}
	return g
}

// records are those of a group whose host n3 can be replaced by n4.
func records(g v1alpha1.NodeGroup, volumes ...v1alpha1.CacheVolume) Records {
	n4 := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "n4"}}
	n4.Status.Conditions = []corev1.NodeCondition{{Type: corev1.NodeReady, Status: corev1.ConditionTrue}}
	drivers := &storagev1.CSINode{ObjectMeta: metav1.ObjectMeta{Name: "n4"}}
	drivers.Spec.Drivers = []storagev1.CSINodeDriver{{
		Name: v1alpha1.DriverName, NodeID: "n4", Allocatable: &storagev1.VolumeNodeResources{Count: new(int32(64))},
	}}
	return Records{Groups: []v1alpha1.NodeGroup{g}, Volumes: volumes, Node: n4, Drivers: drivers, Now: noon}
}

// volume has its copies on n1 and n3, and is attached to a node.
func volume(attached string, truth v1alpha1.Authority, outdated ...string) v1alpha1.CacheVolume {
	v := v1alpha1.CacheVolume{ObjectMeta: metav1.ObjectMeta{Name: "pvc-a"}}
	v.Spec = v1alpha1.CacheVolumeSpec{Group: "rack1", Replicas: []string{"n1", "n3"}, CacheBytes: 1 << 30}
	v.Status = v1alpha1.CacheVolumeStatus{AttachedNode: attached, Authority: truth, Outdated: outdated, Epoch: 3, DirtyBytes: 4096}
	return v
}

// writesThrough is a volume that is drained for an evacuation.
func writesThrough(attached string, outdated ...string) v1alpha1.CacheVolume {
	v := volume(attached, v1alpha1.AuthorityCeph, outdated...)
	v.Status.WriteThrough = []v1alpha1.WriteThroughClaim{{Owner: "evacuate-n3", Epoch: 3}}
	return v
}

func TestWhatBecomesOfEachVolume(t *testing.T) {
	const cache, ceph = v1alpha1.AuthorityCache, v1alpha1.AuthorityCeph
	flushing := volume("n3", cache)
	flushing.Status.FlushEpoch = 3
	flushingAlone := volume("n3", cache, "n1")
	flushingAlone.Status.FlushEpoch = 3
	strayed := volume("n9", cache)
	strayed.Spec.Replicas = []string{"n3", "n9"}
	strayedDirty := volume("", cache)
	strayedDirty.Spec.Replicas = []string{"n3", "n9"}
	strayedClean := volume("", ceph)
	strayedClean.Spec.Replicas = []string{"n3", "n9"}
	behind := volume("", ceph)
	behind.Status.Conditions = []metav1.Condition{{Type: v1alpha1.ConditionRecordBehindDisks, Status: metav1.ConditionTrue}}
	stopped := volume("", cache)
	stopped.Status.Phase = v1alpha1.VolumeConflict
	uncached := volume("n9", ceph, "n1", "n3")
	uncached.Status.Uncached = &v1alpha1.UncachedAttachment{Epoch: uncached.Status.Epoch}
	for _, tc := range []struct {
		name    string
		down    []string
		v       v1alpha1.CacheVolume
		refused bool
		is      string
		todo    string
	}{
		{"detached, clean", nil, volume("", ceph), false, "detached, in Ceph", "nothing"},
		{"detached, clean, host dead", []string{"n3"}, volume("", ceph), false, "detached, in Ceph", "nothing"},
		{"never attached", nil, volume("", ""), false, "detached, in Ceph", "nothing"},
		{"detached, dirty, two copies", nil, volume("", cache), false, "detached, dirty", "kubectl escache flush --volume=pvc-a --wait writes it back, without a pod"},
		{"detached, dirty, copy elsewhere, host dead", []string{"n3"}, volume("", cache, "n3"), false, "detached, dirty", "kubectl escache flush --volume=pvc-a --wait writes it back, without a pod"},
		{"detached, dirty, other copy's host dead", []string{"n1"}, volume("", cache), true, "detached, dirty, and only n3 has a current copy that can be reached", "kubectl escache flush --volume=pvc-a --wait writes it back, without a pod"},
		{"detached, dirty, only copy", nil, volume("", cache, "n1"), true, "only n3 has a current copy", "kubectl escache flush --volume=pvc-a --wait writes it back, without a pod"},
		{"detached, dirty, only copy, host dead", []string{"n3"}, volume("", cache, "n1"), true, "n3, which has the only current copy, does not answer", "kubectl escache discard-cache pvc-a --dry-run"},
		{"detached, dirty, both hosts dead", []string{"n1", "n3"}, volume("", cache), true, "n1 and n3, which have the current copies, do not answer", "discard-cache"},
		{"detached, dirty, not current there, other host dead", []string{"n1"}, volume("", cache, "n3"), false, "not current there", "kubectl escache flush --volume=pvc-a --wait writes it back, without a pod"},
		{"detached, no copy current", nil, volume("", cache, "n1", "n3"), true, "no copy is current", "discard-cache"},
		{"being written back there", nil, flushing, false, "being written back", "wait"},
		{"being written back there, only copy", nil, flushingAlone, true, "being written back", "wait"},
		{"attached there, dirty", nil, volume("n3", cache), true, "attached there, and not drained", "kubectl escache evacuate n3 --wait"},
		{"attached there, just now", nil, volume("n3", ceph), true, "attached there, and not drained", "kubectl escache evacuate n3 --wait"},
		{"attached there, only copy", nil, volume("n3", cache, "n1"), true, "attached there, and not drained", "kubectl escache evacuate n3 --wait"},
		{"attached there, drained", nil, writesThrough("n3"), false, "attached there, drained", "restart its pod"},
		{"attached there, drained, only copy", nil, writesThrough("n3", "n1"), false, "attached there, drained", "restart its pod"},
		{"attached there, host dead", []string{"n3"}, volume("n3", cache), false, "attached there", "tell Kubernetes"},
		{"attached there, drained, host dead", []string{"n3"}, writesThrough("n3"), false, "attached there", "tell Kubernetes"},
		{"attached there, only copy, host dead", []string{"n3"}, volume("n3", cache, "n1"), true, "n3, which has the only current copy, does not answer", "discard-cache"},
		{"second copy", nil, volume("n1", cache), false, "second copy there", "restart its pod"},
		{"second copy, host dead", []string{"n3"}, volume("n1", cache), false, "second copy there", "repair creates that copy"},
		{"second copy, both hosts dead", []string{"n1", "n3"}, volume("n1", cache), true, "n1 and n3, which have the current copies, do not answer", "bring n1 or n3 back"},
		{"second copy, holder's host dead", []string{"n1"}, volume("n1", cache), true, "attached to n1, which does not answer: only n3 has a current copy that can be reached", "docs/hosts/host-died.md"},
		{"second copy, holder's host dead, drained", []string{"n1"}, writesThrough("n1"), false, "second copy there", "restart its pod"},
		{"lost copy, holder's host dead", []string{"n1"}, volume("n1", cache, "n3"), false, "not current there", "repair"},
		{"lost copy", nil, volume("n1", cache, "n3"), false, "not current there", "repair creates another copy"},
		{"lost copy, host dead", []string{"n3"}, volume("n1", cache, "n3"), false, "not current there", "repair creates another copy"},
		{"holder without its disk", nil, volume("n1", cache, "n1"), true, "attached to n1, which has lost its copy: only n3 has a current one", "kubectl escache flush --volume=pvc-a --drain --wait"},
		{"holder without its disk, drained", nil, writesThrough("n1", "n1"), false, "the only copy there, drained", "restart its pod"},
		{"holder without its disk, host dead", []string{"n3"}, volume("n1", cache, "n1"), true, "does not answer", "discard-cache"},
		{"attached without a cache", nil, uncached, false, "in use without a cache, in Ceph", "nothing"},
		{"attached without a cache, host dead", []string{"n3"}, uncached, false, "in use without a cache, in Ceph", "nothing"},
		{"record made anew, copies differ", nil, stopped, true, "nothing proves which of its copies counts", "kubectl escache adopt --all"},
		{"other copy outside too", nil, strayed, true, "its other copy is on n9, which is not in the group either", "restart its pod"},
		{"other copy outside too, detached", nil, strayedDirty, true, "its other copy is on n9, which is not in the group either", "kubectl escache flush --volume=pvc-a"},
		{"other copy outside too, clean", nil, strayedClean, false, "detached, in Ceph", "nothing"},
		{"record behind its disks", nil, behind, true, "a host has data that its record does not know", "docs/restore-etcd.md"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			p, err := New("n3", "n4", records(group(tc.down...), tc.v))
			if err != nil {
				t.Fatal(err)
			}
			if len(p.Volumes) != 1 {
				t.Fatalf("%d volumes", len(p.Volumes))
			}
			v := p.Volumes[0]
			if v.Refused != tc.refused || !strings.Contains(v.Is, tc.is) || !strings.Contains(v.Then, tc.todo) {
				t.Errorf("refused %v: %s -> %s", v.Refused, v.Is, v.Then)
			}
			if refused := len(p.Refusals()) > 0; refused != tc.refused {
				t.Errorf("the whole is refused: %v, %+v", refused, p.Refusals())
			}
		})
	}
}

func TestVolumesThatAreNotThereDoNotCount(t *testing.T) {
	elsewhere, foreign := volume("n1", v1alpha1.AuthorityCache), volume("n1", v1alpha1.AuthorityCache)
	elsewhere.Spec.Replicas = []string{"n1", "n2"}
	foreign.Spec.Group = "rack7"
	p, err := New("n3", "n4", records(group(), elsewhere, foreign, volume("", v1alpha1.AuthorityCeph)))
	if err != nil || len(p.Volumes) != 1 || p.CacheBytes != 1<<30 {
		t.Errorf("%v: %+v", err, p)
	}
	if !slices.ContainsFunc(p.Notes, func(n string) bool { return strings.Contains(n, "1 volume of another group has a copy on n3") }) {
		t.Errorf("notes: %q", p.Notes)
	}
}

func TestWhatTheGroupBecomes(t *testing.T) {
	g := group()
	g.Spec.CordonedNodes = []string{"n2", "n3"}
	g.Spec.Nodes = []string{"n1", "n3", "n2"}
	p, err := New("n3", "n4", records(g))
	if err != nil || !slices.Equal(p.Nodes, []string{"n1", "n4", "n2"}) || !slices.Equal(p.CordonedNodes, []string{"n2"}) {
		t.Errorf("%v: %+v", err, p)
	}
	if !slices.Equal(p.Group.Spec.Nodes, []string{"n1", "n3", "n2"}) {
		t.Error("the record was changed")
	}
	if !p.OldAnswers || p.Done || len(p.Refusals()) > 0 || len(p.Notes) > 0 {
		t.Errorf("%+v", p)
	}
}

// A cordoned host is not ready, and answers.
func TestACordonedHostAnswers(t *testing.T) {
	g := group()
	g.Spec.CordonedNodes = []string{"n3"}
	g.Status.Members[2].Ready = false
	if p, err := New("n3", "n4", records(g)); err != nil || !p.OldAnswers {
		t.Errorf("%v: %+v", err, p)
	}
	g.Status.Members[2].LastSeen = &metav1.Time{Time: noon.Add(-3 * time.Minute)}
	if p, err := New("n3", "n4", records(g)); err != nil || p.OldAnswers {
		t.Errorf("%v: %+v", err, p)
	}
}

func TestWhatSpeaksAgainstTheHosts(t *testing.T) {
	for _, tc := range []struct {
		name    string
		change  func(*Records)
		refused bool
		says    string
		todo    string
	}{
		{"no such node", func(r *Records) { r.Node = nil }, true, "Kubernetes has no node n4", "check the spelling"},
		{"nodes cannot be read", func(r *Records) { r.Node, r.Unread = nil, true }, false, "n4 cannot be read", ""},
		{"not ready", func(r *Records) { r.Node.Status.Conditions[0].Status = corev1.ConditionUnknown }, true, "node n4 is not Ready", "kubectl describe node n4"},
		{"closed to pods", func(r *Records) { r.Node.Spec.Unschedulable = true }, false, "kubectl uncordon n4", ""},
		{"no driver", func(r *Records) { r.Drivers.Spec.Drivers = nil }, true, "csi-node has not registered on n4", "kubectl label node n4 escache.io/host=true"},
		{"no list of drivers", func(r *Records) { r.Drivers = nil }, true, "csi-node has not registered on n4", ""},
		{"no limit", func(r *Records) { r.Drivers.Spec.Drivers[0].Allocatable = nil }, false, "escached on n4 has not told csi-node", ""},
		{"another host silent", func(r *Records) { r.Groups[0] = group("n1") }, false, "n1 does not answer", ""},
		{"the group goes", func(r *Records) { r.Groups[0].DeletionTimestamp = &metav1.Time{Time: noon} }, true, "group rack1 is being deleted", ""},
		{"nobody looks", func(r *Records) { r.Groups[0] = group("n1", "n2", "n3") }, true, "no csi-controller", ""},
		{"new host in another group", func(r *Records) {
			other := group()
			other.Name, other.Spec.Nodes = "rack2", []string{"n4", "n5", "n6"}
			r.Groups = append(r.Groups, other)
		}, true, "n4 is in group rack2, and a host is in one group only", "choose another host"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			r := records(group())
			tc.change(&r)
			p, err := New("n3", "n4", r)
			if err != nil {
				t.Fatal(err)
			}
			text, todo := strings.Join(p.Notes, "\n"), ""
			for _, refusal := range p.Refusals() {
				text, todo = text+"\n"+refusal.What, todo+"\n"+refusal.Todo
			}
			if refused := len(p.Refusals()) > 0; refused != tc.refused || !strings.Contains(text, tc.says) || !strings.Contains(todo, tc.todo) {
				t.Errorf("refused %v: %s -> %s", refused, text, todo)
			}
		})
	}
}

func TestNamesThatMakeNoSense(t *testing.T) {
	for name, tc := range map[string]struct{ from, to, says string }{
		"same name":     {"n3", "n3", "docs/hosts/host-reinstalled.md"},
		"unknown":       {"n7", "n4", "node n7 is in no NodeGroup; kubectl escache status lists them"},
		"both in there": {"n3", "n2", "n2 is in group rack1 already"},
	} {
		if _, err := New(tc.from, tc.to, records(group())); err == nil || !strings.Contains(err.Error(), tc.says) {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// The command can be repeated: then it says what is left on the old host.
func TestAReplacementThatWasMade(t *testing.T) {
	g := group()
	g.Spec.Nodes[2], g.Status.Members[2].Name = "n4", "n4"
	p, err := New("n3", "n4", records(g, volume("n1", v1alpha1.AuthorityCache)))
	if err != nil || !p.Done || len(p.Volumes) != 1 || p.Volumes[0].Is != "second copy there" || len(p.Refusals()) > 0 {
		t.Errorf("%v: %+v", err, p)
	}
	if p, err = New("n3", "n4", records(g)); err != nil || !p.Done || len(p.Volumes) > 0 {
		t.Errorf("%v: %+v", err, p)
	}
}
