package csi_test

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/grpc/codes"
	"k8s.io/apimachinery/pkg/api/meta"

	"github.com/escache/escache-csi/api/v1alpha1"
	"github.com/escache/escache-csi/internal/controller/volumes"
	"github.com/escache/escache-csi/test/csitest"
)

// unfinished fails unless nothing is left of the clone b of the volume a.
func (w *world) unfinished() {
	w.T.Helper()
	if _, there := w.Images.Sizes[csitest.ImageNamed("b")]; there || !w.Gone("b") || len(w.Images.Taken) != 0 {
		w.T.Errorf("left: image %v, record gone %v, snapshots %v", there, w.Gone("b"), w.Images.Taken)
	}
}

func TestACloneOfADetachedVolume(t *testing.T) {
	w := newWorld(t)
	w.Create("a")
	made, err := w.Service.CreateVolume(t.Context(), csitest.FromVolume("b", "a"))
	csitest.Must(t, err)
	if made.GetVolume().GetContentSource().GetVolume().GetVolumeId() != "a" || made.GetVolume().GetCapacityBytes() != csitest.GiB {
		t.Errorf("got %v", made)
	}
	if w.Images.Clones[csitest.ImageNamed("b")] != "clone_b" || w.Images.Marks[csitest.ImageNamed("b")] != "b" || len(w.Images.Taken) != 0 {
		t.Errorf("a clone of %q, marked as of %q; snapshots left: %v", w.Images.Clones[csitest.ImageNamed("b")],
			w.Images.Marks[csitest.ImageNamed("b")], w.Images.Taken)
	}
	if v := w.Volume("b"); v.Spec.FromVolume != "a" || v.Status.Phase != v1alpha1.VolumeReady {
		t.Errorf("on record: %+v, %s", v.Spec, v.Status.Phase)
	}

	// A repeated call takes no snapshot, whatever has become of the source.
	took := 0
	w.Images.Taking = func(volumes.SnapshotRef) { took++ }
	_, err = w.Service.ControllerExpandVolume(t.Context(), &csi.ControllerExpandVolumeRequest{
		VolumeId: "a", CapacityRange: &csi.CapacityRange{RequiredBytes: 4 * csitest.GiB},
	})
	csitest.Must(t, err)
	csitest.Must(t, w.Clone("b", "a"))
	csitest.Must(t, w.Delete("a"))
	csitest.Must(t, w.Clone("b", "a"))
	if took != 0 {
		t.Errorf("%d snapshots", took)
	}
	_, err = w.Service.CreateVolume(t.Context(), csitest.CreateRequest("b"))
	csitest.Wants(t, err, codes.AlreadyExists, "the volume it is a clone of is a")
	csitest.Must(t, w.Delete("b"))
	w.Empty()
}

func TestACloneOfAnAttachedVolumeIsTakenWhileItsIORests(t *testing.T) {
	w := newWorld(t)
	v, node := w.Connected("a")
	held, heldLater := false, false
	w.Images.Taking = func(volumes.SnapshotRef) { held = w.Host(node).Held(csitest.Ref(v)) }
	w.Images.Creating = func(volumes.ImageSpec) error { heldLater = w.Host(node).Held(csitest.Ref(v)); return nil }
	csitest.Must(t, w.Clone("b", "a"))
	if !held || heldLater {
		t.Errorf("held while the snapshot is taken: %v, and while the clone is made: %v", held, heldLater)
	}

	// If the host went on writing in the middle, the call fails, and the repeated one takes another.
	w.Images.Taking = func(volumes.SnapshotRef) { w.Host(node).EndHold(csitest.Ref(v)) }
	csitest.Wants(t, w.Clone("c", "a"), codes.Aborted, "resumed writing")
	if _, there := w.Images.Sizes[csitest.ImageNamed("c")]; there {
		t.Error("a clone was made of a snapshot that is not of one moment")
	}
	w.Images.Taking = nil
	csitest.Must(t, w.Clone("c", "a"))
	if len(w.Images.Taken) != 0 {
		t.Errorf("snapshots left: %v", w.Images.Taken)
	}
}

func TestACloneOfADirtyDetachedVolumeIsTakenOnceItIsWrittenBack(t *testing.T) {
	w := newWorld(t)
	took := w.DirtyDetached("a")
	csitest.Must(t, w.Clone("b", "a"))
	took()
}

