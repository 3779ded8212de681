package snapshots_test

import (
	"testing"
	"time"

	"google.golang.org/grpc/codes"
	"k8s.io/apimachinery/pkg/api/meta"

	"github.com/escache/escache-csi/api/v1alpha1"
	"github.com/escache/escache-csi/internal/authority"
	"github.com/escache/escache-csi/internal/controller/volumes"
	"github.com/escache/escache-csi/test/csitest"
)

// setBack restores the records of snapshots from the moment at which they were being taken, so many hours ago.
func (w *world) setBack(hours int) (taken map[volumes.SnapshotRef]time.Time) {
	w.T.Helper()
	taken = map[volumes.SnapshotRef]time.Time{}
	for _, record := range w.Snapshots() {
		ref := volumes.SnapshotOf(&record)
		w.Images.TakenAt[ref] = w.Images.TakenAt[ref].Add(-time.Duration(hours) * time.Hour)
		taken[ref] = w.Images.TakenAt[ref]
		record.Status = v1alpha1.CacheSnapshotStatus{}
		csitest.Must(w.T, w.API.Status().Update(w.T.Context(), &record))
	}
	w.Restart()
	return taken
}

func (w *world) stay(taken map[volumes.SnapshotRef]time.Time) {
	w.T.Helper()
	for ref, at := range taken {
		if !w.Images.TakenAt[ref].Equal(at) {
			w.T.Errorf("snapshot %s of %s is of %s now", ref, at, w.Images.TakenAt[ref])
		}
	}
}

// TestACompleteSnapshotIsNotReplacedByARecordThatWasSetBack: what it has may be nowhere else any more.
func TestACompleteSnapshotIsNotReplacedByARecordThatWasSetBack(t *testing.T) {
	w := newWorld(t)
	w.Create("a")
	w.Create("b")
	_, err := w.Snap("s", "a")
	csitest.Must(t, err)
	_, err = w.SnapGroup("g", "a", "b")
	csitest.Must(t, err)
	taken := w.setBack(2)
	_, err = w.Snap("s", "a")
	csitest.Wants(t, err, codes.FailedPrecondition, "docs/restore-etcd.md")
	_, err = w.SnapGroup("g", "a", "b")
	csitest.Wants(t, err, codes.FailedPrecondition, "docs/restore-etcd.md")
	w.stay(taken)

	// A volume that may not be used is no reason either to take back what was not begun.
	v := w.Volume("a")
	v.Status.Phase = v1alpha1.VolumeConflict
	csitest.Must(t, w.API.Status().Update(t.Context(), v))
	if _, err := w.SnapGroup("g", "a", "b"); err == nil {
		t.Error("a snapshot of a volume in Conflict")
	}
	w.stay(taken)

	// The records are gone, as csi-snapshotter knows of none. That makes no complete snapshot one to replace.
	if left := w.Snapshots(); len(left) > 0 {
		t.Errorf("on record: %v", left)
	}
	v = w.Volume("a")
	v.Status.Phase = v1alpha1.VolumeReady
	csitest.Must(t, w.API.Status().Update(t.Context(), v))
	for range 2 {
		_, err = w.Snap("s", "a")
		csitest.Wants(t, err, codes.FailedPrecondition, "docs/restore-etcd.md")
		_, err = w.SnapGroup("g", "a", "b")
		csitest.Wants(t, err, codes.FailedPrecondition, "docs/restore-etcd.md")
	}
	if left := w.Snapshots(); len(left) > 0 {
		t.Errorf("there are records that csi-snapshotter does not know: %v", left)
	}
	w.stay(taken)

	// Somebody renames it, to keep its data.
	for ref := range taken {
		delete(w.Images.TakenAt, ref)
		delete(w.Images.Taken, ref)
	}
	again, err := w.Snap("s", "a")
	csitest.Must(t, err)
	if !again.GetReadyToUse() {
		t.Errorf("taken again: %+v", again)
	}
}

func TestWhatAnInterruptedCallHasLeftIsReplaced(t *testing.T) {
	w := newWorld(t)
	w.Create("a")
	_, err := w.Snap("s", "a")
	csitest.Must(t, err)
	taken := w.setBack(0)
	again, err := w.Snap("s", "a")
	csitest.Must(t, err)
	for ref, at := range taken {
		if !again.GetReadyToUse() || !w.Images.TakenAt[ref].After(at) {
			t.Errorf("taken at %s, and again at %s: %+v", at, w.Images.TakenAt[ref], again)
		}
	}
}

// TestNoSnapshotByARecordThatGivesTheVolumeToAnEarlierHolder: that host was cut off with a clean device, another one has had
// the volume since, and etcd was restored to before that. The image lacks what the other one's cache has, and its I/O goes
// on while that of the first one rests.
func TestNoSnapshotByARecordThatGivesTheVolumeToAnEarlierHolder(t *testing.T) {
	for name, snap := range map[string]func(w *world) error{
		"snapshot":       func(w *world) error { _, err := w.Snap("s", "a"); return err },
		"group snapshot": func(w *world) error { _, err := w.SnapGroup("g", "a", "b"); return err },
	} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t)
			w.Create("b")
			v, holder := w.Connected("a")
			note := w.Images.Notes[volumes.ImageOf(v)]
			note.Epoch, note.AttachedNode = v.Status.Epoch+1, authority.Partner(v, holder)
			w.Images.Notes[volumes.ImageOf(v)] = note
			csitest.Wants(t, snap(w), codes.FailedPrecondition, "docs/restore-etcd.md")
			if len(w.Images.TakenAt) > 0 || !meta.IsStatusConditionTrue(w.Volume("a").Status.Conditions, v1alpha1.ConditionRecordBehindDisks) {
				t.Errorf("taken: %v, conditions %+v", w.Images.TakenAt, w.Volume("a").Status.Conditions)
			}
		})
	}
}
