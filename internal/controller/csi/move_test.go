package csi_test

import (
	"context"
	"log/slog"
	"slices"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc/codes"
	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/tools/events"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/escache/escache-csi/api/v1alpha1"
	"github.com/escache/escache-csi/internal/controller/move"
	"github.com/escache/escache-csi/internal/placement"
)

const (
	moved      = "pvc-1"
	claimUID   = "the claim"
	protection = "kubernetes.io/pv-protection"
)

// twoGroups is a world with a second group, g2: n4, n5 and n6, that came after the volume. The volume was
// attached once, is clean, and has a PersistentVolume that its claim is bound to.
func twoGroups(t *testing.T) *world {
	t.Helper()
	w := newWorld(t, "n4", "n5", "n6")
	w.usedBefore(moved)
	group := &v1alpha1.NodeGroup{ObjectMeta: metav1.ObjectMeta{Name: "g2"}, Spec: v1alpha1.NodeGroupSpec{Nodes: []string{"n4", "n5", "n6"}}}
	must(t, w.api.Create(t.Context(), group))
	w.pollBoth()
	pv := &corev1.PersistentVolume{ObjectMeta: metav1.ObjectMeta{
		Name: moved, UID: "first", Labels: map[string]string{"of": "somebody"}, Finalizers: []string{protection},
	}}
	pv.Spec.CSI = &corev1.CSIPersistentVolumeSource{Driver: v1alpha1.DriverName, VolumeHandle: moved}
	pv.Spec.PersistentVolumeReclaimPolicy = corev1.PersistentVolumeReclaimDelete
	pv.Spec.ClaimRef = &corev1.ObjectReference{Namespace: "shop", Name: "data", UID: claimUID}
	pv.Spec.NodeAffinity = affinity("g1")
	must(t, w.api.Create(t.Context(), pv))
	w.bind()
	return w
}

func affinity(group string) *corev1.VolumeNodeAffinity {
	return &corev1.VolumeNodeAffinity{Required: &corev1.NodeSelector{NodeSelectorTerms: []corev1.NodeSelectorTerm{{
		MatchExpressions: []corev1.NodeSelectorRequirement{{Key: v1alpha1.TopologyKey, Operator: corev1.NodeSelectorOpIn, Values: []string{group}}},
	}}}}
}

func (w *world) pollBoth() {
	w.t.Helper()
	for _, name := range []string{"g1", "g2"} {
		_, err := w.groups.Reconcile(context.Background(), ctrl.Request{NamespacedName: client.ObjectKey{Name: name}})
		must(w.t, err)
	}
}

func (w *world) askMove(group string) {
	w.t.Helper()
	v := w.volume(moved)
	v.Spec.MoveTo = nil
	if group != "" {
		v.Spec.MoveTo = &v1alpha1.MoveTarget{Group: group}
	}
	must(w.t, w.api.Update(context.Background(), v))
}

// turn is one pass of the reconciler, as the present process would make it. It plays the part of
// Kubernetes that binds a claim to a PersistentVolume, before and after.
func (w *world) turn() (again bool) {
	w.t.Helper()
	w.bind()
	r := move.New(move.Config{
		Client: w.cached, Live: w.api, Volumes: w.locked, Events: events.NewFakeRecorder(1000),
		Log: slog.New(slog.NewTextHandler(w.t.Output(), nil)), Again: time.Second, Soon: time.Second, Seldom: time.Minute,
		Longest: 20 * time.Second, Parallel: 1,
	})
	result, err := r.Reconcile(context.Background(), ctrl.Request{NamespacedName: client.ObjectKey{Name: moved}})
	must(w.t, err)
	w.bind()
	return result.RequeueAfter > 0
}

func (w *world) bind() {
	w.t.Helper()
	pv := w.pv()
	if pv != nil && pv.Status.Phase == "" {
		pv.Finalizers = []string{protection}
		must(w.t, w.api.Update(context.Background(), pv))
		pv.Status.Phase = corev1.VolumeBound
		must(w.t, w.api.Status().Update(context.Background(), pv))
	}
}

// pv is the volume's PersistentVolume, nil if it is not there.
func (w *world) pv() *corev1.PersistentVolume {
	w.t.Helper()
	pv := &corev1.PersistentVolume{}
	err := w.api.Get(context.Background(), client.ObjectKey{Name: moved}, pv)
	must(w.t, client.IgnoreNotFound(err))
	if err != nil {
		return nil
	}
	return pv
}

func (w *world) moving() metav1.Condition {
	w.t.Helper()
	c := meta.FindStatusCondition(w.volume(moved).Status.Conditions, v1alpha1.ConditionMoving)
	if c == nil {
		return metav1.Condition{}
	}
	return *c
}

// usage returns how many volumes have a place in a group.
func (w *world) usage(group string) int {
	at := slices.IndexFunc(w.book.Usage(), func(u placement.Usage) bool { return u.Group == group })
	return w.book.Usage()[at].Volumes
}

