package csi_test

import (
	"context"
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/grpc/codes"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/escache/escache-csi/api/escache"
	"github.com/escache/escache-csi/api/v1alpha1"
	"github.com/escache/escache-csi/internal/controller/volumes"
)

func (w *world) snap(name, volume string) (*csi.Snapshot, error) {
	r, err := w.service.CreateSnapshot(context.Background(), &csi.CreateSnapshotRequest{Name: name, SourceVolumeId: volume})
	return r.GetSnapshot(), err
}

func (w *world) unsnap(id string) error {
	_, err := w.service.DeleteSnapshot(context.Background(), &csi.DeleteSnapshotRequest{SnapshotId: id})
	return err
}

// snapshots are the records by name.
func (w *world) snapshots() map[string]v1alpha1.CacheSnapshot {
	w.t.Helper()
	all := &v1alpha1.CacheSnapshotList{}
	must(w.t, w.api.List(context.Background(), all))
	out := map[string]v1alpha1.CacheSnapshot{}
	for _, s := range all.Items {
		out[s.Name] = s
	}
	return out
}

// connected makes a volume that a node has connected, with something dirty.
func (w *world) connected(name string) (v *v1alpha1.CacheVolume, node string) {
	w.t.Helper()
	v = w.create(name)
	node = v.Spec.Replicas[0]
	_, err := w.publish(v.Name, node)
	must(w.t, err)
	v = w.volume(name)
	w.host(node).Stage(ref(v), "192.0.2.1:0/1", v.Status.Epoch, escache.ModeWriteback)
	w.host(node).Write(ref(v), dirtyBytes)
	return v, node
}

// dirtyDetached makes a detached volume of which its replicas have more than Ceph. Whoever takes a
// snapshot of it has to write that back first; took fails unless one was taken.
func (w *world) dirtyDetached(name string) (took func()) {
	w.t.Helper()
	v := w.create(name)
	_, err := w.publish(name, v.Spec.Replicas[0])
	must(w.t, err)
	for _, n := range v.Spec.Replicas {
		w.host(n).Write(ref(v), dirtyBytes)
	}
	must(w.t, w.unpublish(name, v.Spec.Replicas[0]))
	if w.volume(name).Status.Authority == v1alpha1.AuthorityCeph {
		w.t.Fatal("it is clean before the snapshot")
	}
	snapshots := 0
	w.images.taking = func(volumes.SnapshotRef) {
		snapshots++
		if got := w.volume(name).Status.Authority; got != v1alpha1.AuthorityCeph {
			w.t.Errorf("taken while the truth is in %s", got)
		}
	}
	return func() {
		w.t.Helper()
		if snapshots != 1 {
			w.t.Errorf("%d snapshots were taken", snapshots)
		}
	}
}

// snapshotted is a world with the volume a and its snapshot s.
func snapshotted(t *testing.T) *world {
	t.Helper()
	w := newWorld(t)
	w.create("a")
	_, err := w.snap("s", "a")
	must(t, err)
	return w
}

func fromSnapshot(name, snapshot string) *csi.CreateVolumeRequest {
	r := createRequest(name)
	r.VolumeContentSource = &csi.VolumeContentSource{Type: &csi.VolumeContentSource_Snapshot{
		Snapshot: &csi.VolumeContentSource_SnapshotSource{SnapshotId: snapshot},
	}}
	return r
}

// TestFiftySnapshotsOfOneVolumeThatAreAskedForAtOnce are taken, and removed, one after the other.
func TestFiftySnapshotsOfOneVolumeThatAreAskedForAtOnce(t *testing.T) {
	w := newWorld(t)
	w.create("a")
	w.images.taking = func(volumes.SnapshotRef) { time.Sleep(time.Millisecond) }
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
		_, err := w.service.CreateSnapshot(ctx, &csi.CreateSnapshotRequest{Name: id, SourceVolumeId: "a"})
		return err
	})
	if len(w.images.taken) != 50 {
		t.Errorf("%d snapshots", len(w.images.taken))
	}
	atOnce(func(id string) error {
		_, err := w.service.DeleteSnapshot(ctx, &csi.DeleteSnapshotRequest{SnapshotId: id})
		return err
	})
	if len(w.images.taken) != 0 {
		t.Errorf("%d snapshots are left", len(w.images.taken))
	}
}

