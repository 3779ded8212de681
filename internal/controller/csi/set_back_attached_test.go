package csi_test

import (
	"context"
	"slices"
	"testing"

	"google.golang.org/grpc/codes"
	"k8s.io/apimachinery/pkg/api/meta"

	"github.com/escache/escache-csi/api/v1alpha1"
	"github.com/escache/escache-csi/internal/controller/volumes"
)

const newClient = "10.0.0.2:0/9"

// takenOverSince makes a volume whose record was set back to a time at which its first holder had it. The
// second one has taken it over since, and has what nobody else has.
func (w *world) takenOverSince(id string) (v *v1alpha1.CacheVolume, first, second string) {
	w.t.Helper()
	v = w.create(id)
	first, second = v.Spec.Replicas[0], v.Spec.Replicas[1]
	_, err := w.publish(id, first)
	must(w.t, err)
	w.host(first).Stage(ref(v), oldClient, 1, "writeback")
	w.host(first).Write(ref(v), dirtyBytes)
	w.host(second).Write(ref(v), dirtyBytes)
	v = w.volume(id)
	v.Status.ClientAddress = oldClient
	must(w.t, w.api.Status().Update(context.Background(), v))
	w.taint(first)
	w.host(first).Stop()
	w.host(first).Release(ref(v))
	w.poll()
	must(w.t, w.unpublish(id, first))
	_, err = w.publish(id, second)
	must(w.t, err)
	w.host(second).Stage(ref(v), newClient, 2, "writeback")
	w.setBack(v)
	return v, first, second
}

// stops fails unless the error says that the record is behind, and a condition tells people.
func (w *world) stops(id string, err error) {
	w.t.Helper()
	wants(w.t, err, codes.FailedPrecondition, "older than", id)
	now := w.volume(id)
	if !meta.IsStatusConditionTrue(now.Status.Conditions, v1alpha1.ConditionRecordBehindDisks) {
		w.t.Error("nobody is told by a condition")
	}
	if now.Status.Epoch != 1 {
		w.t.Errorf("the record is in epoch %d by now", now.Status.Epoch)
	}
}

// TestAnAttachmentThatWasSetBackIsNotRepeated: by the record the node has the volume already.
func TestAnAttachmentThatWasSetBackIsNotRepeated(t *testing.T) {
	w := newWorld(t)
	v, first, second := w.takenOverSince("pvc-1")
	w.host(second).Stop()
	w.host(first).Restart(t)
	w.poll()
	_, err := w.publish("pvc-1", first)
	w.stops("pvc-1", err)
	if note := w.images.notes[volumes.ImageOf(v)]; note.Epoch != 2 || note.AttachedNode != second {
		t.Errorf("noted by now: %+v", note)
	}
}

// TestTheHolderIsNotFencedByARecordThatWasSetBack: by the record another node has the volume, and that one
// is given up. Who has the image open has acknowledged writes in a later attachment.
func TestTheHolderIsNotFencedByARecordThatWasSetBack(t *testing.T) {
	w := newWorld(t)
	v, first, second := w.takenOverSince("pvc-1")
	w.images.fenced, w.images.open[volumes.ImageOf(v)] = nil, []string{newClient}
	w.stops("pvc-1", w.unpublish("pvc-1", first))
	if len(w.images.fenced) > 0 || w.volume("pvc-1").Status.AttachedNode != first {
		t.Errorf("fenced are %v, status %+v; %s has the device", w.images.fenced, w.volume("pvc-1").Status, second)
	}
}

// TestANodeIsGivenUpAlthoughTheImageIsGone: there is no image that could tell of another attachment.
func TestANodeIsGivenUpAlthoughTheImageIsGone(t *testing.T) {
	w := newWorld(t)
	v := w.create("pvc-1")
	node := v.Spec.Replicas[0]
	_, err := w.publish("pvc-1", node)
	must(t, err)
	w.taint(node)
	w.host(node).Stop()
	delete(w.images.images, volumes.ImageOf(v))
	must(t, w.unpublish("pvc-1", node))
	if s := w.volume("pvc-1").Status; s.AttachedNode != "" {
		t.Errorf("status %+v", s)
	}
}

// TestNobodyIsLateByARecordThatWasSetBack: it remembers a fence of the node that has the volume by now, and
// has long given its old client up.
func TestNobodyIsLateByARecordThatWasSetBack(t *testing.T) {
	w := newWorld(t)
	_, _, second := w.takenOverSince("pvc-1")
	v := w.volume("pvc-1")
	v.Status.Fenced = []v1alpha1.FencedClient{{Node: second, Address: "10.0.0.2:0/1"}}
	must(t, w.api.Status().Update(t.Context(), v))
	w.images.fenced, w.images.open[volumes.ImageOf(v)] = nil, []string{newClient}
	err := w.locked.FenceLate(t.Context(), "pvc-1")
	wants(t, err, codes.FailedPrecondition, "older than")
	if slices.Contains(w.images.fenced, newClient) {
		t.Errorf("fenced are %v", w.images.fenced)
	}
}

// TestANodeGetsNothingBeforeTheImageHasItsNote: if the record is set back then, nobody else says so.
func TestANodeGetsNothingBeforeTheImageHasItsNote(t *testing.T) {
	w := newWorld(t)
	v, _, partner := w.usedBefore("pvc-1")
	w.images.noting = volumes.ErrUnavailable
	for range 2 {
		_, err := w.publish("pvc-1", partner)
		wants(t, err, codes.Unavailable)
	}
	w.images.noting = nil
	_, err := w.publish("pvc-1", partner)
	must(t, err)
	if note := w.images.notes[volumes.ImageOf(v)]; note.Epoch != 2 || note.AttachedNode != partner {
		t.Errorf("noted %+v", note)
	}
}

// TestReplicasOfTheSameAttachmentAreNotForgotten: a lost copy was replaced while the volume was attached, and
// the record was set back to before that. It counts the lost copy, whose host is back, and was not told.
func TestReplicasOfTheSameAttachmentAreNotForgotten(t *testing.T) {
	w := newWorld(t)
	v, holder, lost, third := w.widow("pvc-1")
	before := v.DeepCopy()
	w.epoch(holder, "pvc-1")
	must(t, w.locked.Substitute(t.Context(), "pvc-1", v.Status.Epoch, lost, third, volumes.ElsewhereIfAway))
	now := w.volume("pvc-1")
	now.Spec.Replicas, now.Spec.LinkGeneration = before.Spec.Replicas, before.Spec.LinkGeneration
	must(t, w.api.Update(t.Context(), now))
	before.Status.Outdated, before.Status.Repair = nil, nil
	w.setBack(before)
	w.host(holder).Stop()
	w.host(third).Stop()
	w.host(lost).Restart(t)
	w.taint(holder)
	w.poll()
	_ = w.unpublish("pvc-1", holder)
	_, err := w.publish("pvc-1", lost)
	wants(t, err, codes.FailedPrecondition, "older than", "created again")
}
