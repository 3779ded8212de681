package cacheflush

import (
	"strings"
	"testing"

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/escache/escache-csi/api/escache"
	"github.com/escache/escache-csi/api/v1alpha1"
)

// says plays what the repair puts on record.
func (w *world) says(volume string, status metav1.ConditionStatus, reason, message string) {
	w.t.Helper()
	v := w.volume(volume)
	meta.SetStatusCondition(&v.Status.Conditions, metav1.Condition{
		Type: v1alpha1.ConditionRepairing, Status: status, Reason: reason, Message: message,
	})
	must(w.t, w.api.Status().Update(w.t.Context(), v))
}

func TestADrainSaysWhetherItMovesSecondCopies(t *testing.T) {
	for _, asked := range []bool{false, true} {
		w := newWorld(t)
		w.pair("a", mib)
		w.flush(v1alpha1.CacheFlushSpec{Node: "n2", Mode: v1alpha1.FlushModeDrain, SecondCopies: true, MoveSecondCopies: asked})
		w.until(v1alpha1.FlushDrained)
		f := w.pass()
		if taken := meta.IsStatusConditionTrue(f.Status.Conditions, v1alpha1.FlushConditionMoves); taken != asked {
			t.Errorf("asked %v: %+v", asked, f.Status.Conditions)
		}
		if says := of(t, f, "a").Message; (says != "") != asked {
			t.Errorf("asked %v: %q", asked, says)
		}
	}
}

func TestADrainTellsOfEachMove(t *testing.T) {
	w := newWorld(t)
	w.pair("a", mib)
	w.attach("here", "n2", mib)
	w.flush(v1alpha1.CacheFlushSpec{Node: "n2", Mode: v1alpha1.FlushModeDrain, SecondCopies: true, MoveSecondCopies: true})
	w.until(v1alpha1.FlushDrained)
	tells := func(says string) {
		t.Helper()
		f := w.pass()
		if s := of(t, f, "a"); s.Phase != v1alpha1.FlushDrained || s.Message != says || !strings.Contains(complete(f), says) {
			t.Fatalf("want %q, got %+v: %s", says, s, complete(f))
		}
		if s := of(t, f, "here"); s.Message != "" {
			t.Errorf("nothing of it is moved: %+v", s)
		}
	}
	tells("its second copy is to be moved to another host")
	w.says("a", metav1.ConditionFalse, v1alpha1.ReasonNoOtherHost, "no other host of the group can take it")
	tells("stays writing through: no other host of the group can take it")
	w.says("a", metav1.ConditionTrue, "Draining", "everything is in Ceph")
	tells("its second copy is being moved: everything is in Ceph")
	v := w.volume("a")
	v.Spec.Replicas = []string{"n1", "n3"}
	must(t, w.api.Update(t.Context(), v))
	w.outdated("a", "n3")
	w.says("a", metav1.ConditionTrue, "Copying", "n1 copies to n3")
	tells("its second copy is being moved: n1 copies to n3")
	w.outdated("a")
	if s := of(t, w.pass(), "a"); s.Phase != v1alpha1.FlushComplete || w.on("n1", "a").Mode != escache.ModeWriteback {
		t.Errorf("%+v, and the cache is %s", s, w.on("n1", "a").Mode)
	}
}

// repairs plays a repair that has claimed the volume.
func (w *world) repairs(volume string) {
	w.t.Helper()
	v := w.volume(volume)
	v.Status.Repair = &v1alpha1.ReplicaRepair{Epoch: v.Status.Epoch}
	must(w.t, w.api.Status().Update(w.t.Context(), v))
	_, err := w.r.Drain.Turn(w.t.Context(), volume, "repair")
	must(w.t, err)
}

// The repair claims the volume as long as its new copy is not current. An evacuation that is called off, or
// whose finalizer somebody takes off, does not end that.
func TestTheEndOfADrainDoesNotEndTheClaimOfTheMove(t *testing.T) {
	w := newWorld(t)
	w.pair("a", 0)
	w.flush(v1alpha1.CacheFlushSpec{Node: "n2", Mode: v1alpha1.FlushModeDrain, SecondCopies: true, MoveSecondCopies: true})
	w.until(v1alpha1.FlushDrained)
	w.repairs("a")
	f := w.record()
	f.Finalizers = nil
	must(t, w.api.Update(t.Context(), f))
	w.remove()
	w.pass()
	if v := w.volume("a"); len(v.Status.WriteThrough) != 1 || !w.writesThrough("a") {
		t.Errorf("%+v", v.Status)
	}
}
