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
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/escache/escache-csi/api/v1alpha1"
	"github.com/escache/escache-csi/internal/controller/volumes"
)

func fromVolume(name, source string) *csi.CreateVolumeRequest {
	r := createRequest(name)
	r.VolumeContentSource = &csi.VolumeContentSource{Type: &csi.VolumeContentSource_Volume{
		Volume: &csi.VolumeContentSource_VolumeSource{VolumeId: source},
	}}
	return r
}

func (w *world) clone(name, source string) error {
	_, err := w.service.CreateVolume(context.Background(), fromVolume(name, source))
	return err
}

func imageNamed(volume string) volumes.ImageRef {
	return volumes.ImageRef{ClusterID: "ceph", Pool: "rbd", Image: "escache-" + volume}
}

// unfinished fails unless nothing is left of the clone b of the volume a.
func (w *world) unfinished() {
	w.t.Helper()
	if _, there := w.images.images[imageNamed("b")]; there || !w.gone("b") || len(w.images.taken) != 0 {
		w.t.Errorf("left: image %v, record gone %v, snapshots %v", there, w.gone("b"), w.images.taken)
	}
}

func TestACloneOfADetachedVolume(t *testing.T) {
	w := newWorld(t)
	w.create("a")
	made, err := w.service.CreateVolume(t.Context(), fromVolume("b", "a"))
	must(t, err)
	if made.GetVolume().GetContentSource().GetVolume().GetVolumeId() != "a" || made.GetVolume().GetCapacityBytes() != gib {
		t.Errorf("got %v", made)
	}
	if w.images.clones[imageNamed("b")] != "clone_b" || w.images.marks[imageNamed("b")] != "b" || len(w.images.taken) != 0 {
		t.Errorf("a clone of %q, marked as of %q; snapshots left: %v", w.images.clones[imageNamed("b")], w.images.marks[imageNamed("b")], w.images.taken)
	}
	if v := w.volume("b"); v.Spec.FromVolume != "a" || v.Status.Phase != v1alpha1.VolumeReady {
		t.Errorf("on record: %+v, %s", v.Spec, v.Status.Phase)
	}

	// A repeated call takes no snapshot, whatever has become of the source.
	took := 0
	w.images.taking = func(volumes.SnapshotRef) { took++ }
	_, err = w.service.ControllerExpandVolume(t.Context(), &csi.ControllerExpandVolumeRequest{
		VolumeId: "a", CapacityRange: &csi.CapacityRange{RequiredBytes: 4 * gib},
	})
	must(t, err)
	must(t, w.clone("b", "a"))
	must(t, w.delete("a"))
	must(t, w.clone("b", "a"))
	if took != 0 {
		t.Errorf("%d snapshots", took)
	}
	_, err = w.service.CreateVolume(t.Context(), createRequest("b"))
	wants(t, err, codes.AlreadyExists, "the volume it is a clone of is a")
	must(t, w.delete("b"))
	w.empty()
}

func TestACloneOfAnAttachedVolumeIsTakenWhileItsIORests(t *testing.T) {
	w := newWorld(t)
	v, node := w.connected("a")
	held, heldLater := false, false
	w.images.taking = func(volumes.SnapshotRef) { held = w.host(node).Held(ref(v)) }
	w.images.creating = func(volumes.ImageSpec) error { heldLater = w.host(node).Held(ref(v)); return nil }
	must(t, w.clone("b", "a"))
	if !held || heldLater {
		t.Errorf("held while the snapshot is taken: %v, and while the clone is made: %v", held, heldLater)
	}

	// If the host went on writing in the middle, the call fails, and the repeated one takes another.
	w.images.taking = func(volumes.SnapshotRef) { w.host(node).EndHold(ref(v)) }
	wants(t, w.clone("c", "a"), codes.Aborted, "resumed writing")
	if _, there := w.images.images[imageNamed("c")]; there {
		t.Error("a clone was made of a snapshot that is not of one moment")
	}
	w.images.taking = nil
	must(t, w.clone("c", "a"))
	if len(w.images.taken) != 0 {
		t.Errorf("snapshots left: %v", w.images.taken)
	}
}

