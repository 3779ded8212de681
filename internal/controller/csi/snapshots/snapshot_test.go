package snapshots_test

import (
	"context"
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/grpc/codes"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/escache/escache-csi/api/v1alpha1"
	"github.com/escache/escache-csi/internal/controller/volumes"
	"github.com/escache/escache-csi/test/csitest"
)

// TestFiftySnapshotsOfOneVolumeThatAreAskedForAtOnce are taken, and removed, one after the other.
func TestFiftySnapshotsOfOneVolumeThatAreAskedForAtOnce(t *testing.T) {
	w := newWorld(t)
	w.Create("a")
	w.Images.Taking = func(volumes.SnapshotRef) { time.Sleep(time.Millisecond) }
	ctx, cancel := context.WithTimeout(t.Context(), 3*time.Minute)
	defer cancel()
	atOnce := func(call func(id string) error) {
		var wait sync.WaitGroup
		for n := range 50 {
			wait.Go(func() {
				if err := call(fmt.Sprint("s", n)); err != nil {
					t.Errorf("s%d: %v", n, err)
				}
			})
		}
		wait.Wait()
	}
	atOnce(func(id string) error {
		_, err := w.Service.CreateSnapshot(ctx, &csi.CreateSnapshotRequest{Name: id, SourceVolumeId: "a"})
		return err
	})
	if len(w.Images.Taken) != 50 {
		t.Errorf("%d snapshots", len(w.Images.Taken))
	}
	atOnce(func(id string) error {
		_, err := w.Service.DeleteSnapshot(ctx, &csi.DeleteSnapshotRequest{SnapshotId: id})
		return err
	})
	if len(w.Images.Taken) != 0 {
		t.Errorf("%d snapshots are left", len(w.Images.Taken))
	}
}

func TestSnapshotOfADetachedVolume(t *testing.T) {
	w := newWorld(t)
	v := w.Create("a")
	s, err := w.Snap("s", v.Name)
	csitest.Must(t, err)
	if s.GetSnapshotId() != "s" || s.GetSourceVolumeId() != "a" || s.GetSizeBytes() != csitest.GiB || !s.GetReadyToUse() ||
		!s.GetCreationTime().IsValid() {
		t.Errorf("got %v", s)
	}
	again, err := w.Snap("s", v.Name)
	csitest.Must(t, err)
	if !again.GetCreationTime().AsTime().Equal(w.Snapshots()["s"].Status.Taken.Time) || len(w.Images.Taken) != 1 {
		t.Errorf("a repeated call: %v, %v", again, w.Images.Taken)
	}
	for image, times := range w.Images.Taken {
		if image.Snapshot != "escache-s" || times != 1 {
			t.Errorf("%v was taken %d times", image, times)
		}
	}
	got, err := w.Service.GetSnapshot(t.Context(), &csi.GetSnapshotRequest{SnapshotId: "s"})
	csitest.Must(t, err)
	if got.GetSnapshot().GetSourceVolumeId() != "a" {
		t.Errorf("got %v", got)
	}
	_, err = w.Service.GetSnapshot(t.Context(), &csi.GetSnapshotRequest{SnapshotId: "nothing"})
	csitest.Wants(t, err, codes.NotFound, "nothing")
	w.Create("b")
	_, err = w.Snap("s", "b")
	csitest.Wants(t, err, codes.AlreadyExists, "of volume a, not of b")
	_, err = w.Snap("s2", "nothing")
	csitest.Wants(t, err, codes.NotFound, "nothing")

	csitest.Must(t, w.Unsnap("s"))
	csitest.Must(t, w.Unsnap("s"))
	if len(w.Snapshots()) != 0 || len(w.Images.Taken) != 0 {
		t.Errorf("left: %v, %v", w.Snapshots(), w.Images.Taken)
	}
	csitest.Must(t, w.Delete("a"))
}

func TestASnapshotOfADirtyDetachedVolumeIsTakenOnceItIsWrittenBack(t *testing.T) {
	w := newWorld(t)
	took := w.DirtyDetached("a")
	_, err := w.Snap("s", "a")
	csitest.Must(t, err)
	took()
}

func TestSnapshotOfAnAttachedVolumeIsTakenWhileItsIORests(t *testing.T) {
	w := newWorld(t)
	v, node := w.Connected("a")
	held := false
	w.Images.Taking = func(volumes.SnapshotRef) { held = w.Host(node).Held(csitest.Ref(v)) }
	_, err := w.Snap("s", "a")
	csitest.Must(t, err)
	if !held || w.Host(node).Held(csitest.Ref(v)) {
		t.Errorf("held meanwhile: %v, and afterwards: %v", held, w.Host(node).Held(csitest.Ref(v)))
	}

	// What the host let go on in the middle is no snapshot, and the repeated call takes another.
	w.Images.Taking = func(volumes.SnapshotRef) { w.Host(node).EndHold(csitest.Ref(v)) }
	_, err = w.Snap("s2", "a")
	csitest.Wants(t, err, codes.Aborted, "resumed writing")
	if s := w.Snapshots()["s2"]; s.Status.Taken != nil || s.Name == "" {
		t.Errorf("on record: %+v", s)
	}
	_, err = w.Service.CreateVolume(t.Context(), csitest.FromSnapshot("b", "s2"))
	csitest.Wants(t, err, codes.Aborted, "being taken")
	w.Images.Taking = nil
	_, err = w.Snap("s2", "a")
	csitest.Must(t, err)

	// A volume that goes elsewhere meanwhile.
	w.Images.Taking = func(volumes.SnapshotRef) {
		now := w.Volume("a")
		now.Status.Epoch++
		csitest.Must(t, w.API.Status().Update(context.Background(), now))
	}
	_, err = w.Snap("s3", "a")
	csitest.Wants(t, err, codes.Aborted, "meanwhile")
}

