package attachment_test

import (
	"testing"

	"google.golang.org/grpc/codes"

	"github.com/escache/escache-csi/api/escache"
	"github.com/escache/escache-csi/api/v1alpha1"
	"github.com/escache/escache-csi/test/csitest"
)

// TestTheOnlyCurrentCopyIsNotLaidAnew: an empty replica in its place would be filled from the
// outdated one, and count as current.
func TestTheOnlyCurrentCopyIsNotLaidAnew(t *testing.T) {
	w := newWorld(t)
	v, holder, outdated := w.Lose("pvc-1")
	csitest.Must(t, w.Unpublish("pvc-1", holder))
	w.Reinstall(holder)
	for range 2 {
		_, err := w.Publish("pvc-1", holder)
		csitest.Wants(t, err, codes.FailedPrecondition, holder+" answers that it has no replica any more", "4096 bytes",
			"discard-cache pvc-1")
	}
	if w.Host(holder).Has(csitest.Ref(v)) || !w.Host(outdated).Has(csitest.Ref(v)) {
		t.Error("replicas were changed")
	}
	if s := w.Volume("pvc-1").Status; s.AttachedNode != "" || s.Authority != v1alpha1.AuthorityCache || s.IsOutdated(holder) {
		t.Errorf("status %+v", s)
	}
	// The way out is the same as for a host that is lost.
	_, err := w.Locked.Discard(t.Context(), w.DiscardRequest("pvc-1", w.Volume("pvc-1").Status.Epoch))
	csitest.Must(t, err)
	_, err = w.Publish("pvc-1", holder)
	csitest.Must(t, err)
}

// TestALostReplicaIsWrittenBackFromTheOther: both copies were current, so the other one has all.
func TestALostReplicaIsWrittenBackFromTheOther(t *testing.T) {
	w := newWorld(t)
	v, dead, survivor, _ := w.PowerLoss("pvc-1")
	w.Reinstall(dead)
	out, err := w.Publish("pvc-1", dead)
	csitest.Must(t, err)
	if out[v1alpha1.PublishContextEpoch] != "3" { // the lost one, the flush's, the pod's
		t.Errorf("%s has not written its copy back first: %v", survivor, out)
	}
	now := w.Volume("pvc-1")
	if now.Status.AttachedNode != dead || len(now.Status.Outdated) > 0 || !w.Host(dead).Has(csitest.Ref(v)) {
		t.Errorf("%+v", now.Status)
	}
}

// TestACopyThatIsLaidAnewDoesNotCountBeforeItIsFilled: if the disk of the holder failed meanwhile, its
// copy, the only whole one, would be taken for the one to be filled.
func TestACopyThatIsLaidAnewDoesNotCountBeforeItIsFilled(t *testing.T) {
	w := newWorld(t)
	v := w.Create("pvc-1")
	holder, partner := v.Spec.Replicas[0], v.Spec.Replicas[1]
	_, err := w.Publish("pvc-1", holder)
	csitest.Must(t, err)
	csitest.Must(t, w.Unpublish("pvc-1", holder))
	v = w.Volume("pvc-1")
	v.Status.Authority, v.Status.Outdated = v1alpha1.AuthorityCeph, []string{partner}
	csitest.Must(t, w.API.Status().Update(t.Context(), v))
	_, err = w.Publish("pvc-1", holder)
	csitest.Must(t, err)
	if s := w.Volume("pvc-1").Status; s.Authority != v1alpha1.AuthorityCache || !s.IsOutdated(partner) || len(s.Outdated) != 1 {
		t.Errorf("status %+v", s)
	}
}

// TestATakeOverGoesOnWithoutAPartnerThatAnswersWithAnError: its disk may be dead, or its port be
// taken. Only what the node itself has counts.
func TestATakeOverGoesOnWithoutAPartnerThatAnswersWithAnError(t *testing.T) {
	w := newWorld(t)
	v, dead, survivor, _ := w.PowerLoss("pvc-1")
	w.Reinstall(dead)
	csitest.Must(t, w.Host(dead).Lay(escache.ReplicaRequest{
		VolumeRef: escache.VolumeRef{Pool: "rbd", Image: "another"}, SizeBytes: 1 << 30, CacheBytes: 1 << 26,
		Port: int(v.Spec.Port), Minor: int(v.Spec.Minor),
	}))
	_, err := w.Publish("pvc-1", survivor)
	csitest.Must(t, err)
	if s := w.Volume("pvc-1").Status; s.AttachedNode != survivor {
		t.Errorf("status %+v", s)
	}
}