func TestACloneOfADirtyDetachedVolumeIsTakenOnceItIsWrittenBack(t *testing.T) {
	w := newWorld(t)
	took := w.dirtyDetached("a")
	must(t, w.clone("b", "a"))
	took()
}

func TestWhatCannotBeClonedLeavesNothing(t *testing.T) {
	smaller := fromVolume("b", "a")
	smaller.CapacityRange.RequiredBytes = gib / 2
	limited := fromVolume("b", "a")
	limited.CapacityRange = &csi.CapacityRange{LimitBytes: gib / 2}
	elsewhere := fromVolume("b", "a")
	elsewhere.Parameters["clusterID"] = "another"
	nameless := fromVolume("b", "")
	for name, tc := range map[string]struct {
		request *csi.CreateVolumeRequest
		prepare func(w *world)
		code    codes.Code
		words   []string
	}{
		"a size smaller than the source's":  {smaller, nil, codes.OutOfRange, []string{"1073741824 bytes", "cannot have 536870912"}},
		"a limit smaller than the source":   {limited, nil, codes.OutOfRange, []string{"limit"}},
		"another Ceph cluster":              {elsewhere, nil, codes.InvalidArgument, []string{"clusterID another"}},
		"a source that there is not":        {fromVolume("b", "nothing"), nil, codes.NotFound, []string{"nothing"}},
		"a source without an id":            {nameless, nil, codes.InvalidArgument, []string{"source volume"}},
		"a source that is itself not there": {fromVolume("b", "b"), nil, codes.NotFound, []string{"volume b"}},
		"a source that is not made yet": {fromVolume("b", "a"), func(w *world) {
			v := w.volume("a")
			v.Status.Phase = ""
			must(w.t, w.api.Status().Update(context.Background(), v))
		}, codes.FailedPrecondition, []string{"not created yet"}},
		"a source that is being released": {fromVolume("b", "a"), func(w *world) {
			v := w.volume("a")
			v.Spec.Release = true
			must(w.t, w.api.Update(context.Background(), v))
		}, codes.FailedPrecondition, []string{"being released"}},
		"a source that no node has connected yet": {fromVolume("b", "a"), func(w *world) {
			_, err := w.publish("a", w.volume("a").Spec.Replicas[0])
			must(w.t, err)
		}, codes.FailedPrecondition, []string{"not connected"}},
		"a name that another image has": {fromVolume("b", "a"), func(w *world) {
			w.images.images[imageNamed("b")] = gib
		}, codes.FailedPrecondition, []string{"exists already"}},
		"a Ceph that refuses for good": {fromVolume("b", "a"), func(w *world) {
			w.images.creating = func(volumes.ImageSpec) error { return fmt.Errorf("16 parents: %w", volumes.ErrInvalid) }
		}, codes.InvalidArgument, []string{"16 parents"}},
	} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t)
			w.create("a")
			if tc.prepare != nil {
				tc.prepare(w)
			}
			before := len(w.images.images)
			_, err := w.service.CreateVolume(t.Context(), tc.request)
			wants(t, err, tc.code, tc.words...)
			if !w.gone("b") || len(w.images.taken) != 0 || len(w.images.images) != before {
				t.Errorf("record gone: %v, snapshots: %v, images: %v", w.gone("b"), w.images.taken, w.images.images)
			}
		})
	}
}

// TestACloneGoesIntoAnotherPool, as a volume of a snapshot does.
func TestACloneGoesIntoAnotherPool(t *testing.T) {
	w := newWorld(t)
	w.create("a")
	r := fromVolume("b", "a")
	r.Parameters["pool"] = "fast"
	r.CapacityRange = &csi.CapacityRange{RequiredBytes: 3 * gib}
	_, err := w.service.CreateVolume(t.Context(), r)
	must(t, err)
	b := volumes.ImageRef{ClusterID: "ceph", Pool: "fast", Image: "escache-b"}
	if w.images.clones[b] != "clone_b" || w.images.images[b] != 3*gib || len(w.images.taken) != 0 {
		t.Errorf("clones %v, images %v, snapshots %v", w.images.clones, w.images.images, w.images.taken)
	}
}

