package move_test

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
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/escache/escache-csi/api/v1alpha1"
	"github.com/escache/escache-csi/internal/controller/move"
	"github.com/escache/escache-csi/internal/placement"
	"github.com/escache/escache-csi/test/csitest"
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
	w.UsedBefore(moved)
	group := &v1alpha1.NodeGroup{ObjectMeta: metav1.ObjectMeta{Name: "g2"}, Spec: v1alpha1.NodeGroupSpec{Nodes: []string{"n4", "n5", "n6"}}}
	csitest.Must(t, w.API.Create(t.Context(), group))
	w.PollBoth()
	pv := &corev1.PersistentVolume{ObjectMeta: metav1.ObjectMeta{
		Name: moved, UID: "first", Labels: map[string]string{"of": "somebody"}, Finalizers: []string{protection},
	}}
	pv.Spec.CSI = &corev1.CSIPersistentVolumeSource{Driver: v1alpha1.DriverName, VolumeHandle: moved}
	pv.Spec.PersistentVolumeReclaimPolicy = corev1.PersistentVolumeReclaimDelete
	pv.Spec.ClaimRef = &corev1.ObjectReference{Namespace: "shop", Name: "data", UID: claimUID}
	pv.Spec.NodeAffinity = affinity("g1")
	csitest.Must(t, w.API.Create(t.Context(), pv))
	claim := &corev1.PersistentVolumeClaim{ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: "data", UID: claimUID}}
	csitest.Must(t, w.API.Create(t.Context(), claim))
	w.claimIs(corev1.ClaimBound)
	w.bind()
	return w
}

// claimIs has Kubernetes see the claim as bound or lost, and returns it.
func (w *world) claimIs(phase corev1.PersistentVolumeClaimPhase) *corev1.PersistentVolumeClaim {
	w.T.Helper()
	claim := &corev1.PersistentVolumeClaim{}
	csitest.Must(w.T, w.API.Get(context.Background(), client.ObjectKey{Namespace: "shop", Name: "data"}, claim))
	claim.Status.Phase = phase
	csitest.Must(w.T, w.API.Status().Update(context.Background(), claim))
	return claim
}

func affinity(group string) *corev1.VolumeNodeAffinity {
	return &corev1.VolumeNodeAffinity{Required: &corev1.NodeSelector{NodeSelectorTerms: []corev1.NodeSelectorTerm{{
		MatchExpressions: []corev1.NodeSelectorRequirement{{Key: v1alpha1.TopologyKey, Operator: corev1.NodeSelectorOpIn,
			Values: []string{group}}},
	}}}}
}

// turn is one pass of the reconciler, as the present process would make it. It plays the part of
// Kubernetes that binds a claim to a PersistentVolume, before and after.
func (w *world) turn() (again bool) {
	w.T.Helper()
	w.bind()
	r := move.New(move.Config{
		Client: w.Cached, Live: w.API, Volumes: w.Locked, Events: w.events,
		Log: slog.New(slog.NewTextHandler(w.T.Output(), nil)), Again: time.Second, Soon: time.Second, Seldom: time.Minute,
		Longest: 20 * time.Second, Parallel: 1,
	})
	result, err := r.Reconcile(context.Background(), ctrl.Request{NamespacedName: client.ObjectKey{Name: moved}})
	csitest.Must(w.T, err)
	w.bind()
	return result.RequeueAfter > 0
}

func (w *world) bind() {
	w.T.Helper()
	pv := w.pv()
	if pv != nil && pv.Status.Phase == "" {
		pv.Finalizers = []string{protection}
		csitest.Must(w.T, w.API.Update(context.Background(), pv))
		pv.Status.Phase = corev1.VolumeBound
		csitest.Must(w.T, w.API.Status().Update(context.Background(), pv))
	}
}

// pv is the volume's PersistentVolume, nil if it is not there.
func (w *world) pv() *corev1.PersistentVolume {
	w.T.Helper()
	pv := &corev1.PersistentVolume{}
	err := w.API.Get(context.Background(), client.ObjectKey{Name: moved}, pv)
	csitest.Must(w.T, client.IgnoreNotFound(err))
	if err != nil {
		return nil
	}
	return pv
}

