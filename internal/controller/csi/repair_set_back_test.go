package csi_test

import (
	"context"
	"errors"
	"slices"
	"testing"

	"google.golang.org/grpc/codes"
	"k8s.io/apimachinery/pkg/api/meta"

	"github.com/escache/escache-csi/api/v1alpha1"
	"github.com/escache/escache-csi/internal/authority"
	"github.com/escache/escache-csi/internal/controller/volumes"
)

// replaced makes a volume whose lost copy was replaced on the third node, and returns its record from
// before that.
func (w *world) replaced(id string) (before *v1alpha1.CacheVolume, lost, third string) {
	w.t.Helper()
	before, holder, lost, third := w.widow(id)
	w.epoch(holder, id)
	must(w.t, w.locked.Substitute(w.t.Context(), id, before.Status.Epoch, lost, third, volumes.ElsewhereIfAway))
	_, err := w.locked.Copy(w.t.Context(), id, before.Status.Epoch)
	must(w.t, err)
	w.host(holder).Sync(ref(before), 100)
	c, err := w.locked.Copy(w.t.Context(), id, before.Status.Epoch)
	must(w.t, err)
	if !c.Done {
		w.t.Fatalf("the copy is not there: %+v", c)
	}
	return before, lost, third
}

// setAllBack restores an older record with its spec, as a restored etcd does.
func (w *world) setAllBack(old *v1alpha1.CacheVolume) {
	w.t.Helper()
	now := w.volume(old.Name)
	now.Spec = *old.Spec.DeepCopy()
	must(w.t, w.api.Update(context.Background(), now))
	w.setBack(old)
	w.restart()
}

// TestNoCopyIsReplacedByARecordThatWasSetBack: the record is from before the copy was replaced, within one
// attachment. The holder answers, but its disk may have failed since: then the new copy is the only one.
func TestNoCopyIsReplacedByARecordThatWasSetBack(t *testing.T) {
	w := newWorld(t)
	before, lost, third := w.replaced("pvc-1")
	w.host(third).Write(ref(before), dirtyBytes)
	w.setAllBack(before)
	for range 3 {
		err := w.locked.Substitute(t.Context(), "pvc-1", before.Status.Epoch, lost, third, volumes.ElsewhereIfAway)
		if !errors.Is(err, authority.ErrRecordBehind) {
			t.Errorf("the copy is replaced by a record that was set back: %v", err)
		}
	}
	if !w.holds(third, before) {
		t.Error("the copy was removed that may be the only one")
	}
	v := w.volume("pvc-1")
	if !meta.IsStatusConditionTrue(v.Status.Conditions, v1alpha1.ConditionRecordBehindDisks) {
		t.Error("nobody is told by a condition")
	}
	if note := w.images.notes[volumes.ImageOf(before)]; note.Spec.LinkGeneration <= before.Spec.LinkGeneration {
		t.Errorf("what the image tells of was overwritten: %+v", note.Spec)
	}
}

// TestARecordThatNobodyCouldCompareReplacesNoCopy: what the image says is not known.
func TestARecordThatNobodyCouldCompareReplacesNoCopy(t *testing.T) {
	w := newWorld(t)
	before, _, lost, third := w.widow("pvc-1")
	w.images.reading = errors.New("Ceph does not answer")
	err := w.locked.Substitute(t.Context(), "pvc-1", before.Status.Epoch, lost, third, volumes.ElsewhereIfAway)
	wants(t, err, codes.Internal, "Ceph does not answer")
	if now := w.volume("pvc-1"); !slices.Equal(now.Spec.Replicas, before.Spec.Replicas) || now.Status.IsOutdated(third) {
		t.Errorf("replicas %v, outdated %v", now.Spec.Replicas, now.Status.Outdated)
	}
	w.images.reading = nil
	must(t, w.locked.Substitute(t.Context(), "pvc-1", before.Status.Epoch, lost, third, volumes.ElsewhereIfAway))
}

// TestAReplacedCopyIsNotedInTheEnd: Ceph takes no note when the copy is replaced, or csi-controller dies before
// it. The image tells of the new copy before that counts, as soon as Ceph takes the note.
func TestAReplacedCopyIsNotedInTheEnd(t *testing.T) {
	w := newWorld(t)
	v, holder, lost, third := w.widow("pvc-1")
	w.epoch(holder, "pvc-1")
	noted := func() bool { return slices.Contains(w.images.notes[volumes.ImageOf(v)].Spec.Replicas, third) }
	w.images.noting = errors.New("the pool is full")
	must(t, w.locked.Substitute(t.Context(), "pvc-1", v.Status.Epoch, lost, third, volumes.ElsewhereIfAway))
	_, err := w.locked.Copy(t.Context(), "pvc-1", v.Status.Epoch)
	must(t, err) // a full pool keeps no volume on one copy
	if !w.host(third).Has(ref(v)) || noted() {
		t.Fatalf("copy laid: %v, noted: %v", w.host(third).Has(ref(v)), noted())
	}
	w.images.noting = nil
	w.host(holder).Sync(ref(v), 100)
	_, err = w.locked.Copy(t.Context(), "pvc-1", v.Status.Epoch)
	must(t, err)
	if !noted() {
		t.Error("the image does not tell of the new copy")
	}
}

// TestANoteOfALaterVersionIsLeftAlone: this version does not know what it says, so it may say that the record
// was set back.
func TestANoteOfALaterVersionIsLeftAlone(t *testing.T) {
	w := newWorld(t)
	v, holder, _ := w.usedBefore("pvc-1")
	w.images.notes[volumes.ImageOf(v)] = volumes.Note{Later: true}
	_, err := w.publish("pvc-1", holder)
	wants(t, err, codes.FailedPrecondition, "later version", "upgrade csi-controller")
	wants(t, w.delete("pvc-1"), codes.FailedPrecondition, "later version")
	if !w.images.notes[volumes.ImageOf(v)].Later {
		t.Error("the note was overwritten")
	}
}
