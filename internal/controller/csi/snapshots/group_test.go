package snapshots_test

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/grpc/codes"

	"github.com/escache/escache-csi/api/v1alpha1"
	"github.com/escache/escache-csi/internal/controller/volumes"
	"github.com/escache/escache-csi/test/csitest"
)

func (w *world) unsnapGroup(id string, snapshots ...string) error {
	_, err := w.Service.DeleteVolumeGroupSnapshot(context.Background(), &csi.DeleteVolumeGroupSnapshotRequest{
		GroupSnapshotId: id, SnapshotIds: snapshots,
	})
	return err
}

// idsOf are the ids of a group's snapshots.
func idsOf(group *csi.VolumeGroupSnapshot) (ids []string) {
	for _, s := range group.GetSnapshots() {
		ids = append(ids, s.GetSnapshotId())
	}
	return ids
}

// three connects the volumes a, b and c, each with something dirty. held returns those whose I/O is
// suspended.
func (w *world) three() (held func() []string) {
	w.T.Helper()
	nodes := map[string]string{}
	for _, name := range []string{"a", "b", "c"} {
		_, nodes[name] = w.Connected(name)
	}
	return func() (names []string) {
		for _, name := range []string{"a", "b", "c"} {
			if w.Host(nodes[name]).Held(csitest.Ref(w.Volume(name))) {
				names = append(names, name)
			}
		}
		return names
	}
}

// noneOf fails unless nothing is left of a group snapshot: no snapshot in Ceph, no record, no hold.
func (w *world) noneOf(held func() []string) {
	w.T.Helper()
	if len(w.Images.Taken) != 0 || len(w.Snapshots()) != 0 || len(held()) != 0 {
		w.T.Errorf("left: in Ceph %v, on record %v, held %v", w.Images.Taken, w.Snapshots(), held())
	}
}

func TestAGroupSnapshotIsTakenWhileAllItsVolumesAreHeld(t *testing.T) {
	w := newWorld(t)
	held := w.three()
	var mu sync.Mutex
	snapshots := 0
	w.Images.Taking = func(volumes.SnapshotRef) {
		mu.Lock()
		defer mu.Unlock()
		snapshots++
		if got := held(); !slices.Equal(got, []string{"a", "b", "c"}) {
			t.Errorf("held while a snapshot is taken: %v", got)
		}
	}
	group, err := w.SnapGroup("g", "c", "a", "b")
	csitest.Must(t, err)
	if got := held(); len(got) != 0 || snapshots != 3 {
		t.Errorf("%d snapshots, and still held: %v", snapshots, got)
	}
	if group.GetGroupSnapshotId() != "g" || !group.GetReadyToUse() || !group.GetCreationTime().IsValid() ||
		len(group.GetSnapshots()) != 3 {
		t.Fatalf("got %v", group)
	}
	for i, s := range group.GetSnapshots() {
		if s.GetSourceVolumeId() != []string{"a", "b", "c"}[i] || s.GetGroupSnapshotId() != "g" || s.GetSizeBytes() != csitest.GiB ||
			!s.GetReadyToUse() ||
			!s.GetCreationTime().AsTime().Equal(group.GetCreationTime().AsTime()) {
			t.Errorf("snapshot %d: %v", i, s)
		}
	}

	// The same again takes nothing, also in another order and in another process.
	w.Restart()
	again, err := w.SnapGroup("g", "a", "b", "c")
	csitest.Must(t, err)
	got, err := w.Service.GetVolumeGroupSnapshot(t.Context(), &csi.GetVolumeGroupSnapshotRequest{
		GroupSnapshotId: "g", SnapshotIds: idsOf(group),
	})
	csitest.Must(t, err)
	for _, other := range []*csi.VolumeGroupSnapshot{again, got.GetGroupSnapshot()} {
		if fmt.Sprint(other) != fmt.Sprint(group) || snapshots != 3 {
			t.Errorf("%d snapshots; first %v, then %v", snapshots, group, other)
		}
	}
}

