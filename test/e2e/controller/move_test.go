//go:build e2e

package controller

import (
	"bytes"
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/escache/escache-csi/api/escache"
	"github.com/escache/escache-csi/api/v1alpha1"
	"github.com/escache/escache-csi/internal/plugin"
)

// moveLife moves the volume of a claim to the other group, and back once it is detached, dirty. The claim
// stays bound. In between it is refused where it has to be.
func moveLife(t *testing.T, w *world) {
	d := leader(t, time.Minute, w.launch(t, "a", soon...))
	w.kube.SidecarsAs(t, w.account, "a", d.socket(), topologyArgs)
	w.kubectl(t, class, "apply", "-f", "-")
	w.kubectl(t, claim, "apply", "-f", "-")
	w.kubectl(t, "", "wait", "--for=jsonpath={.status.phase}=Bound", "pvc/data", "--timeout=60s")
	v := w.one(t)
	home, away, ref := v.Spec.Group, otherGroup(v.Spec.Group), escache.VolumeRef{Pool: v.Spec.Pool, Image: v.Spec.Image}
	w.attachmentOf(t, v, v.Spec.Replicas[0])
	w.kubectl(t, "", "delete", "volumeattachment", "data", "--timeout=60s")
	before, seen := w.pvOf(t, v.Name), w.watchClaim(t)

	w.kubectl(t, "", "patch", "nodegroup", away, "--type=merge", "-p", `{"spec":{"cordoned":true}}`)
	w.askMove(t, v.Name, away)
	w.moving(t, v.Name, v1alpha1.ReasonMoveRefused, "cordoned")
	w.kubectl(t, "", "patch", "nodegroup", away, "--type=merge", "-p", `{"spec":{"cordoned":false}}`)
	says(t, w.escache(t, 0, "move", v.Name, "--group", away, "--wait"), "in group "+away)
	w.isIn(t, away, before, seen)

	v = w.one(t)
	w.attachmentOf(t, v, v.Spec.Replicas[0])
	v = w.one(t)
	w.askMove(t, v.Name, home)
	w.moving(t, v.Name, v1alpha1.ReasonMoveAttached, "detached first")
	if on := w.fleet.On(ref); len(on) != 2 || !on[v.Spec.Replicas[0]] || !on[v.Spec.Replicas[1]] {
		t.Errorf("replicas of %v are on %v", v.Spec.Replicas, on)
	}
	for _, n := range v.Spec.Replicas {
		w.fleet.Hosts[n].Write(ref, 4<<20)
	}
	before = w.pvOf(t, v.Name)
	w.kubectl(t, "", "delete", "volumeattachment", "data", "--timeout=60s")
	says(t, w.escache(t, 0, "move", v.Name, "--group", home, "--wait"), "in group "+home)
	w.isIn(t, home, before, seen)
	if now := w.one(t); now.Status.Authority != v1alpha1.AuthorityCeph || now.Status.Epoch != v.Status.Epoch+1 {
		t.Errorf("it was not written back first: %+v", now.Status)
	}
	w.kubectl(t, "", "delete", "pvc", "data", "--timeout=60s")
	w.empty(t)
	w.kubectl(t, "", "delete", "storageclass", "escache")
}

func otherGroup(group string) string { return map[string]string{"g1": "g2", "g2": "g1"}[group] }

// attachmentOf has Kubernetes attach the claim's volume, as for a pod.
func (w *world) attachmentOf(t *testing.T, v *v1alpha1.CacheVolume, node string) {
	t.Helper()
	w.kubectl(t, fmt.Sprintf(`{"apiVersion":"storage.k8s.io/v1","kind":"VolumeAttachment","metadata":{"name":"data"},"spec":{"attacher":%q,`+
		`"nodeName":%q,"source":{"persistentVolumeName":%q}}}`, v1alpha1.DriverName, node, v.Name), "apply", "-f", "-")
	w.kubectl(t, "", "wait", "--for=jsonpath={.status.attached}=true", "volumeattachment/data", "--timeout=60s")
}

func (w *world) pvOf(t *testing.T, name string) *corev1.PersistentVolume {
	t.Helper()
	pv := &corev1.PersistentVolume{}
	must(t, w.api.Get(t.Context(), client.ObjectKey{Name: name}, pv))
	return pv
}