// TestIOGoesOnWhileAnEarlierCallHangsInCeph: the snapshot has to wait for it, and each repeated call would suspend I/O for that long.
func TestIOGoesOnWhileAnEarlierCallHangsInCeph(t *testing.T) {
	w := newWorld(t)
	v, node := w.Connected("a")
	waited := 0
	w.Images.Settling = func(image volumes.ImageRef) error {
		if waited++; image != volumes.ImageOf(v) || w.Host(node).Held(csitest.Ref(v)) {
			t.Errorf("waited for %s, and it is held: %v", image, w.Host(node).Held(csitest.Ref(v)))
		}
		return fmt.Errorf("an earlier call on it has not ended: %w", volumes.ErrUnavailable)
	}
	w.Images.Taking = func(ref volumes.SnapshotRef) { t.Errorf("%s is taken", ref) }
	_, err := w.Snap("s", "a")
	csitest.Wants(t, err, codes.Unavailable, "has not ended")
	if waited != 1 {
		t.Errorf("waited %d times", waited)
	}
}

func TestASnapshotOfMuchThatIsDirtyIsTakenOnceItIsLittle(t *testing.T) {
	w := newWorld(t)
	v, node := w.Connected("a")
	w.Host(node).Write(csitest.Ref(v), csitest.GiB)
	w.Host(node).FlushAtMost(200 << 20)
	ctx, cancel := context.WithTimeout(t.Context(), 35*time.Second) // not enough to write back and to hold
	defer cancel()
	_, err := w.Service.CreateSnapshot(ctx, &csi.CreateSnapshotRequest{Name: "s", SourceVolumeId: "a"})
	csitest.Wants(t, err, codes.Aborted, "writes it back")
	left := int64(0)
	w.Images.Taking = func(volumes.SnapshotRef) {
		status := w.Host(node).Status(csitest.Ref(v))
		left = *status.DirtyBytes
	}
	_, err = w.Snap("s", "a")
	csitest.Must(t, err)
	if status := w.Host(node).Status(csitest.Ref(v)); left != 0 || status.HeldUntil != nil {
		t.Errorf("taken with %d bytes dirty, and held until %v", left, status.HeldUntil)
	}
}

func TestWhatCannotBeTakenLeavesNothing(t *testing.T) {
	w := newWorld(t)
	v := w.Create("a")
	_, err := w.Publish(v.Name, v.Spec.Replicas[0]) // and csi-node has not connected it yet
	csitest.Must(t, err)
	_, err = w.Snap("s", "a")
	csitest.Wants(t, err, codes.FailedPrecondition, "not connected")
	if len(w.Snapshots()) != 0 {
		t.Errorf("left: %v", w.Snapshots())
	}
	// What is repeated keeps its record.
	csitest.Must(t, w.Unpublish("a", v.Spec.Replicas[0]))
	w.Images.Fail = fmt.Errorf("the monitors are gone: %w", volumes.ErrUnavailable)
	_, err = w.Snap("s", "a")
	csitest.Wants(t, err, codes.Unavailable, "monitors")
	if len(w.Snapshots()) != 1 {
		t.Errorf("on record: %v", w.Snapshots())
	}
	w.Images.Fail = nil
	_, err = w.Snap("s", "a")
	csitest.Must(t, err)
}