func (w *world) moving() metav1.Condition {
	w.T.Helper()
	c := meta.FindStatusCondition(w.Volume(moved).Status.Conditions, v1alpha1.ConditionMoving)
	if c == nil {
		return metav1.Condition{}
	}
	return *c
}

// usage returns how many volumes have a place in a group.
func (w *world) usage(group string) int {
	at := slices.IndexFunc(w.Book.Usage(), func(u placement.Usage) bool { return u.Group == group })
	return w.Book.Usage()[at].Volumes
}

// isIn fails unless the volume is in the group with all that belongs to it, and can be used there and nowhere
// else.
func (w *world) isIn(group string) {
	w.T.Helper()
	v, pv, other := w.Volume(moved), w.pv(), map[string]string{"g1": "g2", "g2": "g1"}[group]
	nodes := map[string][]string{"g1": {"n1", "n2", "n3"}, "g2": {"n4", "n5", "n6"}}
	if v.Spec.Group != group || v.ToMove() || !slices.Contains(nodes[group], v.Spec.Replicas[0]) ||
		!slices.Contains(nodes[group], v.Spec.Replicas[1]) {
		w.T.Fatalf("it is not in %s: %+v, %+v", group, v.Spec, v.Status)
	}
	if w.moving().Type != "" || len(v.Status.Hosts) > 0 && group == "g2" {
		w.T.Errorf("what is on record of the move, or of the former hosts: %+v", v.Status)
	}
	switch {
	case pv == nil:
		w.T.Fatal("its PersistentVolume is gone")
	case pv.Spec.NodeAffinity.Required.NodeSelectorTerms[0].MatchExpressions[0].Values[0] != group,
		pv.Spec.PersistentVolumeReclaimPolicy != corev1.PersistentVolumeReclaimDelete, pv.Spec.ClaimRef.UID != claimUID,
		pv.Labels["of"] != "somebody", !pv.DeletionTimestamp.IsZero():
		w.T.Errorf("its PersistentVolume is %+v", pv)
	}
	w.PollBoth()
	if w.Fleet.Replicas() != 0 {
		w.T.Errorf("replicas are left: %v", w.Fleet.On(csitest.Ref(v)))
	}
	if w.usage(group) != 1 || w.usage(other) != 0 {
		w.T.Errorf("places: %d in %s, %d in %s", w.usage(group), group, w.usage(other), other)
	}
	_, err := w.Publish(moved, nodes[other][0])
	csitest.Wants(w.T, err, codes.FailedPrecondition, "lives in group "+group, "delete the pod")
	_, err = w.Publish(moved, v.Spec.Replicas[0])
	csitest.Must(w.T, err)
	if on := w.Fleet.On(csitest.Ref(v)); len(on) != 2 || !on[v.Spec.Replicas[0]] || !on[v.Spec.Replicas[1]] {
		w.T.Errorf("replicas of %v are on %v", v.Spec.Replicas, on)
	}
	csitest.Must(w.T, w.Unpublish(moved, v.Spec.Replicas[0]))
}

func TestAVolumeMovesToAnotherGroupAndBack(t *testing.T) {
	w := twoGroups(t)
	port := w.Volume(moved).Spec.Port
	w.turn() // nobody has asked
	if v := w.Volume(moved); v.Spec.Group != "g1" || w.Fleet.Replicas() != 2 {
		t.Fatal("it has moved, and nobody asked for it")
	}
	w.AskMove(moved, "g1")
	w.turn()
	if v := w.Volume(moved); v.ToMove() || v.Spec.Group != "g1" {
		t.Errorf("it was in that group already: %+v", v.Spec)
	}
	for _, group := range []string{"g2", "g1"} {
		w.AskMove(moved, group)
		for range 5 {
			if !w.turn() {
				break
			}
		}
		w.isIn(group)
	}
	if w.Volume(moved).Spec.Port != port {
		t.Errorf("port %d, was %d", w.Volume(moved).Spec.Port, port)
	}
	csitest.Must(t, w.Delete(moved))
	if w.Fleet.Replicas() != 0 || w.usage("g1") != 0 {
		t.Errorf("%d replicas, %d volumes", w.Fleet.Replicas(), w.usage("g1"))
	}
}