// phases are those that a claim went through.
type phases struct {
	mu  sync.Mutex
	all []corev1.PersistentVolumeClaimPhase
}

func (p *phases) String() string {
	p.mu.Lock()
	defer p.mu.Unlock()
	return fmt.Sprint(p.all)
}

// watchClaim watches the phases of the claim until the test ends.
func (w *world) watchClaim(t *testing.T) *phases {
	t.Helper()
	events, err := w.api.Watch(t.Context(), &corev1.PersistentVolumeClaimList{}, client.InNamespace("default"))
	must(t, err)
	seen := &phases{}
	go func() {
		for e := range events.ResultChan() {
			if c, ok := e.Object.(*corev1.PersistentVolumeClaim); ok {
				seen.mu.Lock()
				if n := len(seen.all); n == 0 || seen.all[n-1] != c.Status.Phase {
					seen.all = append(seen.all, c.Status.Phase)
				}
				seen.mu.Unlock()
			}
		}
	}()
	t.Cleanup(events.Stop)
	return seen
}

// isIn fails unless the volume and its PersistentVolume are in the group, the claim is bound now, and
// nothing is left in the other group.
func (w *world) isIn(t *testing.T, group string, before *corev1.PersistentVolume, seen *phases) {
	t.Helper()
	bound := w.kubectl(t, "", "get", "pvc", "data", "-o", "jsonpath={.status.phase}")
	v, pv := w.one(t), w.pvOf(t, before.Name)
	t.Logf("the claim was %s", seen)
	if bound != string(corev1.ClaimBound) {
		t.Errorf("the claim is %s", bound)
	}
	if v.Spec.Group != group || v.ToMove() {
		t.Errorf("record %+v, %+v", v.Spec, v.Status)
	}
	if pv.UID == before.UID || pv.Spec.ClaimRef.UID != before.Spec.ClaimRef.UID || pv.Status.Phase != corev1.VolumeBound ||
		pv.Spec.PersistentVolumeReclaimPolicy != corev1.PersistentVolumeReclaimDelete || !allows(pv, group) || allows(pv, otherGroup(group)) {
		t.Errorf("PersistentVolume %+v", pv)
	}
	want := before.DeepCopy()
	want.Spec.NodeAffinity, want.Spec.ClaimRef, want.Spec.PersistentVolumeReclaimPolicy = pv.Spec.NodeAffinity, pv.Spec.ClaimRef, pv.Spec.PersistentVolumeReclaimPolicy
	if !equality.Semantic.DeepEqual(want.Spec, pv.Spec) || !maps.Equal(want.Labels, pv.Labels) || !maps.Equal(want.Annotations, pv.Annotations) {
		t.Errorf("the PersistentVolume was\n%+v and is\n%+v", before, pv)
	}
	eventually(t, time.Minute, func() bool { return w.fleet.Replicas() == 0 }, func() string {
		return fmt.Sprintf("%d replicas are left", w.fleet.Replicas())
	})
}

func allows(pv *corev1.PersistentVolume, group string) bool {
	return slices.ContainsFunc(pv.Spec.NodeAffinity.Required.NodeSelectorTerms, func(term corev1.NodeSelectorTerm) bool {
		return slices.ContainsFunc(term.MatchExpressions, func(e corev1.NodeSelectorRequirement) bool {
			return e.Key == v1alpha1.TopologyKey && slices.Contains(e.Values, group)
		})
	})
}

func (w *world) askMove(t *testing.T, volume, group string) {
	t.Helper()
	v := &v1alpha1.CacheVolume{}
	v.Name = volume
	must(t, w.api.Patch(t.Context(), v, client.RawPatch(types.MergePatchType, fmt.Appendf(nil, `{"spec":{"moveTo":{"group":%q}}}`, group))))
}

// moving waits until the record says why the volume does not move yet.
func (w *world) moving(t *testing.T, volume, reason, says string) {
	t.Helper()
	var last string
	eventually(t, 20*time.Second, func() bool {
		v := &v1alpha1.CacheVolume{}
		must(t, w.api.Get(t.Context(), client.ObjectKey{Name: volume}, v))
		c := meta.FindStatusCondition(v.Status.Conditions, v1alpha1.ConditionMoving)
		if c != nil {
			last = c.Reason + ": " + c.Message
		}
		return c != nil && c.Reason == reason && strings.Contains(c.Message, says)
	}, func() string { return "it says " + last })
}

