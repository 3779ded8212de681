package snapshots_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/grpc/codes"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"

	"github.com/escache/escache-csi/api/v1alpha1"
	"github.com/escache/escache-csi/internal/controller/volumes"
	"github.com/escache/escache-csi/test/csitest"
)

// begun makes a volume with a snapshot that was not taken: Ceph was away, and csi-snapshotter repeats the call.
func (w *world) begun() {
	w.T.Helper()
	w.Create("a")
	w.interrupted(func() error { _, err := w.Snap("s", "a"); return err }, 1)
}

func (w *world) interrupted(snap func() error, records int) {
	w.T.Helper()
	w.Images.Refusing = func(context.Context, volumes.SnapshotRef) error {
		return fmt.Errorf("the monitors are gone: %w", volumes.ErrUnavailable)
	}
	csitest.Wants(w.T, snap(), codes.Unavailable, "monitors")
	w.Images.Refusing = nil
	if len(w.Snapshots()) != records {
		w.T.Fatalf("on record: %v", w.Snapshots())
	}
}

// left makes Ceph take what the interrupted call asked for, some time ago.
func (w *world) left(ago time.Duration) {
	w.T.Helper()
	for _, record := range w.Snapshots() {
		ref := volumes.SnapshotOf(&record)
		w.Images.Taken[ref], w.Images.TakenAt[ref] = 1, time.Now().Add(-ago)
	}
}

func (w *world) phase(id string, phase v1alpha1.VolumePhase) {
	w.T.Helper()
	v := w.Volume(id)
	v.Status.Phase = phase
	csitest.Must(w.T, w.API.Status().Update(w.T.Context(), v))
}

func (w *world) nothingLeft() {
	w.T.Helper()
	if len(w.Snapshots()) > 0 || len(w.Images.Taken) > 0 {
		w.T.Errorf("on record: %v, in Ceph: %v", w.Snapshots(), w.Images.Taken)
	}
}

// TestARepeatedCallThatIsRefusedLeavesNothing: csi-snapshotter has never learned the snapshot's id, so no
// DeleteSnapshot comes, and a record would keep the volume from being released or deleted for ever.
func TestARepeatedCallThatIsRefusedLeavesNothing(t *testing.T) {
	for name, refused := range map[string]func(w *world){
		"released":    func(w *world) { w.AskRelease("a", true) },
		"in conflict": func(w *world) { w.phase("a", v1alpha1.VolumeConflict) },
	} {
		for in, ago := range map[string]time.Duration{"nothing": 0, "what the first call has left": time.Minute} {
			t.Run(name+", and in Ceph is "+in, func(t *testing.T) {
				w := newWorld(t)
				w.begun()
				if ago > 0 {
					w.left(ago)
				}
				refused(w)
				_, err := w.Snap("s", "a")
				csitest.Wants(t, err, codes.FailedPrecondition)
				w.nothingLeft()
				if name == "released" {
					csitest.Must(t, w.Locked.Release(t.Context(), "a"))
					return
				}
				w.phase("a", v1alpha1.VolumeReady)
				csitest.Must(t, w.Delete("a"))
			})
		}
	}
}

// TestNoSnapshotOfAnImageOfAnotherKubernetesCluster: nothing is to be removed there, which would be refused, too.
func TestNoSnapshotOfAnImageOfAnotherKubernetesCluster(t *testing.T) {
	w := newWorld(t)
	w.Create("a")
	w.Create("b")
	w.Images.Foreign[csitest.ImageNamed("b")] = true
	_, err := w.Snap("s", "b")
	csitest.Wants(t, err, codes.FailedPrecondition, "another Kubernetes cluster")
	_, err = w.SnapGroup("g", "a", "b")
	csitest.Wants(t, err, codes.FailedPrecondition, "another Kubernetes cluster")
	w.nothingLeft()
}

// TestACallThatIsRepeatedKeepsItsRecord: the next one finds by it what this one may have begun.
func TestACallThatIsRepeatedKeepsItsRecord(t *testing.T) {
	w := newWorld(t)
	w.begun()
	w.left(time.Minute)
	v := w.Volume("a")
	v.Status.Move = &v1alpha1.VolumeMove{Group: "g2"}
	csitest.Must(t, w.API.Status().Update(t.Context(), v))
	_, err := w.Snap("s", "a")
	csitest.Wants(t, err, codes.Aborted, "moving")
	if record, there := w.Snapshots()["s"]; !there || !record.DeletionTimestamp.IsZero() || len(w.Images.Taken) != 1 {
		t.Errorf("on record: %v, in Ceph: %v", w.Snapshots(), w.Images.Taken)
	}
}

// TestWhatAnInterruptedCallHasLeftDoesNotGrowOld: after an hour it would pass for complete, and be refused for ever.
func TestWhatAnInterruptedCallHasLeftDoesNotGrowOld(t *testing.T) {
	w := newWorld(t)
	w.begun()
	w.left(time.Minute)
	w.interrupted(func() error { _, err := w.Snap("s", "a"); return err }, 1)
	for ref, at := range w.Images.TakenAt {
		w.Images.TakenAt[ref] = at.Add(-2 * time.Hour)
	}
	_, err := w.Snap("s", "a")
	csitest.Must(t, err)
}