// TestAnInterruptedCloneIsMadeAnew: of a snapshot of the moment at which the call is repeated.
func TestAnInterruptedCloneIsMadeAnew(t *testing.T) {
	w := newWorld(t)
	w.create("a")
	interrupt := fmt.Errorf("the monitors are gone: %w", volumes.ErrUnavailable)
	took := 0
	w.images.taking = func(volumes.SnapshotRef) { took++ }
	w.images.creating = func(volumes.ImageSpec) error { return interrupt }
	wants(t, w.clone("b", "a"), codes.Unavailable, "monitors")
	if w.gone("b") || len(w.images.taken) != 1 {
		t.Fatalf("record gone: %v, snapshots: %v", w.gone("b"), w.images.taken)
	}
	// The image is made, and the process dies before it could say so.
	w.images.creating = nil
	w.images.images[imageNamed("b")] = gib
	w.images.clones[imageNamed("b")] = "of an older moment"
	w.restart()
	must(t, w.clone("b", "a"))
	if took != 2 || w.images.clones[imageNamed("b")] != "clone_b" || len(w.images.taken) != 0 {
		t.Errorf("%d snapshots were taken, a clone of %q; snapshots left: %v", took, w.images.clones[imageNamed("b")], w.images.taken)
	}
}

func TestAHalfMadeClone(t *testing.T) {
	begin := func(t *testing.T) *world {
		w := newWorld(t)
		w.create("a")
		w.images.creating = func(volumes.ImageSpec) error { return fmt.Errorf("too slow: %w", context.DeadlineExceeded) }
		wants(t, w.clone("b", "a"), codes.DeadlineExceeded, "too slow")
		w.images.creating = nil
		w.restart()
		return w
	}
	t.Run("is deleted with the temporary snapshot", func(t *testing.T) {
		w := begin(t)
		must(t, w.delete("b"))
		w.unfinished()
		must(t, w.delete("a"))
		w.empty()
	})
	t.Run("keeps its source from being deleted", func(t *testing.T) {
		w := begin(t)
		wants(t, w.delete("a"), codes.FailedPrecondition, "being cloned into b")
		if !w.volume("a").DeletionTimestamp.IsZero() {
			t.Error("the source is marked as deleted")
		}
		must(t, w.clone("b", "a"))
		must(t, w.delete("a"))
	})
	t.Run("is taken back when its source cannot be cloned any more", func(t *testing.T) {
		w := begin(t)
		w.images.images[imageNamed("b")] = gib
		v := w.volume("a")
		v.Spec.Release = true
		must(t, w.api.Update(t.Context(), v))
		wants(t, w.clone("b", "a"), codes.FailedPrecondition, "being released")
		w.unfinished()
	})
	t.Run("is taken back when its source has grown", func(t *testing.T) {
		w := begin(t)
		_, err := w.service.ControllerExpandVolume(t.Context(), &csi.ControllerExpandVolumeRequest{
			VolumeId: "a", CapacityRange: &csi.CapacityRange{RequiredBytes: 2 * gib},
		})
		must(t, err)
		wants(t, w.clone("b", "a"), codes.OutOfRange, "has grown to 2147483648")
		w.unfinished()
		wants(t, w.clone("b", "a"), codes.OutOfRange, "cannot have 1073741824")
	})
	t.Run("stays on record while it cannot be taken back", func(t *testing.T) {
		w := begin(t)
		w.images.images[imageNamed("b")] = gib
		w.images.open[imageNamed("b")] = []string{"192.0.2.9:0/1"}
		v := w.volume("a")
		v.Spec.Release = true
		must(t, w.api.Update(t.Context(), v))
		wants(t, w.clone("b", "a"), codes.Unavailable, "could not be taken back", "in use")
		if w.gone("b") {
			t.Error("nobody knows of the temporary snapshot any more")
		}
	})
	t.Run("whose source has no record is deleted all the same", func(t *testing.T) {
		w := begin(t)
		v := w.volume("a")
		v.Finalizers = nil
		must(t, w.api.Update(t.Context(), v))
		must(t, w.api.Delete(t.Context(), v))
		must(t, w.delete("b"))
		if !w.gone("b") {
			t.Error("it is still on record")
		}
	})
}