func TestSnapshotOfADetachedVolume(t *testing.T) {
	w := newWorld(t)
	v := w.create("a")
	s, err := w.snap("s", v.Name)
	must(t, err)
	if s.GetSnapshotId() != "s" || s.GetSourceVolumeId() != "a" || s.GetSizeBytes() != gib || !s.GetReadyToUse() ||
		!s.GetCreationTime().IsValid() {
		t.Errorf("got %v", s)
	}
	again, err := w.snap("s", v.Name)
	must(t, err)
	if !again.GetCreationTime().AsTime().Equal(w.snapshots()["s"].Status.Taken.Time) || len(w.images.taken) != 1 {
		t.Errorf("a repeated call: %v, %v", again, w.images.taken)
	}
	for image, times := range w.images.taken {
		if image.Snapshot != "escache-s" || times != 1 {
			t.Errorf("%v was taken %d times", image, times)
		}
	}
	got, err := w.service.GetSnapshot(t.Context(), &csi.GetSnapshotRequest{SnapshotId: "s"})
	must(t, err)
	if got.GetSnapshot().GetSourceVolumeId() != "a" {
		t.Errorf("got %v", got)
	}
	_, err = w.service.GetSnapshot(t.Context(), &csi.GetSnapshotRequest{SnapshotId: "nothing"})
	wants(t, err, codes.NotFound, "nothing")
	w.create("b")
	_, err = w.snap("s", "b")
	wants(t, err, codes.AlreadyExists, "of volume a, not of b")
	_, err = w.snap("s2", "nothing")
	wants(t, err, codes.NotFound, "nothing")

	must(t, w.unsnap("s"))
	must(t, w.unsnap("s"))
	if len(w.snapshots()) != 0 || len(w.images.taken) != 0 {
		t.Errorf("left: %v, %v", w.snapshots(), w.images.taken)
	}
	must(t, w.delete("a"))
}

func TestASnapshotOfADirtyDetachedVolumeIsTakenOnceItIsWrittenBack(t *testing.T) {
	w := newWorld(t)
	took := w.dirtyDetached("a")
	_, err := w.snap("s", "a")
	must(t, err)
	took()
}

func TestSnapshotOfAnAttachedVolumeIsTakenWhileItsIORests(t *testing.T) {
	w := newWorld(t)
	v, node := w.connected("a")
	held := false
	w.images.taking = func(volumes.SnapshotRef) { held = w.host(node).Held(ref(v)) }
	_, err := w.snap("s", "a")
	must(t, err)
	if !held || w.host(node).Held(ref(v)) {
		t.Errorf("held meanwhile: %v, and afterwards: %v", held, w.host(node).Held(ref(v)))
	}

	// What the host let go on in the middle is no snapshot, and the repeated call takes another.
	w.images.taking = func(volumes.SnapshotRef) { w.host(node).EndHold(ref(v)) }
	_, err = w.snap("s2", "a")
	wants(t, err, codes.Aborted, "resumed writing")
	if s := w.snapshots()["s2"]; s.Status.Taken != nil || s.Name == "" {
		t.Errorf("on record: %+v", s)
	}
	_, err = w.service.CreateVolume(t.Context(), fromSnapshot("b", "s2"))
	wants(t, err, codes.Aborted, "being taken")
	w.images.taking = nil
	_, err = w.snap("s2", "a")
	must(t, err)

	// A volume that goes elsewhere meanwhile.
	w.images.taking = func(volumes.SnapshotRef) {
		now := w.volume("a")
		now.Status.Epoch++
		must(t, w.api.Status().Update(context.Background(), now))
	}
	_, err = w.snap("s3", "a")
	wants(t, err, codes.Aborted, "meanwhile")
}

func TestASnapshotOfMuchThatIsDirtyIsTakenOnceItIsLittle(t *testing.T) {
	w := newWorld(t)
	v, node := w.connected("a")
	w.host(node).Write(ref(v), gib)
	w.host(node).FlushAtMost(200 << 20)
	ctx, cancel := context.WithTimeout(t.Context(), 35*time.Second) // not enough to write back and to hold
	defer cancel()
	_, err := w.service.CreateSnapshot(ctx, &csi.CreateSnapshotRequest{Name: "s", SourceVolumeId: "a"})
	wants(t, err, codes.Aborted, "writes it back")
	left := int64(0)
	w.images.taking = func(volumes.SnapshotRef) {
		status, _ := w.host(node).Volume(ref(v))
		left = *status.DirtyBytes
	}
	_, err = w.snap("s", "a")
	must(t, err)
	if status, _ := w.host(node).Volume(ref(v)); left != 0 || status.HeldUntil != nil {
		t.Errorf("taken with %d bytes dirty, and held until %v", left, status.HeldUntil)
	}
}

func TestWhatCannotBeTakenLeavesNothing(t *testing.T) {
	w := newWorld(t)
	v := w.create("a")
	_, err := w.publish(v.Name, v.Spec.Replicas[0]) // and csi-node has not connected it yet
	must(t, err)
	_, err = w.snap("s", "a")
	wants(t, err, codes.FailedPrecondition, "not connected")
	if len(w.snapshots()) != 0 {
		t.Errorf("left: %v", w.snapshots())
	}
	// What is repeated keeps its record.
	must(t, w.unpublish("a", v.Spec.Replicas[0]))
	w.images.fail = fmt.Errorf("the monitors are gone: %w", volumes.ErrUnavailable)
	_, err = w.snap("s", "a")
	wants(t, err, codes.Unavailable, "monitors")
	if len(w.snapshots()) != 1 {
		t.Errorf("on record: %v", w.snapshots())
	}
	w.images.fail = nil
	_, err = w.snap("s", "a")
	must(t, err)
}