func TestAVolumeThatCannotMoveStaysAsItIs(t *testing.T) {
	for name, tc := range map[string]struct {
		prepare func(*world)
		reason  string
		says    string
	}{
		"attached": {func(w *world) {
			_, err := w.Publish(moved, w.Volume(moved).Spec.Replicas[0])
			csitest.Must(w.T, err)
		}, v1alpha1.ReasonMoveAttached, "has to be detached first"},
		"about to be attached": {func(w *world) {
			va := &storagev1.VolumeAttachment{ObjectMeta: metav1.ObjectMeta{Name: "va"}}
			va.Spec.NodeName, va.Spec.Source.PersistentVolumeName = "n1", new(string(moved))
			csitest.Must(w.T, w.API.Create(context.Background(), va))
		}, v1alpha1.ReasonMoveAttached, "VolumeAttachment va"},
		"a pod has a node": {func(w *world) {
			pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: "app-0"}, Spec: corev1.PodSpec{NodeName: "n1"}}
			pod.Spec.Volumes = []corev1.Volume{{Name: "data", VolumeSource: corev1.VolumeSource{
				PersistentVolumeClaim: &corev1.PersistentVolumeClaimVolumeSource{ClaimName: "data"},
			}}}
			csitest.Must(w.T, w.API.Create(context.Background(), pod))
		}, v1alpha1.ReasonMoveAttached, "pod shop/app-0"},
		"the group is cordoned": {func(w *world) { w.cordonGroup("g2") }, v1alpha1.ReasonMoveRefused, "uncordon g2"},
		"no such group":         {func(w *world) { w.AskMove(moved, "g3") }, v1alpha1.ReasonMoveRefused, "no NodeGroup g3"},
		"the group is full": {func(w *world) {
			for _, n := range []string{"n4", "n5"} {
				w.Host(n).Stop()
			}
			w.PollBoth()
		}, v1alpha1.ReasonMoveWaiting, "place for volume"},
		"its hosts have just died": {func(w *world) {
			for _, n := range []string{"n4", "n5", "n6"} {
				w.Host(n).Stop() // and nobody has noticed
			}
		}, v1alpha1.ReasonMoveWaiting, "remove the replica of volume"},
		"dirty, and the copies are gone": {func(w *world) {
			v := w.Volume(moved)
			holder := v.Spec.Replicas[0]
			_, err := w.Publish(moved, holder)
			csitest.Must(w.T, err)
			for _, n := range v.Spec.Replicas {
				w.Host(n).Write(csitest.Ref(v), csitest.DirtyBytes)
			}
			w.Host(holder).Stop()
			w.Taint(holder)
			w.PollBoth()
			csitest.Must(w.T, w.Unpublish(moved, holder))
			w.Host(v.Spec.Replicas[1]).Stop()
			w.PollBoth()
		}, v1alpha1.ReasonMoveWaiting, "written back"},
		"set back": {func(w *world) {
			old := w.Volume(moved)
			_, err := w.Publish(moved, old.Spec.Replicas[0])
			csitest.Must(w.T, err)
			csitest.Must(w.T, w.Unpublish(moved, old.Spec.Replicas[0]))
			w.SetBack(old)
		}, v1alpha1.ReasonMoveRefused, "the record is older"},
		"somebody keeps its PersistentVolume": {func(w *world) {
			pv := w.pv()
			pv.Finalizers = append(pv.Finalizers, "backup.example/keep")
			csitest.Must(w.T, w.API.Update(context.Background(), pv))
		}, v1alpha1.ReasonMoveRefused, "backup.example/keep"},
		"its claim is gone": {func(w *world) {
			pv := w.pv()
			pv.Status.Phase = corev1.VolumeReleased
			csitest.Must(w.T, w.API.Status().Update(context.Background(), pv))
		}, v1alpha1.ReasonMoveRefused, "its claim is gone"},
		"being released": {func(w *world) { w.AskRelease(moved, true) }, v1alpha1.ReasonMoveRefused, "released"},
		"a former holder has the device": {func(w *world) {
			v := w.Volume(moved)
			w.Host(v.Spec.Replicas[1]).Connect(csitest.Ref(v), csitest.OldClient)
		}, v1alpha1.ReasonMoveRefused, "still has the device"},
	} {
		t.Run(name, func(t *testing.T) {
			w := twoGroups(t)
			w.AskMove(moved, "g2")
			tc.prepare(w)
			before, pv, replicas := w.Volume(moved), w.pv(), w.Fleet.Replicas()
			if !w.turn() {
				t.Error("it is not tried again")
			}
			if c := w.moving(); c.Status != metav1.ConditionFalse || c.Reason != tc.reason || !strings.Contains(c.Message, tc.says) {
				t.Errorf("it says %s %s: %s", c.Status, c.Reason, c.Message)
			}
			now := w.Volume(moved)
			if now.Spec.Group != "g1" || !slices.Equal(now.Spec.Replicas, before.Spec.Replicas) || now.Status.Move != nil ||
				w.Fleet.Replicas() != replicas || w.pv().ResourceVersion != pv.ResourceVersion || w.usage("g2") != 0 {
				t.Errorf("it was changed: %+v", now)
			}
			w.AskMove(moved, "")
			if w.turn() || w.moving().Type != "" {
				t.Errorf("a move that was called off is still told of: %+v", w.moving())
			}
		})
	}
}