// TestASourceIsLockedWhileItIsCloned: a snapshot, a move or a deletion of it would come in between.
func TestASourceIsLockedWhileItIsCloned(t *testing.T) {
	w := newWorld(t)
	w.create("a")
	var meanwhile []error
	w.images.creating = func(volumes.ImageSpec) error {
		_, published := w.publish("a", "n1")
		ctx, cancel := context.WithTimeout(context.Background(), time.Second)
		defer cancel()
		// These two wait for a third of the time that they have left.
		_, snapped := w.service.CreateSnapshot(ctx, &csi.CreateSnapshotRequest{Name: "s", SourceVolumeId: "a"})
		_, cloned := w.service.CreateVolume(ctx, fromVolume("c", "a"))
		if ctx.Err() != nil {
			t.Error("they have waited for all of their time")
		}
		meanwhile = []error{published, snapped, w.delete("a"), cloned}
		return nil
	}
	must(t, w.clone("b", "a"))
	if len(meanwhile) == 0 {
		t.Fatal("nothing was made")
	}
	for _, err := range meanwhile {
		wants(t, err, codes.Aborted, "the making of a clone")
	}
	w.images.creating = nil
	must(t, w.clone("c", "a"))
}

// TestFiftyClonesOfOneVolumeThatAreAskedForAtOnce are made one after the other. If all but one were
// refused, external-provisioner would repeat them all at the same time again, later and later.
func TestFiftyClonesOfOneVolumeThatAreAskedForAtOnce(t *testing.T) {
	w := newWorld(t)
	w.create("a")
	w.images.creating = func(volumes.ImageSpec) error { time.Sleep(time.Millisecond); return nil }
	ctx, cancel := context.WithTimeout(t.Context(), 3*time.Minute)
	defer cancel()
	var wait sync.WaitGroup
	for n := range 50 {
		wait.Go(func() {
			if _, err := w.service.CreateVolume(ctx, fromVolume(fmt.Sprint("b", n), "a")); err != nil {
				t.Errorf("b%d: %v", n, err)
			}
		})
	}
	wait.Wait()
	if len(w.images.clones) != 50 || len(w.images.taken) != 0 {
		t.Errorf("%d clones, snapshots left: %v", len(w.images.clones), w.images.taken)
	}
}

func TestNoCloneIsMadeByARecordThatWasSetBack(t *testing.T) {
	w := newWorld(t)
	w.writtenSince("a")
	wants(t, w.clone("b", "a"), codes.FailedPrecondition, "older than")
	w.unfinished()
	if !meta.IsStatusConditionTrue(w.volume("a").Status.Conditions, v1alpha1.ConditionRecordBehindDisks) {
		t.Error("nobody is told by a condition of the source")
	}
}

// older is an API server that has an older CRD of CacheVolumes.
type older struct{ client.Client }

func (o older) Create(ctx context.Context, object client.Object, opts ...client.CreateOption) error {
	if v, ok := object.(*v1alpha1.CacheVolume); ok {
		v.Spec.FromVolume, v.Spec.CacheEngine, v.Spec.UncachedFallback = "", "", false
	}
	return o.Client.Create(ctx, object, opts...)
}

func TestWithAnOlderCRDNoEmptyVolumePassesForAClone(t *testing.T) {
	w := newWorld(t)
	w.create("a")
	w.cached = older{w.api}
	w.restart()
	wants(t, w.clone("b", "a"), codes.FailedPrecondition, "apply the chart's CRDs")
	w.unfinished()
}

func TestASourceThatIsBeingDeletedIsNotCloned(t *testing.T) {
	w := newWorld(t)
	w.create("a")
	w.images.open[imageNamed("a")] = []string{"192.0.2.9:0/1"}
	if err := w.delete("a"); err == nil || !errors.Is(err, volumes.ErrRefused) {
		t.Fatalf("deleted while a client has it: %v", err)
	}
	wants(t, w.clone("b", "a"), codes.FailedPrecondition, "being deleted")
	w.unfinished()
}