func TestWhatCannotBeClonedLeavesNothing(t *testing.T) {
	smaller := csitest.FromVolume("b", "a")
	smaller.CapacityRange.RequiredBytes = csitest.GiB / 2
	limited := csitest.FromVolume("b", "a")
	limited.CapacityRange = &csi.CapacityRange{LimitBytes: csitest.GiB / 2}
	elsewhere := csitest.FromVolume("b", "a")
	elsewhere.Parameters["clusterID"] = "another"
	nameless := csitest.FromVolume("b", "")
	for name, tc := range map[string]struct {
		request *csi.CreateVolumeRequest
		prepare func(w *world)
		code    codes.Code
		words   []string
	}{
		"a size smaller than the source's":  {smaller, nil, codes.OutOfRange, []string{"1073741824 bytes", "cannot have 536870912"}},
		"a limit smaller than the source":   {limited, nil, codes.OutOfRange, []string{"limit"}},
		"another Ceph cluster":              {elsewhere, nil, codes.InvalidArgument, []string{"clusterID another"}},
		"a source that there is not":        {csitest.FromVolume("b", "nothing"), nil, codes.NotFound, []string{"nothing"}},
		"a source without an id":            {nameless, nil, codes.InvalidArgument, []string{"source volume"}},
		"a source that is itself not there": {csitest.FromVolume("b", "b"), nil, codes.NotFound, []string{"volume b"}},
		"a source that is not made yet": {csitest.FromVolume("b", "a"), func(w *world) {
			v := w.Volume("a")
			v.Status.Phase = ""
			csitest.Must(w.T, w.API.Status().Update(context.Background(), v))
		}, codes.FailedPrecondition, []string{"not created yet"}},
		"a source that is being released": {csitest.FromVolume("b", "a"), func(w *world) {
			v := w.Volume("a")
			v.Spec.Release = true
			csitest.Must(w.T, w.API.Update(context.Background(), v))
		}, codes.FailedPrecondition, []string{"being released"}},
		"a source that no node has connected yet": {csitest.FromVolume("b", "a"), func(w *world) {
			_, err := w.Publish("a", w.Volume("a").Spec.Replicas[0])
			csitest.Must(w.T, err)
		}, codes.FailedPrecondition, []string{"not connected"}},
		"a source whose image is another Kubernetes cluster's": {csitest.FromVolume("b", "a"), func(w *world) {
			w.Images.Foreign[csitest.ImageNamed("a")] = true
		}, codes.FailedPrecondition, []string{"another Kubernetes cluster"}},
		"a name that another image has": {csitest.FromVolume("b", "a"), func(w *world) {
			w.Images.Sizes[csitest.ImageNamed("b")] = csitest.GiB
		}, codes.FailedPrecondition, []string{"exists already"}},
		"a Ceph that refuses for good": {csitest.FromVolume("b", "a"), func(w *world) {
			w.Images.Creating = func(volumes.ImageSpec) error { return fmt.Errorf("16 parents: %w", volumes.ErrInvalid) }
		}, codes.InvalidArgument, []string{"16 parents"}},
	} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t)
			w.Create("a")
			if tc.prepare != nil {
				tc.prepare(w)
			}
			before := len(w.Images.Sizes)
			_, err := w.Service.CreateVolume(t.Context(), tc.request)
			csitest.Wants(t, err, tc.code, tc.words...)
			if !w.Gone("b") || len(w.Images.Taken) != 0 || len(w.Images.Sizes) != before {
				t.Errorf("record gone: %v, snapshots: %v, images: %v", w.Gone("b"), w.Images.Taken, w.Images.Sizes)
			}
		})
	}
}

// TestACloneGoesIntoAnotherPool, as a volume of a snapshot does.
func TestACloneGoesIntoAnotherPool(t *testing.T) {
	w := newWorld(t)
	w.Create("a")
	r := csitest.FromVolume("b", "a")
	r.Parameters["pool"] = "fast"
	r.CapacityRange = &csi.CapacityRange{RequiredBytes: 3 * csitest.GiB}
	_, err := w.Service.CreateVolume(t.Context(), r)
	csitest.Must(t, err)
	b := volumes.ImageRef{ClusterID: "ceph", Pool: "fast", Image: "escache-b"}
	if w.Images.Clones[b] != "clone_b" || w.Images.Sizes[b] != 3*csitest.GiB || len(w.Images.Taken) != 0 {
		t.Errorf("clones %v, images %v, snapshots %v", w.Images.Clones, w.Images.Sizes, w.Images.Taken)
	}
}