func (w *world) cordonGroup(name string) {
	w.T.Helper()
	g := &v1alpha1.NodeGroup{}
	csitest.Must(w.T, w.API.Get(context.Background(), client.ObjectKey{Name: name}, g))
	g.Spec.Cordoned = true
	csitest.Must(w.T, w.API.Update(context.Background(), g))
	w.PollBoth()
}

func TestADirtyVolumeIsWrittenBackBeforeItMoves(t *testing.T) {
	w := twoGroups(t)
	v := w.Volume(moved)
	dead, survivor := v.Spec.Replicas[0], v.Spec.Replicas[1]
	_, err := w.Publish(moved, dead)
	csitest.Must(t, err)
	for _, n := range v.Spec.Replicas {
		w.Host(n).Write(csitest.Ref(v), csitest.DirtyBytes)
	}
	w.Host(dead).Stop()
	w.Taint(dead)
	w.PollBoth()
	csitest.Must(t, w.Unpublish(moved, dead))
	w.AskMove(moved, "g2")
	for range 5 {
		if !w.turn() {
			break
		}
	}
	if now := w.Volume(moved); now.Spec.Group != "g2" || now.Status.Authority != v1alpha1.AuthorityCeph || now.Status.Epoch != 3 {
		t.Fatalf("not written back and moved: %+v, %+v", now.Spec, now.Status)
	}
	group := &v1alpha1.NodeGroup{}
	csitest.Must(t, w.API.Get(t.Context(), client.ObjectKey{Name: "g1"}, group))
	if stale := group.Status.StaleReplicas; len(stale) != 1 || stale[0].Node != dead || w.Host(survivor).Has(csitest.Ref(v)) {
		t.Errorf("what the dead host has is not on record, or the other's replica is left: %+v", stale)
	}
	w.Host(dead).Restart(t)
	w.PollBoth()
	w.isIn("g2")
}

func TestAMovedVolumeGetsItsSizeInItsNewGroup(t *testing.T) {
	w := twoGroups(t)
	csitest.Must(t, w.Modify(moved, "cacheSize", "256Mi"))
	w.AskMove(moved, "g2")
	for range 6 {
		if !w.turn() {
			break
		}
	}
	v := w.Volume(moved)
	_, err := w.Publish(moved, v.Spec.Replicas[0])
	csitest.Must(t, err)
	for _, node := range w.Volume(moved).Spec.Replicas {
		if w.CacheSizes(v)[node] != 256<<20 || !strings.HasPrefix(w.Volume(moved).Spec.Group, "g2") {
			t.Errorf("copies %v", w.CacheSizes(v))
		}
	}
}
