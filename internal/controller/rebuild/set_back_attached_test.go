package rebuild_test

import (
	"slices"
	"testing"

	"google.golang.org/grpc/codes"
	"k8s.io/apimachinery/pkg/api/meta"

	"github.com/escache/escache-csi/api/v1alpha1"
	"github.com/escache/escache-csi/internal/controller/volumes"
	"github.com/escache/escache-csi/test/csitest"
)

// stops fails unless the error says that the record is behind, and a condition tells people.
func (w *world) stops(id string, err error) {
	w.T.Helper()
	csitest.Wants(w.T, err, codes.FailedPrecondition, "older than", id)
	now := w.Volume(id)
	if !meta.IsStatusConditionTrue(now.Status.Conditions, v1alpha1.ConditionRecordBehindDisks) {
		w.T.Error("nobody is told by a condition")
	}
	if now.Status.Epoch != 1 {
		w.T.Errorf("the record is in epoch %d by now", now.Status.Epoch)
	}
}

// TestAnAttachmentThatWasSetBackIsNotRepeated: by the record the node has the volume already.
func TestAnAttachmentThatWasSetBackIsNotRepeated(t *testing.T) {
	w := newWorld(t)
	v, first, second := w.TakenOverSince("pvc-1")
	w.Host(second).Stop()
	w.Host(first).Restart(t)
	w.Poll()
	_, err := w.Publish("pvc-1", first)
	w.stops("pvc-1", err)
	if note := w.Images.Notes[volumes.ImageOf(v)]; note.Epoch != 2 || note.AttachedNode != second {
		t.Errorf("noted by now: %+v", note)
	}
}

// TestTheHolderIsNotFencedByARecordThatWasSetBack: by the record another node has the volume, and that one
// is given up. Who has the image open has acknowledged writes in a later attachment.
func TestTheHolderIsNotFencedByARecordThatWasSetBack(t *testing.T) {
	w := newWorld(t)
	v, first, second := w.TakenOverSince("pvc-1")
	w.Images.Fenced, w.Images.Open[volumes.ImageOf(v)] = nil, []string{csitest.NewClient}
	w.stops("pvc-1", w.Unpublish("pvc-1", first))
	if len(w.Images.Fenced) > 0 || w.Volume("pvc-1").Status.AttachedNode != first {
		t.Errorf("fenced are %v, status %+v; %s has the device", w.Images.Fenced, w.Volume("pvc-1").Status, second)
	}
}

// TestANodeIsGivenUpAlthoughTheImageIsGone: there is no image that could tell of another attachment.
func TestANodeIsGivenUpAlthoughTheImageIsGone(t *testing.T) {
	w := newWorld(t)
	v := w.Create("pvc-1")
	node := v.Spec.Replicas[0]
	_, err := w.Publish("pvc-1", node)
	csitest.Must(t, err)
	w.Taint(node)
	w.Host(node).Stop()
	delete(w.Images.Sizes, volumes.ImageOf(v))
	csitest.Must(t, w.Unpublish("pvc-1", node))
	if s := w.Volume("pvc-1").Status; s.AttachedNode != "" {
		t.Errorf("status %+v", s)
	}
}

// TestNobodyIsLateByARecordThatWasSetBack: it remembers a fence of the node that has the volume by now, and
// has long given its old client up.
func TestNobodyIsLateByARecordThatWasSetBack(t *testing.T) {
	w := newWorld(t)
	_, _, second := w.TakenOverSince("pvc-1")
	v := w.Volume("pvc-1")
	v.Status.Fenced = []v1alpha1.FencedClient{{Node: second, Address: "10.0.0.2:0/1"}}
	csitest.Must(t, w.API.Status().Update(t.Context(), v))
	w.Images.Fenced, w.Images.Open[volumes.ImageOf(v)] = nil, []string{csitest.NewClient}
	err := w.Locked.FenceLate(t.Context(), "pvc-1")
	csitest.Wants(t, err, codes.FailedPrecondition, "older than")
	if slices.Contains(w.Images.Fenced, csitest.NewClient) {
		t.Errorf("fenced are %v", w.Images.Fenced)
	}
}

// TestANodeGetsNothingBeforeTheImageHasItsNote: if the record is set back then, nobody else says so.
func TestANodeGetsNothingBeforeTheImageHasItsNote(t *testing.T) {
	w := newWorld(t)
	v, _, partner := w.UsedBefore("pvc-1")
	w.Images.Noting = volumes.ErrUnavailable
	for range 2 {
		_, err := w.Publish("pvc-1", partner)
		csitest.Wants(t, err, codes.Unavailable)
	}
	w.Images.Noting = nil
	_, err := w.Publish("pvc-1", partner)
	csitest.Must(t, err)
	if note := w.Images.Notes[volumes.ImageOf(v)]; note.Epoch != 2 || note.AttachedNode != partner {
		t.Errorf("noted %+v", note)
	}
}

// TestReplicasOfTheSameAttachmentAreNotForgotten: a lost copy was replaced while the volume was attached, and
// the record was set back to before that. It counts the lost copy, whose host is back, and was not told.
func TestReplicasOfTheSameAttachmentAreNotForgotten(t *testing.T) {
	w := newWorld(t)
	v, holder, lost, third := w.Widow("pvc-1")
	before := v.DeepCopy()
	w.TakeEpoch(holder, "pvc-1")
	csitest.Must(t, w.Locked.Substitute(t.Context(), "pvc-1", v.Status.Epoch, lost, third, volumes.ElsewhereIfAway))
	now := w.Volume("pvc-1")
	now.Spec.Replicas, now.Spec.LinkGeneration = before.Spec.Replicas, before.Spec.LinkGeneration
	csitest.Must(t, w.API.Update(t.Context(), now))
	before.Status.Outdated, before.Status.Repair = nil, nil
	w.SetBack(before)
	w.Host(holder).Stop()
	w.Host(third).Stop()
	w.Host(lost).Restart(t)
	w.Taint(holder)
	w.Poll()
	_ = w.Unpublish("pvc-1", holder)
	_, err := w.Publish("pvc-1", lost)
	csitest.Wants(t, err, codes.FailedPrecondition, "older than", "created again")
}
