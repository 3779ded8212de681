//go:build e2e

package operators

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/escache/escache-csi/api/escache"
	"github.com/escache/escache-csi/api/v1alpha1"
	"github.com/escache/escache-csi/test/kubetest"
)

// scenes are what happens in the world of a page beside its commands, and what is looked at after them. The keys are "begin
// PAGE", "end PAGE", "before PAGE: COMMAND" and "after PAGE: COMMAND".
func (w *world) scenes() map[string]func(t *testing.T) {
	const evacuate, drain = "kubectl escache evacuate n1 --wait --timeout=30m", "kubectl drain n1 --ignore-daemonsets --delete-emptydir-data"
	through := func(t *testing.T) { w.writes(t, "a", escache.ModeWritethrough, v1alpha1.AuthorityCeph) }
	back := func(t *testing.T) { w.writes(t, "a", escache.ModeWriteback, v1alpha1.AuthorityCache) }
	attach := func(name, node string) func(t *testing.T) {
		return func(t *testing.T) { w.attach(t, name, node, 20*mib) }
	}
	drained := func(node string) func(t *testing.T) { return func(t *testing.T) { w.podsEnd(t, node) } }
	newDisks := func(volume string) func(t *testing.T) { return func(t *testing.T) { w.newDisks(t, "n1", volume) } }
	moved := func(t *testing.T) { w.isIn(t, "0a1b", "rack2") }
	// n1 is cordoned until kubectl escache uncordon, so that n2 may get the copy.
	again := func(volume string) func(t *testing.T) {
		return func(t *testing.T) { w.twoCopies(t, volume, "n3", "n1", "n2") }
	}
	backAgain := func(volume string) func(t *testing.T) {
		return func(t *testing.T) { w.writes(t, volume, escache.ModeWriteback, v1alpha1.AuthorityCache) }
	}
	return map[string]func(t *testing.T){
		"after plan-a-migration: " + evacuate:                                                          through,
		"after plan-a-migration: kubectl escache uncordon n1":                                          back,
		"after plan-a-migration: kubectl escache flush --volume=pvc-data-app-2 --wait":                 w.writtenBack("data-app-2"),
		"after hosts/rolling-reboot: kubectl escache evacuate n1 --protect=drain --wait --timeout=30m": through,
		"after hosts/rolling-reboot: kubectl escache uncordon n1 --timeout=30m":                        back,
		"after cache-disk-full: kubectl escache cordon rack1":                                          w.cordoned(true),
		"after cache-disk-full: kubectl escache uncordon rack1":                                        w.cordoned(false),
		"after cache-disk-full: kubectl escache flush data-app-0 -n shop --drain --wait --timeout=10m": w.drains("data-app-0"),
		"begin hosts/host-died":                                                                   w.hostDies,
		"after hosts/host-died: kubectl escache repair --host=n2":                                 w.copyElsewhere,
		"end hosts/host-died":                                                                     w.hostIsBack,
		"begin hosts/disk-replaced":                                                               attach("data-app-4", "n3"),
		"after hosts/disk-replaced: " + drain:                                                     drained("n1"),
		"before hosts/disk-replaced: kubectl uncordon n1":                                         newDisks("data-app-4"),
		"after hosts/disk-replaced: kubectl escache repair --host=n1":                             again("data-app-4"),
		"after hosts/disk-replaced: kubectl escache uncordon n1 --timeout=30m":                    backAgain("data-app-4"),
		"begin hosts/host-reinstalled":                                                            attach("data-app-6", "n3"),
		"before hosts/host-reinstalled: kubectl label node n1 escache.io/host=true --overwrite":   newDisks("data-app-6"),
		"after hosts/host-reinstalled: kubectl escache repair --host=n1":                          again("data-app-6"),
		"after hosts/host-reinstalled: kubectl escache uncordon n1 --timeout=30m":                 backAgain("data-app-6"),
		"after hosts/group-added: " + helmValues:                                                  w.groupAdded,
		"after hosts/group-added: kubectl escache rebalance --apply":                              w.even,
		"begin hosts/move-a-volume":                                                               w.oneToMove,
		"after hosts/move-a-volume: kubectl escache move pvc-0a1b --group rack2 --wait":           moved,
		"before hosts/move-a-volume: kubectl -n shop scale statefulset app --replicas=0":          w.podComes,
		"after hosts/move-a-volume: kubectl -n shop scale statefulset app --replicas=0":           w.podGoes,
		"after hosts/move-a-volume: kubectl -n shop scale statefulset app --replicas=1":           w.podIsBack,
		"begin hosts/replace-a-host":                                                              attach("data-app-5", "n1"),
		"after hosts/replace-a-host: kubectl drain n3 --ignore-daemonsets --delete-emptydir-data": drained("n3"),
		"after hosts/replace-a-host: kubectl escache replace-host n3 n4 --apply":                  w.hostReplaced,
		"end hosts/replace-a-host":                                                                w.oldHostGoes,
		"after hosts/group-removed: kubectl escache rebalance --apply --empty=rack1":              w.emptied,
		"after hosts/group-removed: kubectl delete nodegroup rack1":                               w.groupGone,
		"begin uninstall": w.oneIsLeft,
		"after uninstall: helm uninstall escache --namespace escache-system":                                func(*testing.T) { w.retire() },
		`after uninstall: kubectl patch nodegroup rack1 --type=merge -p '{"metadata":{"finalizers":null}}'`: w.groupGone,
	}
}