// TestWhatIsBegunIsRemovedWhenTheCallersTimeIsUp: Ceph has taken the snapshot, and nobody has asked the host whether the hold has lasted.
func TestWhatIsBegunIsRemovedWhenTheCallersTimeIsUp(t *testing.T) {
	w := newWorld(t)
	w.Connected("a")
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	w.Images.Taking = func(volumes.SnapshotRef) { cancel() }
	if _, err := w.Service.CreateSnapshot(ctx, &csi.CreateSnapshotRequest{Name: "s", SourceVolumeId: "a"}); err == nil {
		t.Fatal("the call has succeeded")
	}
	if len(w.Images.Taken) > 0 || len(w.Snapshots()) != 1 {
		t.Errorf("in Ceph: %v, on record: %v", w.Images.Taken, w.Snapshots())
	}
}

func TestACompleteSnapshotStaysWhenItsVolumeMayNotBeUsed(t *testing.T) {
	w := newWorld(t)
	w.Create("a")
	_, err := w.Snap("s", "a")
	csitest.Must(t, err)
	w.phase("a", v1alpha1.VolumeConflict)
	_, err = w.Snap("s", "a")
	csitest.Must(t, err)
	w.Create("b")
	_, err = w.Snap("s", "b")
	csitest.Wants(t, err, codes.AlreadyExists)
	if record := w.Snapshots()["s"]; record.Status.Taken == nil || len(w.Images.Taken) != 1 {
		t.Errorf("on record: %v, in Ceph: %v", record, w.Images.Taken)
	}
}

// TestTheRecordOfAnotherVolumesSnapshotStays: that volume is not locked, and its call is repeated.
func TestTheRecordOfAnotherVolumesSnapshotStays(t *testing.T) {
	w := newWorld(t)
	w.begun()
	w.Create("b")
	_, err := w.Snap("s", "b")
	csitest.Wants(t, err, codes.AlreadyExists)
	if len(w.Snapshots()) != 1 {
		t.Errorf("on record: %v", w.Snapshots())
	}
}

// TestWhatCannotBeTakenBackAtOnceIsTakenBackLater: Ceph is away, or csi-controller dies. Nobody but the repeated call knows
// of the record.
func TestWhatCannotBeTakenBackAtOnceIsTakenBackLater(t *testing.T) {
	away := fmt.Errorf("the monitors are gone: %w", volumes.ErrUnavailable)
	for name, snap := range map[string]func(w *world) error{
		"snapshot":       func(w *world) error { _, err := w.Snap("s", "a"); return err },
		"group snapshot": func(w *world) error { _, err := w.SnapGroup("g", "a", "b"); return err },
	} {
		for what, ago := range map[string]time.Duration{"of an interrupted call": time.Minute, "that is complete": 2 * time.Hour} {
			t.Run(name+" "+what, func(t *testing.T) {
				w := newWorld(t)
				w.Create("a")
				w.Create("b")
				w.interrupted(func() error { return snap(w) }, map[string]int{"snapshot": 1, "group snapshot": 2}[name])
				w.left(ago)
				inCeph := len(w.Images.Taken)
				w.AskRelease("a", true)
				w.Images.Fail = away
				csitest.Wants(t, snap(w), codes.Unavailable, "could not be taken back", "monitors")
				w.Images.Fail = nil
				w.stuckAt(t, snap)
				csitest.Wants(t, snap(w), codes.Aborted, "being deleted")
				csitest.Wants(t, snap(w), codes.FailedPrecondition, "released")
				if ago < time.Hour {
					inCeph = 0
				}
				if len(w.Snapshots()) > 0 || len(w.Images.Taken) != inCeph {
					t.Errorf("on record: %v, in Ceph: %v", w.Snapshots(), w.Images.Taken)
				}
				csitest.Must(t, w.Locked.Release(t.Context(), "a"))
			})
		}
	}
}

// stuckAt ends a call after it has marked the records, and before it removes the first.
func (w *world) stuckAt(t *testing.T, snap func(*world) error) {
	t.Helper()
	withWatch, ok := w.API.(client.WithWatch)
	if !ok {
		t.Fatalf("%T", w.API)
	}
	w.Cached = interceptor.NewClient(withWatch, interceptor.Funcs{
		Patch: func(ctx context.Context, c client.WithWatch, o client.Object, p client.Patch, opts ...client.PatchOption) error {
			data, err := p.Data(o)
			if _, ok := o.(*v1alpha1.CacheSnapshot); ok && err == nil && strings.Contains(string(data), "finalizers") {
				return fmt.Errorf("%w: %w", errLost, volumes.ErrUnavailable)
			}
			return c.Patch(ctx, o, p, opts...)
		},
	})
	w.Restart()
	if err := snap(w); volumes.Code(err) != codes.Unavailable || !errors.Is(err, volumes.ErrUnavailable) {
		t.Errorf("got %v", err)
	}
	marked := 0
	for _, record := range w.Snapshots() {
		if !record.DeletionTimestamp.IsZero() {
			marked++
		}
	}
	if marked == 0 {
		t.Errorf("no record is marked: %v", w.Snapshots())
	}
	w.Cached = w.API
	w.Restart()
}