func TestAVolumeOfASnapshot(t *testing.T) {
	w := newWorld(t)
	source := createRequest("a")
	source.CapacityRange.RequiredBytes = 2 * gib
	_, err := w.service.CreateVolume(t.Context(), source)
	must(t, err)
	_, err = w.snap("s", "a")
	must(t, err)

	made, err := w.service.CreateVolume(t.Context(), fromSnapshot("b", "s"))
	must(t, err)
	if made.GetVolume().GetCapacityBytes() != 2*gib || made.GetVolume().GetContentSource().GetSnapshot().GetSnapshotId() != "s" {
		t.Errorf("got %v", made)
	}
	if got := w.images.clones[volumes.ImageRef{ClusterID: "ceph", Pool: "rbd", Image: "escache-b"}]; got != "escache-s" {
		t.Errorf("a clone of %q", got)
	}
	_, err = w.service.CreateVolume(t.Context(), createRequest("b"))
	wants(t, err, codes.AlreadyExists, "the snapshot it was made of")

	small := fromSnapshot("c", "s")
	small.CapacityRange.LimitBytes = gib
	_, err = w.service.CreateVolume(t.Context(), small)
	wants(t, err, codes.OutOfRange, "limit")
	_, err = w.service.CreateVolume(t.Context(), fromSnapshot("c", "nothing"))
	wants(t, err, codes.NotFound, "nothing")
	elsewhere := fromSnapshot("c", "s")
	elsewhere.Parameters["clusterID"] = "another"
	_, err = w.service.CreateVolume(t.Context(), elsewhere)
	wants(t, err, codes.InvalidArgument, "clusterID another")

	// A clone that an interrupted call has left is re-created; one that nobody has on record is not
	// touched.
	w.halfMade("b")
	made2 := w.images.made
	_, err = w.service.CreateVolume(t.Context(), fromSnapshot("b", "s"))
	must(t, err)
	if w.images.made != made2+1 {
		t.Errorf("%d images were made", w.images.made-made2)
	}
	w.images.images[volumes.ImageRef{ClusterID: "ceph", Pool: "rbd", Image: "escache-d"}] = 2 * gib
	_, err = w.service.CreateVolume(t.Context(), fromSnapshot("d", "s"))
	wants(t, err, codes.FailedPrecondition, "exists already")

	// A call that is repeated after the snapshot is gone.
	must(t, w.unsnap("s"))
	_, err = w.service.CreateVolume(t.Context(), fromSnapshot("b", "s"))
	must(t, err)
	w.halfMade("b")
	_, err = w.service.CreateVolume(t.Context(), fromSnapshot("b", "s"))
	wants(t, err, codes.NotFound, "snapshot s")
	if err := w.api.Get(t.Context(), client.ObjectKey{Name: "b"}, &v1alpha1.CacheVolume{}); client.IgnoreNotFound(err) != nil || err == nil {
		t.Errorf("the volume that cannot be made: %v", err)
	}
}

func TestListSnapshots(t *testing.T) {
	w := newWorld(t)
	for _, volume := range []string{"a", "b"} {
		w.create(volume)
		_, err := w.snap("of-"+volume, volume)
		must(t, err)
	}
	list := func(r *csi.ListSnapshotsRequest) (ids []string) {
		t.Helper()
		answer, err := w.service.ListSnapshots(t.Context(), r)
		must(t, err)
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
	_, err := w.service.CreateSnapshot(t.Context(), &csi.CreateSnapshotRequest{SourceVolumeId: "a"})
	wants(t, err, codes.InvalidArgument, "name")
	_, err = w.service.CreateSnapshot(t.Context(), &csi.CreateSnapshotRequest{Name: "s"})
	wants(t, err, codes.InvalidArgument, "source volume id")
	_, err = w.service.CreateSnapshot(t.Context(), &csi.CreateSnapshotRequest{
		Name: "s", SourceVolumeId: "a", Parameters: map[string]string{"pool": "x"},
	})
	wants(t, err, codes.InvalidArgument, "VolumeSnapshotClass")
	_, err = w.service.DeleteSnapshot(t.Context(), &csi.DeleteSnapshotRequest{})
	wants(t, err, codes.InvalidArgument, "snapshot id")
	_, err = w.service.CreateVolume(t.Context(), fromSnapshot("b", ""))
	wants(t, err, codes.InvalidArgument, "source snapshot")
	r := createRequest("b")
	r.VolumeContentSource = &csi.VolumeContentSource{}
	_, err = w.service.CreateVolume(t.Context(), r)
	wants(t, err, codes.InvalidArgument, "neither a snapshot nor a volume")
}