// helmValues is the command that makes the groups of the values.
const helmValues = "helm upgrade escache charts/escache-csi --namespace escache-system --reset-then-reuse-values --values values.yaml"

// until waits for what controllers do by themselves.
func (w *world) until(t *testing.T, what string, holds func() bool) {
	t.Helper()
	for end := time.Now().Add(time.Minute); !holds(); time.Sleep(100 * time.Millisecond) {
		if time.Now().After(end) {
			t.Fatalf("not within a minute: %s\n%s", what, w.escache(t, 0, "status", "-o", "wide"))
		}
	}
}

// writes waits until an attached volume is in this mode, on its host and on record.
func (w *world) writes(t *testing.T, name string, mode escache.Mode, authority v1alpha1.Authority) {
	t.Helper()
	w.until(t, "volume "+name+" is "+string(mode), func() bool {
		v := w.volume(t, name)
		return v.Status.AttachedNode != "" && v.Status.Authority == authority && w.mode(v.Status.AttachedNode, name) == mode
	})
}

func (w *world) drains(name string) func(t *testing.T) {
	return func(t *testing.T) { w.writes(t, name, escache.ModeWritethrough, v1alpha1.AuthorityCeph) }
}

// writtenBack waits until a volume without a pod is in Ceph.
func (w *world) writtenBack(name string) func(t *testing.T) {
	return func(t *testing.T) {
		t.Helper()
		w.until(t, "volume "+name+" is written back", func() bool {
			v := w.volume(t, name)
			return v.Status.AttachedNode == "" && v.Status.Authority == v1alpha1.AuthorityCeph
		})
	}
}

func (w *world) group(t *testing.T, name string) *v1alpha1.NodeGroup {
	t.Helper()
	g := &v1alpha1.NodeGroup{}
	must(t, w.api.Get(t.Context(), client.ObjectKey{Name: name}, g))
	return g
}

func (w *world) cordoned(want bool) func(t *testing.T) {
	return func(t *testing.T) {
		if is := w.group(t, "rack1").Spec.Cordoned; is != want {
			t.Errorf("rack1 is cordoned: %t", is)
		}
	}
}

// twoCopies waits until the volume that a node has is copied to another one, and nothing is left to do.
func (w *world) twoCopies(t *testing.T, name, holder string, others ...string) {
	t.Helper()
	w.until(t, "volume "+name+" has its second copy on one of "+strings.Join(others, ", "), func() bool {
		v := w.volume(t, name)
		on := w.fleet.On(ref(name))
		_, asked := v.Annotations[v1alpha1.AnnotationRepair]
		there := slices.ContainsFunc(others, func(node string) bool {
			return v.Spec.HasReplica(node) && on[node] && v.Status.HostID(node) == w.fleet.Hosts[node].Status(ref(name)).HostID
		})
		peers := w.fleet.Hosts[holder].Status(ref(name)).Peers
		return there && v.Status.AttachedNode == holder && len(v.Status.Outdated) == 0 && v.Status.Repair == nil && !asked &&
			len(peers) == 1 && peers[0].ConnectionState == escache.LinkConnected
	})
}

// podsEnd plays the end of the pods of a node that was evacuated: nothing is dirty there.
func (w *world) podsEnd(t *testing.T, node string) {
	t.Helper()
	for _, v := range w.volumes(t, "rack1") {
		if v.Status.AttachedNode != node {
			continue
		}
		if v.Status.Authority != v1alpha1.AuthorityCeph {
			t.Errorf("volume %s is not in Ceph, and node %s was evacuated: %+v", v.Name, node, v.Status)
		}
		w.detach(t, strings.TrimPrefix(v.Name, "pvc-"))
	}
}

// newDisks has a host start with other disks. The volume is attached elsewhere, and has its second copy there.
func (w *world) newDisks(t *testing.T, node, volume string) {
	t.Helper()
	w.turnOff(t, node)
	w.until(t, "the copy on "+node+" is outdated on record", func() bool { return w.volume(t, volume).Status.IsOutdated(node) })
	w.fleet.Hosts[node].Replace()
	w.turnOn(t, node)
}