// escache runs kubectl escache as the administrator, and wants that exit code.
func (w *world) escache(t *testing.T, exit int, args ...string) string {
	t.Helper()
	out, _ := w.escacheSays(t, exit, args...)
	return out
}

// escacheSays is escache for a test that looks at what it complains about.
func (w *world) escacheSays(t *testing.T, exit int, args ...string) (said, complained string) {
	t.Helper()
	var out, complaints bytes.Buffer
	if got := plugin.Run("test", append(args, "--kubeconfig", w.kube.Kubeconfig()), strings.NewReader(""), &out, &complaints); got != exit {
		t.Fatalf("kubectl escache %s: exit %d, want %d\n%s%s", strings.Join(args, " "), got, exit, out.String(), complaints.String())
	}
	return out.String(), complaints.String()
}

func says(t *testing.T, text string, words ...string) {
	t.Helper()
	for _, word := range words {
		if !strings.Contains(text, word) {
			t.Errorf("it does not say %q:\n%s", word, text)
		}
	}
}

// groupIsNotEdited shows that the API server lets only a move change the group, and the numbers with it.
func groupIsNotEdited(t *testing.T, w *world) {
	d := leader(t, time.Minute, w.launch(t, "a", soon...))
	until(t, func() error { return d.create(t.Context(), crashed) })
	v := w.one(t)
	other := otherGroup(v.Spec.Group)
	hosts := map[string]string{"g1": `["n1","n2"]`, "g2": `["n4","n5"]`}[other]
	for patch, word := range map[string]string{
		fmt.Sprintf(`{"spec":{"group":%q}}`, other):                      "set spec.moveTo",
		fmt.Sprintf(`{"spec":{"group":%q,"replicas":%s}}`, other, hosts): "set spec.moveTo",
		`{"spec":{"port":7999}}`:                                         "port is immutable",
		`{"spec":{"minor":999}}`:                                         "minor is immutable",
		`{"spec":{"moveTo":{"group":""}}}`:                               "at least 1 char",
	} {
		if out, err := w.try("", "patch", "cachevolume", v.Name, "--type=merge", "-p", patch); err == nil || !strings.Contains(out, word) {
			t.Errorf("%s: got %v: %s", patch, err, out)
		}
	}
	w.askMove(t, v.Name, "g9")
	w.moving(t, v.Name, v1alpha1.ReasonMoveRefused, "there is no NodeGroup g9")
	says(t, w.escache(t, 0, "move", v.Name, "--cancel"), "stays in group")
	until(t, func() error { return d.delete(t.Context(), crashed) })
}

const boundClaim = `
apiVersion: v1
kind: PersistentVolume
metadata: {name: pvc-crash, labels: {of: somebody}}
spec:
  accessModes: [ReadWriteOnce]
  capacity: {storage: 1Gi}
  storageClassName: ""
  persistentVolumeReclaimPolicy: Delete
  claimRef: {namespace: default, name: moved}
  csi: {driver: csi.escache.io, volumeHandle: pvc-crash, fsType: ext4}
  nodeAffinity: {required: {nodeSelectorTerms: [{matchExpressions: [{key: topology.escache.io/group, operator: In, values: [GROUP]}]}]}}
---
apiVersion: v1
kind: PersistentVolumeClaim
metadata: {name: moved}
spec: {accessModes: [ReadWriteOnce], storageClassName: "", volumeName: pvc-crash, resources: {requests: {storage: 1Gi}}}
`

