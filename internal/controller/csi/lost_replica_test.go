package csi_test

import (
	"context"
	"testing"

	"google.golang.org/grpc/codes"
	corev1 "k8s.io/api/core/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/escache/escache-csi/api/escache"
	"github.com/escache/escache-csi/api/v1alpha1"
)

// reinstall starts a host again under its name, with an empty volume group.
func (w *world) reinstall(name string) {
	w.t.Helper()
	w.host(name).Forget()
	w.host(name).Restart(w.t)
	n := &corev1.Node{}
	must(w.t, w.api.Get(context.Background(), client.ObjectKey{Name: name}, n))
	n.Spec.Taints = nil
	must(w.t, w.api.Update(context.Background(), n))
	w.poll()
}

// TestTheOnlyCurrentCopyIsNotLaidAnew: an empty replica in its place would be filled from the
// outdated one, and count as current.
func TestTheOnlyCurrentCopyIsNotLaidAnew(t *testing.T) {
	w := newWorld(t)
	v, holder, outdated := w.lose("pvc-1")
	must(t, w.unpublish("pvc-1", holder))
	w.reinstall(holder)
	for range 2 {
		_, err := w.publish("pvc-1", holder)
		wants(t, err, codes.FailedPrecondition, holder+" answers that it has no replica any more", "4096 bytes", "discard-cache pvc-1")
	}
	if w.host(holder).Has(ref(v)) || !w.host(outdated).Has(ref(v)) {
		t.Error("replicas were changed")
	}
	if s := w.volume("pvc-1").Status; s.AttachedNode != "" || s.Authority != v1alpha1.AuthorityCache || s.IsOutdated(holder) {
		t.Errorf("status %+v", s)
	}
	// The way out is the same as for a host that is lost.
	_, err := w.locked.Discard(t.Context(), w.request("pvc-1", w.volume("pvc-1").Status.Epoch))
	must(t, err)
	_, err = w.publish("pvc-1", holder)
	must(t, err)
}

// TestALostReplicaIsWrittenBackFromTheOther: both copies were current, so the other one has all.
func TestALostReplicaIsWrittenBackFromTheOther(t *testing.T) {
	w := newWorld(t)
	v, dead, survivor, _ := w.powerLoss("pvc-1")
	w.reinstall(dead)
	out, err := w.publish("pvc-1", dead)
	must(t, err)
	if out[v1alpha1.PublishContextEpoch] != "3" { // the lost one, the flush's, the pod's
		t.Errorf("%s has not written its copy back first: %v", survivor, out)
	}
	now := w.volume("pvc-1")
	if now.Status.AttachedNode != dead || len(now.Status.Outdated) > 0 || !w.host(dead).Has(ref(v)) {
		t.Errorf("%+v", now.Status)
	}
}

// TestACopyThatIsLaidAnewDoesNotCountBeforeItIsFilled: if the disk of the holder failed meanwhile, its
// copy, the only whole one, would be taken for the one to be filled.
func TestACopyThatIsLaidAnewDoesNotCountBeforeItIsFilled(t *testing.T) {
	w := newWorld(t)
	v := w.create("pvc-1")
	holder, partner := v.Spec.Replicas[0], v.Spec.Replicas[1]
	_, err := w.publish("pvc-1", holder)
	must(t, err)
	must(t, w.unpublish("pvc-1", holder))
	v = w.volume("pvc-1")
	v.Status.Authority, v.Status.Outdated = v1alpha1.AuthorityCeph, []string{partner}
	must(t, w.api.Status().Update(t.Context(), v))
	_, err = w.publish("pvc-1", holder)
	must(t, err)
	if s := w.volume("pvc-1").Status; s.Authority != v1alpha1.AuthorityCache || !s.IsOutdated(partner) || len(s.Outdated) != 1 {
		t.Errorf("status %+v", s)
	}
}

// TestATakeOverGoesOnWithoutAPartnerThatAnswersWithAnError: its disk may be dead, or its port be
// taken. Only what the node itself has counts.
func TestATakeOverGoesOnWithoutAPartnerThatAnswersWithAnError(t *testing.T) {
	w := newWorld(t)
	v, dead, survivor, _ := w.powerLoss("pvc-1")
	w.reinstall(dead)
	must(t, w.host(dead).Lay(escache.ReplicaRequest{
		VolumeRef: escache.VolumeRef{Pool: "rbd", Image: "another"}, SizeBytes: 1 << 30, CacheBytes: 1 << 26,
		Port: int(v.Spec.Port), Minor: int(v.Spec.Minor),
	}))
	_, err := w.publish("pvc-1", survivor)
	must(t, err)
	if s := w.volume("pvc-1").Status; s.AttachedNode != survivor {
		t.Errorf("status %+v", s)
	}
}