// TestAnInterruptedCloneIsMadeAnew: of a snapshot of the moment at which the call is repeated.
func TestAnInterruptedCloneIsMadeAnew(t *testing.T) {
	w := newWorld(t)
	w.Create("a")
	interrupt := fmt.Errorf("the monitors are gone: %w", volumes.ErrUnavailable)
	took := 0
	w.Images.Taking = func(volumes.SnapshotRef) { took++ }
	w.Images.Creating = func(volumes.ImageSpec) error { return interrupt }
	csitest.Wants(t, w.Clone("b", "a"), codes.Unavailable, "monitors")
	if w.Gone("b") || len(w.Images.Taken) != 1 {
		t.Fatalf("record gone: %v, snapshots: %v", w.Gone("b"), w.Images.Taken)
	}
	// The image is made, and the process dies before it could say so.
	w.Images.Creating = nil
	w.Images.Sizes[csitest.ImageNamed("b")] = csitest.GiB
	w.Images.Clones[csitest.ImageNamed("b")] = "of an older moment"
	w.Restart()
	csitest.Must(t, w.Clone("b", "a"))
	if took != 2 || w.Images.Clones[csitest.ImageNamed("b")] != "clone_b" || len(w.Images.Taken) != 0 {
		t.Errorf("%d snapshots were taken, a clone of %q; snapshots left: %v", took, w.Images.Clones[csitest.ImageNamed("b")],
			w.Images.Taken)
	}
}

func TestAHalfMadeClone(t *testing.T) {
	begin := func(t *testing.T) *world {
		w := newWorld(t)
		w.Create("a")
		w.Images.Creating = func(volumes.ImageSpec) error { return fmt.Errorf("too slow: %w", context.DeadlineExceeded) }
		csitest.Wants(t, w.Clone("b", "a"), codes.DeadlineExceeded, "too slow")
		w.Images.Creating = nil
		w.Restart()
		return w
	}
	t.Run("is deleted with the temporary snapshot", func(t *testing.T) {
		w := begin(t)
		csitest.Must(t, w.Delete("b"))
		w.unfinished()
		csitest.Must(t, w.Delete("a"))
		w.Empty()
	})
	t.Run("keeps its source from being deleted", func(t *testing.T) {
		w := begin(t)
		csitest.Wants(t, w.Delete("a"), codes.FailedPrecondition, "being cloned into b")
		if !w.Volume("a").DeletionTimestamp.IsZero() {
			t.Error("the source is marked as deleted")
		}
		csitest.Must(t, w.Clone("b", "a"))
		csitest.Must(t, w.Delete("a"))
	})
	t.Run("is taken back when its source cannot be cloned any more", func(t *testing.T) {
		w := begin(t)
		w.Images.Sizes[csitest.ImageNamed("b")] = csitest.GiB
		v := w.Volume("a")
		v.Spec.Release = true
		csitest.Must(t, w.API.Update(t.Context(), v))
		csitest.Wants(t, w.Clone("b", "a"), codes.FailedPrecondition, "being released")
		w.unfinished()
	})
	t.Run("is taken back when its source has grown", func(t *testing.T) {
		w := begin(t)
		_, err := w.Service.ControllerExpandVolume(t.Context(), &csi.ControllerExpandVolumeRequest{
			VolumeId: "a", CapacityRange: &csi.CapacityRange{RequiredBytes: 2 * csitest.GiB},
		})
		csitest.Must(t, err)
		csitest.Wants(t, w.Clone("b", "a"), codes.OutOfRange, "has grown to 2147483648")
		w.unfinished()
		csitest.Wants(t, w.Clone("b", "a"), codes.OutOfRange, "cannot have 1073741824")
	})
	t.Run("stays on record while it cannot be taken back", func(t *testing.T) {
		w := begin(t)
		w.Images.Sizes[csitest.ImageNamed("b")] = csitest.GiB
		w.Images.Open[csitest.ImageNamed("b")] = []string{"192.0.2.9:0/1"}
		v := w.Volume("a")
		v.Spec.Release = true
		csitest.Must(t, w.API.Update(t.Context(), v))
		csitest.Wants(t, w.Clone("b", "a"), codes.Unavailable, "could not be taken back", "in use")
		if w.Gone("b") {
			t.Error("nobody knows of the temporary snapshot any more")
		}
	})
	t.Run("whose source has no record is deleted all the same", func(t *testing.T) {
		w := begin(t)
		v := w.Volume("a")
		v.Finalizers = nil
		csitest.Must(t, w.API.Update(t.Context(), v))
		csitest.Must(t, w.API.Delete(t.Context(), v))
		csitest.Must(t, w.Delete("b"))
		if !w.Gone("b") {
			t.Error("it is still on record")
		}
	})
}