// moveScenes kill the leader at each step of a move of a volume with a claim.
func moveScenes() []scene {
	var home string
	prepare := func(t *testing.T, w *world, d *driver) {
		until(t, func() error { return d.create(t.Context(), crashed) })
		v := w.one(t)
		home = v.Spec.Group
		until(t, func() error { return d.publish(t.Context(), crashed, v.Spec.Replicas[0]) })
		until(t, func() error { return d.unpublish(t.Context(), crashed, "") })
		w.kubectl(t, strings.Replace(boundClaim, "GROUP", home, 1), "apply", "-f", "-")
		w.kubectl(t, "", "wait", "--for=jsonpath={.status.phase}=Bound", "pvc/moved", "--timeout=60s")
	}
	call := func(t *testing.T, w *world, d *driver) error {
		if v := w.one(t); v.Spec.Group == home && !v.ToMove() {
			w.askMove(t, crashed, otherGroup(home))
		}
		for end := time.Now().Add(time.Minute); d.alive() && time.Now().Before(end); time.Sleep(20 * time.Millisecond) {
			if v := w.one(t); v.Spec.Group != home && !v.ToMove() && v.Status.Phase == v1alpha1.VolumeReady {
				return nil
			}
		}
		return status.Error(codes.Unavailable, "not moved")
	}
	return []scene{{
		name: "move to another group", prepare: prepare, call: call,
		check: func(t *testing.T, w *world) {
			pv, v := w.pvOf(t, crashed), w.one(t)
			if !allows(pv, v.Spec.Group) || allows(pv, home) || pv.Spec.PersistentVolumeReclaimPolicy != corev1.PersistentVolumeReclaimDelete ||
				pv.Labels["of"] != "somebody" {
				t.Errorf("PersistentVolume %+v", pv)
			}
			if phase := w.kubectl(t, "", "get", "pvc", "moved", "-o", "jsonpath={.status.phase}"); phase != "Bound" {
				t.Errorf("the claim is %s", phase)
			}
			eventually(t, time.Minute, func() bool { return w.fleet.Replicas() == 0 }, func() string { return "replicas are left" })
		},
		clean: func(t *testing.T, w *world, d *driver) {
			w.kubectl(t, "", "delete", "pvc", "moved", "--timeout=60s")
			w.kubectl(t, "", "delete", "pv", crashed, "--timeout=60s")
			until(t, func() error { return d.delete(t.Context(), crashed) })
		},
	}}
}

// deletedWhileMoving deletes the claim of a volume while its PersistentVolume is not there: the leader was
// killed. The next one ends the move. It keeps the volume, because the claim may have been deleted in the belief that
// the reclaim policy is Retain. Set to Delete again, it goes.
func deletedWhileMoving(t *testing.T, w *world) {
	first := leader(t, time.Minute, w.launch(t, "a", soon...))
	second := w.launch(t, "b", soon...)
	w.kube.SidecarsAs(t, w.account, "a", first.socket(), topologyArgs)
	w.kubectl(t, class, "apply", "-f", "-")
	w.kubectl(t, claim, "apply", "-f", "-")
	w.kubectl(t, "", "wait", "--for=jsonpath={.status.phase}=Bound", "pvc/data", "--timeout=60s")
	v := w.one(t)
	first.dieAt(t, "move/pv_removed")
	w.askMove(t, v.Name, otherGroup(v.Spec.Group))
	if !waitEnded(first) {
		t.Fatal("the leader did not die")
	}
	w.kubectl(t, "", "delete", "pvc", "data", "--timeout=60s")
	first.bury()
	leader(t, time.Minute, second)
	w.kube.SidecarsAs(t, w.account, "b", second.socket(), topologyArgs)
	eventually(t, time.Minute, func() bool { return !w.one(t).ToMove() }, func() string { return fmt.Sprintf("not moved: %+v", w.one(t)) })
	if pv := w.pvOf(t, v.Name); pv.Spec.PersistentVolumeReclaimPolicy != corev1.PersistentVolumeReclaimRetain {
		t.Errorf("PersistentVolume %+v", pv)
	}
	w.saysInEvent(t, "VolumeRetained")
	w.kubectl(t, "", "patch", "pv", v.Name, "--type=merge", "-p", `{"spec":{"persistentVolumeReclaimPolicy":"Delete"}}`)
	eventually(t, time.Minute, func() bool { return len(w.volumes(t)) == 0 }, func() string {
		pvs := &corev1.PersistentVolumeList{}
		_ = w.api.List(context.Background(), pvs)
		return fmt.Sprintf("the volume is left: %+v, PersistentVolumes %+v", w.volumes(t), pvs.Items)
	})
	w.empty(t)
	w.kubectl(t, "", "delete", "storageclass", "escache")
}