func TestAMemberOfAGroupSnapshotIsASnapshotLikeOthers(t *testing.T) {
	w := newWorld(t)
	w.Create("a")
	w.Create("b")
	group, err := w.SnapGroup("g", "a", "b")
	csitest.Must(t, err)
	member := group.GetSnapshots()[1].GetSnapshotId()
	_, err = w.Service.CreateVolume(t.Context(), csitest.FromSnapshot("of-b", member))
	csitest.Must(t, err)
	list, err := w.Service.ListSnapshots(t.Context(), &csi.ListSnapshotsRequest{SourceVolumeId: "b"})
	csitest.Must(t, err)
	if len(list.GetEntries()) != 1 || list.GetEntries()[0].GetSnapshot().GetGroupSnapshotId() != "g" {
		t.Errorf("listed: %v", list)
	}

	// But it is not deleted alone.
	csitest.Wants(t, w.Unsnap(member), codes.InvalidArgument, "group snapshot g")
	_, err = w.Snap("s", "b")
	csitest.Must(t, err)
	csitest.Must(t, w.Unsnap("s"))

	csitest.Must(t, w.unsnapGroup("g", idsOf(group)...))
	csitest.Must(t, w.unsnapGroup("g", idsOf(group)...))
	if len(w.Images.Taken) != 0 || len(w.Snapshots()) != 0 {
		t.Errorf("left: %v, %v", w.Images.Taken, w.Snapshots())
	}
	csitest.Must(t, w.Delete("a"))
}

func TestAGroupSnapshotWithDetachedVolumes(t *testing.T) {
	w := newWorld(t)
	w.Create("clean")
	took := w.DirtyDetached("dirty")
	inCeph := w.Images.Taking
	v, node := w.Connected("used")
	var mu sync.Mutex
	taken := 0
	w.Images.Taking = func(r volumes.SnapshotRef) {
		mu.Lock()
		defer mu.Unlock()
		taken++
		if r.Image == "escache-dirty" {
			inCeph(r)
		}
		if !w.Host(node).Held(csitest.Ref(v)) {
			t.Error("the attached volume is not held")
		}
	}
	_, err := w.SnapGroup("g", "clean", "dirty", "used")
	csitest.Must(t, err)
	took()
	if taken != 3 || w.Host(node).Held(csitest.Ref(v)) {
		t.Errorf("%d snapshots; held: %v", taken, w.Host(node).Held(csitest.Ref(v)))
	}
}

func TestAGroupSnapshotOfWhichOneCannotBeTakenIsNone(t *testing.T) {
	w := newWorld(t)
	held := w.three()
	cause := fmt.Errorf("it is full: %w", volumes.ErrRefused)
	w.Images.Refusing = func(_ context.Context, r volumes.SnapshotRef) error {
		if r.Image == "escache-b" {
			return cause
		}
		return nil
	}
	_, err := w.SnapGroup("g", "a", "b", "c")
	csitest.Wants(t, err, codes.FailedPrecondition, "volume b", "it is full")
	w.noneOf(held)

	// A call that csi-snapshotter repeats leaves the records, which keep the volumes, and no snapshot.
	cause = fmt.Errorf("the monitors are gone: %w", volumes.ErrUnavailable)
	_, err = w.SnapGroup("g", "a", "b", "c")
	csitest.Wants(t, err, codes.Unavailable, "volume b", "monitors")
	if len(w.Images.Taken) != 0 || len(w.Snapshots()) != 3 || len(held()) != 0 {
		t.Errorf("in Ceph %v, on record %v, held %v", w.Images.Taken, w.Snapshots(), held())
	}
	for id := range w.Snapshots() {
		_, err = w.Service.GetSnapshot(t.Context(), &csi.GetSnapshotRequest{SnapshotId: id})
		csitest.Wants(t, err, codes.NotFound, "not taken yet")
		_, err = w.Service.CreateVolume(t.Context(), csitest.FromSnapshot("x", id))
		csitest.Wants(t, err, codes.Aborted, "being taken")
	}
	_, err = w.Service.GetVolumeGroupSnapshot(t.Context(), &csi.GetVolumeGroupSnapshotRequest{GroupSnapshotId: "g"})
	csitest.Wants(t, err, codes.NotFound, "not taken yet")
	w.Images.Refusing = nil
	_, err = w.SnapGroup("g", "a", "b", "c")
	csitest.Must(t, err)
	if len(w.Images.Taken) != 3 {
		t.Errorf("in Ceph: %v", w.Images.Taken)
	}
}