// isIn fails unless the volume is in the group with all that belongs to it, and can be used there and nowhere
// else.
func (w *world) isIn(group string) {
	w.t.Helper()
	v, pv, other := w.volume(moved), w.pv(), map[string]string{"g1": "g2", "g2": "g1"}[group]
	nodes := map[string][]string{"g1": {"n1", "n2", "n3"}, "g2": {"n4", "n5", "n6"}}
	if v.Spec.Group != group || v.ToMove() || !slices.Contains(nodes[group], v.Spec.Replicas[0]) || !slices.Contains(nodes[group], v.Spec.Replicas[1]) {
		w.t.Fatalf("it is not in %s: %+v, %+v", group, v.Spec, v.Status)
	}
	if w.moving().Type != "" || len(v.Status.Hosts) > 0 && group == "g2" {
		w.t.Errorf("what is on record of the move, or of the former hosts: %+v", v.Status)
	}
	switch {
	case pv == nil:
		w.t.Fatal("its PersistentVolume is gone")
	case pv.Spec.NodeAffinity.Required.NodeSelectorTerms[0].MatchExpressions[0].Values[0] != group,
		pv.Spec.PersistentVolumeReclaimPolicy != corev1.PersistentVolumeReclaimDelete, pv.Spec.ClaimRef.UID != claimUID,
		pv.Labels["of"] != "somebody", !pv.DeletionTimestamp.IsZero():
		w.t.Errorf("its PersistentVolume is %+v", pv)
	}
	w.pollBoth()
	if w.fleet.Replicas() != 0 {
		w.t.Errorf("replicas are left: %v", w.fleet.On(ref(v)))
	}
	if w.usage(group) != 1 || w.usage(other) != 0 {
		w.t.Errorf("places: %d in %s, %d in %s", w.usage(group), group, w.usage(other), other)
	}
	_, err := w.publish(moved, nodes[other][0])
	wants(w.t, err, codes.FailedPrecondition, "lives in group "+group, "delete the pod")
	_, err = w.publish(moved, v.Spec.Replicas[0])
	must(w.t, err)
	if on := w.fleet.On(ref(v)); len(on) != 2 || !on[v.Spec.Replicas[0]] || !on[v.Spec.Replicas[1]] {
		w.t.Errorf("replicas of %v are on %v", v.Spec.Replicas, on)
	}
	must(w.t, w.unpublish(moved, v.Spec.Replicas[0]))
}

func TestAVolumeMovesToAnotherGroupAndBack(t *testing.T) {
	w := twoGroups(t)
	port := w.volume(moved).Spec.Port
	w.turn() // nobody has asked
	if v := w.volume(moved); v.Spec.Group != "g1" || w.fleet.Replicas() != 2 {
		t.Fatal("it has moved, and nobody asked for it")
	}
	w.askMove("g1")
	w.turn()
	if v := w.volume(moved); v.ToMove() || v.Spec.Group != "g1" {
		t.Errorf("it was in that group already: %+v", v.Spec)
	}
	for _, group := range []string{"g2", "g1"} {
		w.askMove(group)
		for range 5 {
			if !w.turn() {
				break
			}
		}
		w.isIn(group)
	}
	if w.volume(moved).Spec.Port != port {
		t.Errorf("port %d, was %d", w.volume(moved).Spec.Port, port)
	}
	must(t, w.delete(moved))
	if w.fleet.Replicas() != 0 || w.usage("g1") != 0 {
		t.Errorf("%d replicas, %d volumes", w.fleet.Replicas(), w.usage("g1"))
	}
}

