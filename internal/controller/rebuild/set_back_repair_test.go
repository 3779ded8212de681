package rebuild_test

import (
	"context"
	"errors"
	"slices"
	"testing"

	"google.golang.org/grpc/codes"
	"k8s.io/apimachinery/pkg/api/meta"

	"github.com/escache/escache-csi/api/escache"
	"github.com/escache/escache-csi/api/v1alpha1"
	"github.com/escache/escache-csi/internal/authority"
	"github.com/escache/escache-csi/internal/controller/volumes"
	"github.com/escache/escache-csi/test/csitest"
)

// replaced makes a volume whose lost copy was replaced on the third node, and returns its record from
// before that.
func (w *world) replaced(id string) (before *v1alpha1.CacheVolume, lost, third string) {
	w.T.Helper()
	before, holder, lost, third := w.Widow(id)
	w.TakeEpoch(holder, id)
	csitest.Must(w.T, w.Locked.Substitute(w.T.Context(), id, before.Status.Epoch, lost, third, volumes.ElsewhereIfAway))
	_, err := w.Locked.Copy(w.T.Context(), id, before.Status.Epoch)
	csitest.Must(w.T, err)
	w.Host(holder).Sync(csitest.Ref(before), 100)
	c, err := w.Locked.Copy(w.T.Context(), id, before.Status.Epoch)
	csitest.Must(w.T, err)
	if !c.Done {
		w.T.Fatalf("the copy is not there: %+v", c)
	}
	return before, lost, third
}

// setAllBack restores an older record with its spec, as a restored etcd does.
func (w *world) setAllBack(old *v1alpha1.CacheVolume) {
	w.T.Helper()
	now := w.Volume(old.Name)
	now.Spec = *old.Spec.DeepCopy()
	csitest.Must(w.T, w.API.Update(context.Background(), now))
	w.SetBack(old)
	w.Restart()
}

// TestNoCopyIsReplacedByARecordThatWasSetBack: the record is from before the copy was replaced, within one
// attachment. The holder answers, but its disk may have failed since: then the new copy is the only one.
func TestNoCopyIsReplacedByARecordThatWasSetBack(t *testing.T) {
	w := newWorld(t)
	before, lost, third := w.replaced("pvc-1")
	w.Host(third).Write(csitest.Ref(before), csitest.DirtyBytes)
	w.setAllBack(before)
	for range 3 {
		err := w.Locked.Substitute(t.Context(), "pvc-1", before.Status.Epoch, lost, third, volumes.ElsewhereIfAway)
		if !errors.Is(err, authority.ErrRecordBehind) {
			t.Errorf("the copy is replaced by a record that was set back: %v", err)
		}
	}
	if !w.Holds(third, before) {
		t.Error("the copy was removed that may be the only one")
	}
	v := w.Volume("pvc-1")
	if !meta.IsStatusConditionTrue(v.Status.Conditions, v1alpha1.ConditionRecordBehindDisks) {
		t.Error("nobody is told by a condition")
	}
	if note := w.Images.Notes[volumes.ImageOf(before)]; note.Spec.LinkGeneration <= before.Spec.LinkGeneration {
		t.Errorf("what the image tells of was overwritten: %+v", note.Spec)
	}
}

// TestWithoutCephACopyIsReplacedOnlyBesideAWholeOne: what the image says is not known. If the holder works on its own
// copy, no other one is the only one.
func TestWithoutCephACopyIsReplacedOnlyBesideAWholeOne(t *testing.T) {
	for disk, goesOn := range map[escache.DiskState]bool{escache.DiskUpToDate: true, escache.DiskDiskless: false} {
		t.Run(string(disk), func(t *testing.T) {
			w := newWorld(t)
			v, holder, lost, third := w.Widow("pvc-1")
			w.TakeEpoch(holder, "pvc-1")
			w.Host(holder).SetDisk(csitest.Ref(v), disk)
			w.Images.Reading = errors.New("Ceph does not answer")
			err := w.Locked.Substitute(t.Context(), "pvc-1", v.Status.Epoch, lost, third, volumes.ElsewhereIfAway)
			if now := w.Volume("pvc-1"); goesOn != (err == nil) || goesOn != now.Spec.HasReplica(third) || goesOn != now.Status.IsOutdated(third) {
				t.Fatalf("replicas %v, outdated %v: %v", now.Spec.Replicas, now.Status.Outdated, err)
			}
			if !goesOn {
				return
			}
			_, err = w.Locked.Copy(t.Context(), "pvc-1", v.Status.Epoch)
			if csitest.Must(t, err); !w.Host(third).Has(csitest.Ref(v)) {
				t.Error("nobody copies")
			}
		})
	}
}

// TestAReplacedCopyIsNotedInTheEnd: Ceph takes no note when the copy is replaced, or csi-controller dies before
// it. The image tells of the new copy before that counts, as soon as Ceph takes the note.
func TestAReplacedCopyIsNotedInTheEnd(t *testing.T) {
	w := newWorld(t)
	v, holder, lost, third := w.Widow("pvc-1")
	w.TakeEpoch(holder, "pvc-1")
	noted := func() bool { return slices.Contains(w.Images.Notes[volumes.ImageOf(v)].Spec.Replicas, third) }
	w.Images.Noting = errors.New("the pool is full")
	csitest.Must(t, w.Locked.Substitute(t.Context(), "pvc-1", v.Status.Epoch, lost, third, volumes.ElsewhereIfAway))
	_, err := w.Locked.Copy(t.Context(), "pvc-1", v.Status.Epoch)
	csitest.Must(t, err) // a full pool keeps no volume on one copy
	if !w.Host(third).Has(csitest.Ref(v)) || noted() {
		t.Fatalf("copy laid: %v, noted: %v", w.Host(third).Has(csitest.Ref(v)), noted())
	}
	w.Images.Noting = nil
	w.Host(holder).Sync(csitest.Ref(v), 100)
	_, err = w.Locked.Copy(t.Context(), "pvc-1", v.Status.Epoch)
	csitest.Must(t, err)
	if !noted() {
		t.Error("the image does not tell of the new copy")
	}
}

// TestANoteOfALaterVersionIsLeftAlone: this version does not know what it says, so it may say that the record
// was set back.
func TestANoteOfALaterVersionIsLeftAlone(t *testing.T) {
	w := newWorld(t)
	v, holder, _ := w.UsedBefore("pvc-1")
	w.Images.Notes[volumes.ImageOf(v)] = volumes.Note{Later: true}
	_, err := w.Publish("pvc-1", holder)
	csitest.Wants(t, err, codes.FailedPrecondition, "later version", "upgrade csi-controller")
	csitest.Wants(t, w.Delete("pvc-1"), codes.FailedPrecondition, "later version")
	if !w.Images.Notes[volumes.ImageOf(v)].Later {
		t.Error("the note was overwritten")
	}
}