// hostDies has n2 die, on which one volume has its second copy, and another one its only current one.
func (w *world) hostDies(t *testing.T) {
	w.attachWith(t, "data-app-3", "n1", "n2", 20*mib)
	w.turnOff(t, "n2")
	w.leave(t, "data-app-1", "n2")
	w.until(t, "the copy on n2 is outdated on record", func() bool { return w.volume(t, "data-app-3").Status.IsOutdated("n2") })
	w.until(t, "csi-controller misses n2", func() bool {
		return slices.ContainsFunc(w.group(t, "rack1").Status.Members, func(m v1alpha1.NodeGroupMember) bool {
			return m.Name == "n2" && !m.Ready
		})
	})
	if v := w.volume(t, "data-app-3"); v.Status.Repair != nil {
		t.Errorf("a host that is silent for a moment is replaced: %+v", v.Status.Repair)
	}
}

func (w *world) copyElsewhere(t *testing.T) {
	w.twoCopies(t, "data-app-3", "n1", "n3")
	w.writes(t, "data-app-3", escache.ModeWriteback, v1alpha1.AuthorityCache)
}

// hostIsBack: what only n2 had is written back, and its old copy of what was replaced goes.
func (w *world) hostIsBack(t *testing.T) {
	w.turnOn(t, "n2")
	w.writtenBack("data-app-1")(t)
	w.until(t, "the replaced copy on n2 is removed", func() bool { return !w.fleet.Hosts["n2"].Has(ref("data-app-3")) })
}

// groupAdded makes the groups that the chart makes of the page's values.
func (w *world) groupAdded(t *testing.T) {
	values := filepath.Join(t.TempDir(), "values.yaml")
	for _, b := range blocksOf(t, filepath.Join(checkout, "docs/hosts/group-added.md")) {
		if b.language == "yaml" && strings.HasPrefix(b.lines[0], "nodeGroups:") {
			must(t, os.WriteFile(values, []byte(strings.Join(b.lines, "\n")+"\n"), 0o600))
		}
	}
	groups := filepath.Join(t.TempDir(), "groups.yaml")
	rendered := w.run(t, kubetest.Tools(t, "helm")["helm"], "template", "escache", filepath.Join(checkout, "charts/escache-csi"),
		"--namespace", "escache-system", "--set", "ceph.clusterID=c,ceph.monitors={127.0.0.1}", "--values", values,
		"--show-only", "templates/nodegroups.yaml")
	// rack1 was made by hand, and stays so: another page changes a group that no tool manages.
	documents := slices.DeleteFunc(strings.Split(string(rendered), "---\n"), func(d string) bool { return !strings.Contains(d, "name: rack2\n") })
	if len(documents) != 1 {
		t.Fatalf("the chart makes of the page's values:\n%s", rendered)
	}
	must(t, os.WriteFile(groups, []byte(documents[0]), 0o600))
	w.kubectl(t, "apply", "-f", groups)
	w.until(t, "rack2 is 3/3", func() bool { return w.group(t, "rack2").Status.Summary.Ready == "3/3" })
}

// even fails unless the volumes are spread evenly over both groups, and none is on its way.
func (w *world) even(t *testing.T) {
	old, fresh := w.volumes(t, "rack1"), w.volumes(t, "rack2")
	if n := len(old) - len(fresh); len(fresh) == 0 || n < -1 || n > 1 {
		t.Errorf("%d volumes are in rack1 and %d in rack2", len(old), len(fresh))
	}
	for _, v := range fresh {
		w.isIn(t, strings.TrimPrefix(v.Name, "pvc-"), "rack2")
	}
}

// isIn fails unless a volume is in a group with all it has, and its claim is bound.
func (w *world) isIn(t *testing.T, name, group string) {
	t.Helper()
	v, pv, claim := w.volume(t, name), &corev1.PersistentVolume{}, &corev1.PersistentVolumeClaim{}
	nodes := w.group(t, group).Spec.Nodes
	outside := slices.ContainsFunc(v.Spec.Replicas, func(n string) bool { return !slices.Contains(nodes, n) })
	if v.Spec.Group != group || v.ToMove() || v.Status.Move != nil || outside {
		t.Errorf("volume %s: %+v, %+v", name, v.Spec, v.Status)
	}
	must(t, w.api.Get(t.Context(), client.ObjectKey{Name: v.Name}, pv))
	must(t, w.api.Get(t.Context(), client.ObjectKey{Namespace: "shop", Name: name}, claim))
	terms := pv.Spec.NodeAffinity.Required.NodeSelectorTerms
	if claim.Status.Phase != corev1.ClaimBound || !slices.Contains(terms[0].MatchExpressions[0].Values, group) {
		t.Errorf("volume %s: its claim is %s, its PersistentVolume allows %+v", name, claim.Status.Phase, terms)
	}
	w.until(t, "no replica of volume "+name+" is left", func() bool { return len(w.fleet.On(ref(name))) == 0 })
}