func TestAGroupSnapshotOfWhichOneHoldEndsTooEarlyIsNone(t *testing.T) {
	w := newWorld(t)
	held := w.three()
	v := w.Volume("c")
	w.Images.Taking = func(volumes.SnapshotRef) { w.Host(v.Status.AttachedNode).EndHold(csitest.Ref(v)) }
	_, err := w.SnapGroup("g", "a", "b", "c")
	csitest.Wants(t, err, codes.Aborted, "volume c", "resumed writing")
	if len(w.Images.Taken) != 0 || len(held()) != 0 {
		t.Errorf("in Ceph %v, held %v", w.Images.Taken, held())
	}
	w.Images.Taking = nil
	_, err = w.SnapGroup("g", "a", "b", "c")
	csitest.Must(t, err)
}

// TestAHoldThatCannotBeHadLetsTheOthersGo has a volume that csi-node has not connected yet.
func TestAHoldThatCannotBeHadLetsTheOthersGo(t *testing.T) {
	w := newWorld(t)
	held := w.three()
	v := w.Create("d")
	_, err := w.Publish("d", v.Spec.Replicas[0])
	csitest.Must(t, err)
	w.Images.Taking = func(r volumes.SnapshotRef) { t.Errorf("%s is taken", r) }
	_, err = w.SnapGroup("g", "a", "b", "c", "d")
	csitest.Wants(t, err, codes.FailedPrecondition, "volume d", "not connected")
	w.noneOf(held)
}

// TestMaxSecondsBoundsTheHolds: Ceph answers later than that.
func TestMaxSecondsBoundsTheHolds(t *testing.T) {
	w := newWorld(t)
	held := w.three()
	v := w.Volume("a")
	var until time.Time
	w.Images.Refusing = func(ctx context.Context, r volumes.SnapshotRef) error {
		if r.Image != "escache-a" {
			return nil
		}
		status := w.Host(v.Status.AttachedNode).Status(csitest.Ref(v))
		until = *status.HeldUntil
		<-ctx.Done()
		return ctx.Err()
	}
	r := csitest.GroupRequest("g", "a", "b", "c")
	r.Parameters = map[string]string{"maxSeconds": "5"}
	begun := time.Now()
	_, err := w.Service.CreateVolumeGroupSnapshot(t.Context(), r)
	csitest.Wants(t, err, codes.Aborted, "maxSeconds", "5s")
	if until.Before(begun.Add(5*time.Second)) || until.After(time.Now().Add(5*time.Second)) {
		t.Errorf("held from %s to %s", begun, until)
	}
	if len(w.Images.Taken) != 0 || len(held()) != 0 {
		t.Errorf("in Ceph %v, held %v", w.Images.Taken, held())
	}
}

// TestOneVolumeOfTheLogEngineAlone needs no moment in common with others.
func TestOneVolumeOfTheLogEngineAlone(t *testing.T) {
	w := newWorld(t)
	log, _ := w.Connected("log")
	log.Spec.CacheEngine = v1alpha1.CacheEngineLog
	csitest.Must(t, w.API.Update(t.Context(), log))
	_, err := w.SnapGroup("g", "log")
	csitest.Must(t, err)
}

func TestAGroupSnapshotThatExistsDifferently(t *testing.T) {
	w := newWorld(t)
	for _, name := range []string{"a", "b", "c", "d"} {
		w.Create(name)
	}
	group, err := w.SnapGroup("g", "a", "b")
	csitest.Must(t, err)
	for _, others := range [][]string{{"a"}, {"a", "b", "c"}, {"c", "d"}} {
		_, err = w.SnapGroup("g", others...)
		csitest.Wants(t, err, codes.AlreadyExists, "a, b", strings.Join(others, ", "))
	}
	mismatch := []string{idsOf(group)[0], "other"}
	csitest.Wants(t, w.unsnapGroup("g", mismatch...), codes.InvalidArgument, "other")
	_, err = w.Service.GetVolumeGroupSnapshot(t.Context(), &csi.GetVolumeGroupSnapshotRequest{GroupSnapshotId: "g", SnapshotIds: mismatch})
	csitest.Wants(t, err, codes.InvalidArgument, "other")
	if len(w.Images.Taken) != 2 || len(w.Snapshots()) != 2 {
		t.Errorf("in Ceph %v, on record %v", w.Images.Taken, w.Snapshots())
	}
}