func TestAVolumeOfASnapshot(t *testing.T) {
	w := newWorld(t)
	source := csitest.CreateRequest("a")
	source.CapacityRange.RequiredBytes = 2 * csitest.GiB
	_, err := w.Service.CreateVolume(t.Context(), source)
	csitest.Must(t, err)
	_, err = w.Snap("s", "a")
	csitest.Must(t, err)

	made, err := w.Service.CreateVolume(t.Context(), csitest.FromSnapshot("b", "s"))
	csitest.Must(t, err)
	if made.GetVolume().GetCapacityBytes() != 2*csitest.GiB || made.GetVolume().GetContentSource().GetSnapshot().GetSnapshotId() != "s" {
		t.Errorf("got %v", made)
	}
	if got := w.Images.Clones[volumes.ImageRef{ClusterID: "ceph", Pool: "rbd", Image: "escache-b"}]; got != "escache-s" {
		t.Errorf("a clone of %q", got)
	}
	_, err = w.Service.CreateVolume(t.Context(), csitest.CreateRequest("b"))
	csitest.Wants(t, err, codes.AlreadyExists, "the snapshot it was made of")

	small := csitest.FromSnapshot("c", "s")
	small.CapacityRange.LimitBytes = csitest.GiB
	_, err = w.Service.CreateVolume(t.Context(), small)
	csitest.Wants(t, err, codes.OutOfRange, "limit")
	_, err = w.Service.CreateVolume(t.Context(), csitest.FromSnapshot("c", "nothing"))
	csitest.Wants(t, err, codes.NotFound, "nothing")
	elsewhere := csitest.FromSnapshot("c", "s")
	elsewhere.Parameters["clusterID"] = "another"
	_, err = w.Service.CreateVolume(t.Context(), elsewhere)
	csitest.Wants(t, err, codes.InvalidArgument, "clusterID another")

	// A clone that an interrupted call has left is re-created; one that nobody has on record is not
	// touched.
	w.HalfMade("b")
	made2 := w.Images.Made
	_, err = w.Service.CreateVolume(t.Context(), csitest.FromSnapshot("b", "s"))
	csitest.Must(t, err)
	if w.Images.Made != made2+1 {
		t.Errorf("%d images were made", w.Images.Made-made2)
	}
	w.Images.Sizes[volumes.ImageRef{ClusterID: "ceph", Pool: "rbd", Image: "escache-d"}] = 2 * csitest.GiB
	_, err = w.Service.CreateVolume(t.Context(), csitest.FromSnapshot("d", "s"))
	csitest.Wants(t, err, codes.FailedPrecondition, "exists already")

	// A call that is repeated after the snapshot is gone.
	csitest.Must(t, w.Unsnap("s"))
	_, err = w.Service.CreateVolume(t.Context(), csitest.FromSnapshot("b", "s"))
	csitest.Must(t, err)
	w.HalfMade("b")
	_, err = w.Service.CreateVolume(t.Context(), csitest.FromSnapshot("b", "s"))
	csitest.Wants(t, err, codes.NotFound, "snapshot s")
	if err := w.API.Get(t.Context(), client.ObjectKey{Name: "b"}, &v1alpha1.CacheVolume{}); client.IgnoreNotFound(err) != nil ||
		err == nil {
		t.Errorf("the volume that cannot be made: %v", err)
	}
}

func TestListSnapshots(t *testing.T) {
	w := newWorld(t)
	for _, volume := range []string{"a", "b"} {
		w.Create(volume)
		_, err := w.Snap("of-"+volume, volume)
		csitest.Must(t, err)
	}
	list := func(r *csi.ListSnapshotsRequest) (ids []string) {
		t.Helper()
		answer, err := w.Service.ListSnapshots(t.Context(), r)
		csitest.Must(t, err)
		for _, e := range answer.GetEntries() {
			ids = append(ids, e.GetSnapshot().GetSnapshotId())
		}
		return ids
	}
	for _, c := range []struct {
		name string
		ask  *csi.ListSnapshotsRequest
		want []string
	}{
		{"all", &csi.ListSnapshotsRequest{}, []string{"of-a", "of-b"}},
		{"of a volume", &csi.ListSnapshotsRequest{SourceVolumeId: "b"}, []string{"of-b"}},
		{"by id", &csi.ListSnapshotsRequest{SnapshotId: "of-a"}, []string{"of-a"}},
		{"by id and another volume", &csi.ListSnapshotsRequest{SnapshotId: "of-a", SourceVolumeId: "b"}, nil},
		{"no such id", &csi.ListSnapshotsRequest{SnapshotId: "x"}, nil},
	} {
		if got := list(c.ask); fmt.Sprint(got) != fmt.Sprint(c.want) {
			t.Errorf("%s: %v", c.name, got)
		}
	}
}

func TestSnapshotsOfBadRequests(t *testing.T) {
	w := newWorld(t)
	_, err := w.Service.CreateSnapshot(t.Context(), &csi.CreateSnapshotRequest{SourceVolumeId: "a"})
	csitest.Wants(t, err, codes.InvalidArgument, "name")
	_, err = w.Service.CreateSnapshot(t.Context(), &csi.CreateSnapshotRequest{Name: "s"})
	csitest.Wants(t, err, codes.InvalidArgument, "source volume id")
	_, err = w.Service.CreateSnapshot(t.Context(), &csi.CreateSnapshotRequest{
		Name: "s", SourceVolumeId: "a", Parameters: map[string]string{"pool": "x"},
	})
	csitest.Wants(t, err, codes.InvalidArgument, "VolumeSnapshotClass")
	_, err = w.Service.DeleteSnapshot(t.Context(), &csi.DeleteSnapshotRequest{})
	csitest.Wants(t, err, codes.InvalidArgument, "snapshot id")
	_, err = w.Service.CreateVolume(t.Context(), csitest.FromSnapshot("b", ""))
	csitest.Wants(t, err, codes.InvalidArgument, "source snapshot")
	r := csitest.CreateRequest("b")
	r.VolumeContentSource = &csi.VolumeContentSource{}
	_, err = w.Service.CreateVolume(t.Context(), r)
	csitest.Wants(t, err, codes.InvalidArgument, "neither a snapshot nor a volume")
}