// oneToMove makes a dirty volume that no pod has.
func (w *world) oneToMove(t *testing.T) {
	w.attach(t, "0a1b", "n1", 20*mib)
	w.until(t, "its claim is bound", func() bool {
		claim := &corev1.PersistentVolumeClaim{}
		must(t, w.api.Get(t.Context(), client.ObjectKey{Namespace: "shop", Name: "0a1b"}, claim))
		return claim.Status.Phase == corev1.ClaimBound
	})
	w.detach(t, "0a1b")
}

// podComes brings the volume back to its former group, where a pod uses it.
func (w *world) podComes(t *testing.T) {
	w.escache(t, 0, "move", "pvc-0a1b", "--group=rack1", "--wait", "--timeout=1m")
	w.isIn(t, "0a1b", "rack1")
	w.take(t, "0a1b", 20*mib)
	labels := map[string]string{"app": "app"}
	must(t, w.api.Create(t.Context(), &appsv1.StatefulSet{
		ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: "app"},
		Spec: appsv1.StatefulSetSpec{
			Selector: &metav1.LabelSelector{MatchLabels: labels},
			Template: corev1.PodTemplateSpec{ObjectMeta: metav1.ObjectMeta{Labels: labels}, Spec: corev1.PodSpec{
				Containers: []corev1.Container{{Name: "app", Image: "example.com/app:1"}},
				Volumes: []corev1.Volume{{Name: "data", VolumeSource: corev1.VolumeSource{
					PersistentVolumeClaim: &corev1.PersistentVolumeClaimVolumeSource{ClaimName: "0a1b"},
				}}},
			}},
		},
	}))
	w.pods(t, 1)
}

func (w *world) podGoes(t *testing.T) {
	w.pods(t, 0)
	w.detach(t, "0a1b")
}

func (w *world) podIsBack(t *testing.T) { w.pods(t, 1) }

func (w *world) pods(t *testing.T, want int) {
	t.Helper()
	w.until(t, "the StatefulSet has its pods", func() bool {
		pods := &corev1.PodList{}
		must(t, w.api.List(t.Context(), pods, client.InNamespace("shop"), client.MatchingLabels{"app": "app"}))
		return len(pods.Items) == want
	})
}

func (w *world) hostReplaced(t *testing.T) {
	if nodes := w.group(t, "rack1").Spec.Nodes; !slices.Equal(slices.Sorted(slices.Values(nodes)), []string{"n1", "n2", "n4"}) {
		t.Errorf("rack1 has %v", nodes)
	}
	w.until(t, "rack1 is 3/3", func() bool { return w.group(t, "rack1").Status.Summary.Ready == "3/3" })
}

// oldHostGoes: the volume with its second copy there gets another one at once.
func (w *world) oldHostGoes(t *testing.T) {
	w.turnOff(t, "n3")
	w.twoCopies(t, "data-app-5", "n1", "n2", "n4")
}

// emptied: what no pod had has left the group, and the rest leaves it when its pods end.
func (w *world) emptied(t *testing.T) {
	for _, v := range w.volumes(t, "rack1") {
		if v.Status.AttachedNode == "" {
			t.Errorf("volume %s is left in rack1: %+v", v.Name, meta.FindStatusCondition(v.Status.Conditions, v1alpha1.ConditionMoving))
			continue
		}
		w.detach(t, strings.TrimPrefix(v.Name, "pvc-"))
	}
	w.until(t, "rack1 is empty", func() bool { return len(w.volumes(t, "rack1")) == 0 })
}

func (w *world) groupGone(t *testing.T) {
	w.until(t, "rack1 is gone", func() bool {
		err := w.api.Get(t.Context(), client.ObjectKey{Name: "rack1"}, &v1alpha1.NodeGroup{})
		return apierrors.IsNotFound(err) || meta.IsNoMatchError(err)
	})
}

// oneIsLeft makes a group with a volume, whose finalizer nobody removes once csi-controller is gone.
func (w *world) oneIsLeft(t *testing.T) {
	must(t, w.api.Create(t.Context(), &v1alpha1.NodeGroup{
		ObjectMeta: metav1.ObjectMeta{Name: "rack1"}, Spec: v1alpha1.NodeGroupSpec{Nodes: []string{"n1", "n2", "n4"}},
	}))
	w.attachWith(t, "left", "n1", "n2", 20*mib)
	w.until(t, "the group has a finalizer", func() bool { return len(w.group(t, "rack1").Finalizers) > 0 })
}