func TestAVolumeThatCannotMoveStaysAsItIs(t *testing.T) {
	for name, tc := range map[string]struct {
		prepare func(*world)
		reason  string
		says    string
	}{
		"attached": {func(w *world) {
			_, err := w.publish(moved, w.volume(moved).Spec.Replicas[0])
			must(w.t, err)
		}, v1alpha1.ReasonMoveAttached, "has to be detached first"},
		"about to be attached": {func(w *world) {
			va := &storagev1.VolumeAttachment{ObjectMeta: metav1.ObjectMeta{Name: "va"}}
			va.Spec.NodeName, va.Spec.Source.PersistentVolumeName = "n1", new(string(moved))
			must(w.t, w.api.Create(context.Background(), va))
		}, v1alpha1.ReasonMoveAttached, "VolumeAttachment va"},
		"a pod has a node": {func(w *world) {
			pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: "app-0"}, Spec: corev1.PodSpec{NodeName: "n1"}}
			pod.Spec.Volumes = []corev1.Volume{{Name: "data", VolumeSource: corev1.VolumeSource{
				PersistentVolumeClaim: &corev1.PersistentVolumeClaimVolumeSource{ClaimName: "data"},
			}}}
			must(w.t, w.api.Create(context.Background(), pod))
		}, v1alpha1.ReasonMoveAttached, "pod shop/app-0"},
		"the group is cordoned": {func(w *world) { w.cordonGroup("g2") }, v1alpha1.ReasonMoveRefused, "uncordon g2"},
		"no such group":         {func(w *world) { w.askMove("g3") }, v1alpha1.ReasonMoveRefused, "no NodeGroup g3"},
		"the group is full": {func(w *world) {
			for _, n := range []string{"n4", "n5"} {
				w.host(n).Stop()
			}
			w.pollBoth()
		}, v1alpha1.ReasonMoveWaiting, "place for volume"},
		"its hosts have just died": {func(w *world) {
			for _, n := range []string{"n4", "n5", "n6"} {
				w.host(n).Stop() // and nobody has noticed
			}
		}, v1alpha1.ReasonMoveWaiting, "remove the replica of volume"},
		"dirty, and the copies are gone": {func(w *world) {
			v := w.volume(moved)
			holder := v.Spec.Replicas[0]
			_, err := w.publish(moved, holder)
			must(w.t, err)
			for _, n := range v.Spec.Replicas {
				w.host(n).Write(ref(v), dirtyBytes)
			}
			w.host(holder).Stop()
			w.taint(holder)
			w.pollBoth()
			must(w.t, w.unpublish(moved, holder))
			w.host(v.Spec.Replicas[1]).Stop()
			w.pollBoth()
		}, v1alpha1.ReasonMoveWaiting, "written back"},
		"set back": {func(w *world) {
			old := w.volume(moved)
			_, err := w.publish(moved, old.Spec.Replicas[0])
			must(w.t, err)
			must(w.t, w.unpublish(moved, old.Spec.Replicas[0]))
			w.setBack(old)
		}, v1alpha1.ReasonMoveRefused, "the record is older"},
		"somebody keeps its PersistentVolume": {func(w *world) {
			pv := w.pv()
			pv.Finalizers = append(pv.Finalizers, "backup.example/keep")
			must(w.t, w.api.Update(context.Background(), pv))
		}, v1alpha1.ReasonMoveRefused, "backup.example/keep"},
		"its claim is gone": {func(w *world) {
			pv := w.pv()
			pv.Status.Phase = corev1.VolumeReleased
			must(w.t, w.api.Status().Update(context.Background(), pv))
		}, v1alpha1.ReasonMoveRefused, "its claim is gone"},
		"being released": {func(w *world) { w.askRelease(moved, true) }, v1alpha1.ReasonMoveRefused, "released"},
		"a former holder has the device": {func(w *world) {
			v := w.volume(moved)
			w.host(v.Spec.Replicas[1]).Connect(ref(v), oldClient)
		}, v1alpha1.ReasonMoveRefused, "still has the device"},
	} {
		t.Run(name, func(t *testing.T) {
			w := twoGroups(t)
			w.askMove("g2")
			tc.prepare(w)
			before, pv, replicas := w.volume(moved), w.pv(), w.fleet.Replicas()
			if !w.turn() {
				t.Error("it is not tried again")
			}
			if c := w.moving(); c.Status != metav1.ConditionFalse || c.Reason != tc.reason || !strings.Contains(c.Message, tc.says) {
				t.Errorf("it says %s %s: %s", c.Status, c.Reason, c.Message)
			}
			now := w.volume(moved)
			if now.Spec.Group != "g1" || !slices.Equal(now.Spec.Replicas, before.Spec.Replicas) || now.Status.Move != nil ||
				w.fleet.Replicas() != replicas || w.pv().ResourceVersion != pv.ResourceVersion || w.usage("g2") != 0 {
				t.Errorf("it was changed: %+v", now)
			}
			w.askMove("")
			if w.turn() || w.moving().Type != "" {
				t.Errorf("a move that was called off is still told of: %+v", w.moving())
			}
		})
	}
}

func (w *world) cordonGroup(name string) {
	w.t.Helper()
	g := &v1alpha1.NodeGroup{}
	must(w.t, w.api.Get(context.Background(), client.ObjectKey{Name: name}, g))
	g.Spec.Cordoned = true
	must(w.t, w.api.Update(context.Background(), g))
	w.pollBoth()
}

func TestADirtyVolumeIsWrittenBackBeforeItMoves(t *testing.T) {
	w := twoGroups(t)
	v := w.volume(moved)
	dead, survivor := v.Spec.Replicas[0], v.Spec.Replicas[1]
	_, err := w.publish(moved, dead)
	must(t, err)
	for _, n := range v.Spec.Replicas {
		w.host(n).Write(ref(v), dirtyBytes)
	}
	w.host(dead).Stop()
	w.taint(dead)
	w.pollBoth()
	must(t, w.unpublish(moved, dead))
	w.askMove("g2")
	for range 5 {
		if !w.turn() {
			break
		}
	}
	if now := w.volume(moved); now.Spec.Group != "g2" || now.Status.Authority != v1alpha1.AuthorityCeph || now.Status.Epoch != 3 {
		t.Fatalf("not written back and moved: %+v, %+v", now.Spec, now.Status)
	}
	group := &v1alpha1.NodeGroup{}
	must(t, w.api.Get(t.Context(), client.ObjectKey{Name: "g1"}, group))
	if stale := group.Status.StaleReplicas; len(stale) != 1 || stale[0].Node != dead || w.host(survivor).Has(ref(v)) {
		t.Errorf("what the dead host has is not on record, or the other's replica is left: %+v", stale)
	}
	w.host(dead).Restart(t)
	w.pollBoth()
	w.isIn("g2")
}