// TestASourceIsLockedWhileItIsCloned: a snapshot, a move or a deletion of it would come in between.
func TestASourceIsLockedWhileItIsCloned(t *testing.T) {
	w := newWorld(t)
	w.Create("a")
	var meanwhile []error
	w.Images.Creating = func(volumes.ImageSpec) error {
		_, published := w.Publish("a", "n1")
		ctx, cancel := context.WithTimeout(context.Background(), 6*time.Second)
		defer cancel()
		// These two wait for a third of the time that they have left.
		_, snapped := w.Service.CreateSnapshot(ctx, &csi.CreateSnapshotRequest{Name: "s", SourceVolumeId: "a"})
		_, cloned := w.Service.CreateVolume(ctx, csitest.FromVolume("c", "a"))
		if ctx.Err() != nil {
			t.Error("they have waited for all of their time")
		}
		meanwhile = []error{published, snapped, w.Delete("a"), cloned}
		return nil
	}
	csitest.Must(t, w.Clone("b", "a"))
	if len(meanwhile) == 0 {
		t.Fatal("nothing was made")
	}
	for _, err := range meanwhile {
		csitest.Wants(t, err, codes.Aborted, "the making of a clone")
	}
	w.Images.Creating = nil
	csitest.Must(t, w.Clone("c", "a"))
}

// TestFiftyClonesOfOneVolumeThatAreAskedForAtOnce are made one after the other. If all but one were
// refused, external-provisioner would repeat them all at the same time again, later and later.
func TestFiftyClonesOfOneVolumeThatAreAskedForAtOnce(t *testing.T) {
	w := newWorld(t)
	w.Create("a")
	w.Images.Creating = func(volumes.ImageSpec) error { time.Sleep(time.Millisecond); return nil }
	ctx, cancel := context.WithTimeout(t.Context(), 3*time.Minute)
	defer cancel()
	var wait sync.WaitGroup
	for n := range 50 {
		wait.Go(func() {
			if _, err := w.Service.CreateVolume(ctx, csitest.FromVolume(fmt.Sprint("b", n), "a")); err != nil {
				t.Errorf("b%d: %v", n, err)
			}
		})
	}
	wait.Wait()
	if len(w.Images.Clones) != 50 || len(w.Images.Taken) != 0 {
		t.Errorf("%d clones, snapshots left: %v", len(w.Images.Clones), w.Images.Taken)
	}
}

func TestNoCloneIsMadeByARecordThatWasSetBack(t *testing.T) {
	w := newWorld(t)
	w.WrittenSince("a")
	csitest.Wants(t, w.Clone("b", "a"), codes.FailedPrecondition, "older than")
	w.unfinished()
	if !meta.IsStatusConditionTrue(w.Volume("a").Status.Conditions, v1alpha1.ConditionRecordBehindDisks) {
		t.Error("nobody is told by a condition of the source")
	}
}

func TestWithAnOlderCRDNoEmptyVolumePassesForAClone(t *testing.T) {
	w := newWorld(t)
	w.Create("a")
	w.Cached = csitest.OlderCRD{Client: w.API}
	w.Restart()
	csitest.Wants(t, w.Clone("b", "a"), codes.FailedPrecondition, "apply the chart's CRDs")
	w.unfinished()
}

func TestASourceThatIsBeingDeletedIsNotCloned(t *testing.T) {
	w := newWorld(t)
	w.Create("a")
	w.Images.Open[csitest.ImageNamed("a")] = []string{"192.0.2.9:0/1"}
	if err := w.Delete("a"); err == nil || !errors.Is(err, volumes.ErrRefused) {
		t.Fatalf("deleted while a client has it: %v", err)
	}
	csitest.Wants(t, w.Clone("b", "a"), codes.FailedPrecondition, "being deleted")
	w.unfinished()
}
