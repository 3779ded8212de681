package csi_test

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
)

func groupRequest(name string, ids ...string) *csi.CreateVolumeGroupSnapshotRequest {
	return &csi.CreateVolumeGroupSnapshotRequest{Name: name, SourceVolumeIds: ids}
}

func (w *world) snapGroup(name string, ids ...string) (*csi.VolumeGroupSnapshot, error) {
	r, err := w.service.CreateVolumeGroupSnapshot(context.Background(), groupRequest(name, ids...))
	return r.GetGroupSnapshot(), err
}

func (w *world) unsnapGroup(id string, snapshots ...string) error {
	_, err := w.service.DeleteVolumeGroupSnapshot(context.Background(), &csi.DeleteVolumeGroupSnapshotRequest{
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
	w.t.Helper()
	nodes := map[string]string{}
	for _, name := range []string{"a", "b", "c"} {
		_, nodes[name] = w.connected(name)
	}
	return func() (names []string) {
		for _, name := range []string{"a", "b", "c"} {
			if w.host(nodes[name]).Held(ref(w.volume(name))) {
				names = append(names, name)
			}
		}
		return names
	}
}

// noneOf fails unless nothing is left of a group snapshot: no snapshot in Ceph, no record, no hold.
func (w *world) noneOf(held func() []string) {
	w.t.Helper()
	if len(w.images.taken) != 0 || len(w.snapshots()) != 0 || len(held()) != 0 {
		w.t.Errorf("left: in Ceph %v, on record %v, held %v", w.images.taken, w.snapshots(), held())
	}
}

func TestAGroupSnapshotIsTakenWhileAllItsVolumesAreHeld(t *testing.T) {
	w := newWorld(t)
	held := w.three()
	var mu sync.Mutex
	snapshots := 0
	w.images.taking = func(volumes.SnapshotRef) {
		mu.Lock()
		defer mu.Unlock()
		snapshots++
		if got := held(); !slices.Equal(got, []string{"a", "b", "c"}) {
			t.Errorf("held while a snapshot is taken: %v", got)
		}
	}
	group, err := w.snapGroup("g", "c", "a", "b")
	must(t, err)
	if got := held(); len(got) != 0 || snapshots != 3 {
		t.Errorf("%d snapshots, and still held: %v", snapshots, got)
	}
	if group.GetGroupSnapshotId() != "g" || !group.GetReadyToUse() || !group.GetCreationTime().IsValid() ||
		len(group.GetSnapshots()) != 3 {
		t.Fatalf("got %v", group)
	}
	for i, s := range group.GetSnapshots() {
		if s.GetSourceVolumeId() != []string{"a", "b", "c"}[i] || s.GetGroupSnapshotId() != "g" || s.GetSizeBytes() != gib || !s.GetReadyToUse() ||
			!s.GetCreationTime().AsTime().Equal(group.GetCreationTime().AsTime()) {
			t.Errorf("snapshot %d: %v", i, s)
		}
	}

	// The same again takes nothing, also in another order and in another process.
	w.restart()
	again, err := w.snapGroup("g", "a", "b", "c")
	must(t, err)
	got, err := w.service.GetVolumeGroupSnapshot(t.Context(), &csi.GetVolumeGroupSnapshotRequest{
		GroupSnapshotId: "g", SnapshotIds: idsOf(group),
	})
	must(t, err)
	for _, other := range []*csi.VolumeGroupSnapshot{again, got.GetGroupSnapshot()} {
		if fmt.Sprint(other) != fmt.Sprint(group) || snapshots != 3 {
			t.Errorf("%d snapshots; first %v, then %v", snapshots, group, other)
		}
	}
}

func TestAMemberOfAGroupSnapshotIsASnapshotLikeOthers(t *testing.T) {
	w := newWorld(t)
	w.create("a")
	w.create("b")
	group, err := w.snapGroup("g", "a", "b")
	must(t, err)
	member := group.GetSnapshots()[1].GetSnapshotId()
	_, err = w.service.CreateVolume(t.Context(), fromSnapshot("of-b", member))
	must(t, err)
	list, err := w.service.ListSnapshots(t.Context(), &csi.ListSnapshotsRequest{SourceVolumeId: "b"})
	must(t, err)
	if len(list.GetEntries()) != 1 || list.GetEntries()[0].GetSnapshot().GetGroupSnapshotId() != "g" {
		t.Errorf("listed: %v", list)
	}

	// But it is not deleted alone.
	wants(t, w.unsnap(member), codes.InvalidArgument, "group snapshot g")
	_, err = w.snap("s", "b")
	must(t, err)
	must(t, w.unsnap("s"))

	must(t, w.unsnapGroup("g", idsOf(group)...))
	must(t, w.unsnapGroup("g", idsOf(group)...))
	if len(w.images.taken) != 0 || len(w.snapshots()) != 0 {
		t.Errorf("left: %v, %v", w.images.taken, w.snapshots())
	}
	must(t, w.delete("a"))
}

func TestAGroupSnapshotWithDetachedVolumes(t *testing.T) {
	w := newWorld(t)
	w.create("clean")
	took := w.dirtyDetached("dirty")
	inCeph := w.images.taking
	v, node := w.connected("used")
	var mu sync.Mutex
	taken := 0
	w.images.taking = func(r volumes.SnapshotRef) {
		mu.Lock()
		defer mu.Unlock()
		taken++
		if r.Image == "escache-dirty" {
			inCeph(r)
		}
		if !w.host(node).Held(ref(v)) {
			t.Error("the attached volume is not held")
		}
	}
	_, err := w.snapGroup("g", "clean", "dirty", "used")
	must(t, err)
	took()
	if taken != 3 || w.host(node).Held(ref(v)) {
		t.Errorf("%d snapshots; held: %v", taken, w.host(node).Held(ref(v)))
	}
}

func TestAGroupSnapshotOfWhichOneCannotBeTakenIsNone(t *testing.T) {
	w := newWorld(t)
	held := w.three()
	cause := fmt.Errorf("it is full: %w", volumes.ErrRefused)
	w.images.refusing = func(_ context.Context, r volumes.SnapshotRef) error {
		if r.Image == "escache-b" {
			return cause
		}
		return nil
	}
	_, err := w.snapGroup("g", "a", "b", "c")
	wants(t, err, codes.FailedPrecondition, "volume b", "it is full")
	w.noneOf(held)

	// A call that csi-snapshotter repeats leaves the records, which keep the volumes, and no snapshot.
	cause = fmt.Errorf("the monitors are gone: %w", volumes.ErrUnavailable)
	_, err = w.snapGroup("g", "a", "b", "c")
	wants(t, err, codes.Unavailable, "volume b", "monitors")
	if len(w.images.taken) != 0 || len(w.snapshots()) != 3 || len(held()) != 0 {
		t.Errorf("in Ceph %v, on record %v, held %v", w.images.taken, w.snapshots(), held())
	}
	for id := range w.snapshots() {
		_, err = w.service.GetSnapshot(t.Context(), &csi.GetSnapshotRequest{SnapshotId: id})
		wants(t, err, codes.NotFound, "not taken yet")
		_, err = w.service.CreateVolume(t.Context(), fromSnapshot("x", id))
		wants(t, err, codes.Aborted, "being taken")
	}
	_, err = w.service.GetVolumeGroupSnapshot(t.Context(), &csi.GetVolumeGroupSnapshotRequest{GroupSnapshotId: "g"})
	wants(t, err, codes.NotFound, "not taken yet")
	w.images.refusing = nil
	_, err = w.snapGroup("g", "a", "b", "c")
	must(t, err)
	if len(w.images.taken) != 3 {
		t.Errorf("in Ceph: %v", w.images.taken)
	}
}

func TestAGroupSnapshotOfWhichOneHoldEndsTooEarlyIsNone(t *testing.T) {
	w := newWorld(t)
	held := w.three()
	v := w.volume("c")
	w.images.taking = func(volumes.SnapshotRef) { w.host(v.Status.AttachedNode).EndHold(ref(v)) }
	_, err := w.snapGroup("g", "a", "b", "c")
	wants(t, err, codes.Aborted, "volume c", "resumed writing")
	if len(w.images.taken) != 0 || len(held()) != 0 {
		t.Errorf("in Ceph %v, held %v", w.images.taken, held())
	}
	w.images.taking = nil
	_, err = w.snapGroup("g", "a", "b", "c")
	must(t, err)
}

// TestAHoldThatCannotBeHadLetsTheOthersGo has a volume that csi-node has not connected yet.
func TestAHoldThatCannotBeHadLetsTheOthersGo(t *testing.T) {
	w := newWorld(t)
	held := w.three()
	v := w.create("d")
	_, err := w.publish("d", v.Spec.Replicas[0])
	must(t, err)
	w.images.taking = func(r volumes.SnapshotRef) { t.Errorf("%s is taken", r) }
	_, err = w.snapGroup("g", "a", "b", "c", "d")
	wants(t, err, codes.FailedPrecondition, "volume d", "not connected")
	w.noneOf(held)
}

// TestMaxSecondsBoundsTheHolds: Ceph answers later than that.
func TestMaxSecondsBoundsTheHolds(t *testing.T) {
	w := newWorld(t)
	held := w.three()
	v := w.volume("a")
	var until time.Time
	w.images.refusing = func(ctx context.Context, r volumes.SnapshotRef) error {
		if r.Image != "escache-a" {
			return nil
		}
		status, _ := w.host(v.Status.AttachedNode).Volume(ref(v))
		until = *status.HeldUntil
		<-ctx.Done()
		return ctx.Err()
	}
	r := groupRequest("g", "a", "b", "c")
	r.Parameters = map[string]string{"maxSeconds": "5"}
	begun := time.Now()
	_, err := w.service.CreateVolumeGroupSnapshot(t.Context(), r)
	wants(t, err, codes.Aborted, "maxSeconds", "5s")
	if until.Before(begun.Add(5*time.Second)) || until.After(time.Now().Add(5*time.Second)) {
		t.Errorf("held from %s to %s", begun, until)
	}
	if len(w.images.taken) != 0 || len(held()) != 0 {
		t.Errorf("in Ceph %v, held %v", w.images.taken, held())
	}
}

// TestOneVolumeOfTheLogEngineAlone needs no moment in common with others.
func TestOneVolumeOfTheLogEngineAlone(t *testing.T) {
	w := newWorld(t)
	log, _ := w.connected("log")
	log.Spec.CacheEngine = v1alpha1.CacheEngineLog
	must(t, w.api.Update(t.Context(), log))
	_, err := w.snapGroup("g", "log")
	must(t, err)
}

func TestAGroupSnapshotThatExistsDifferently(t *testing.T) {
	w := newWorld(t)
	for _, name := range []string{"a", "b", "c", "d"} {
		w.create(name)
	}
	group, err := w.snapGroup("g", "a", "b")
	must(t, err)
	for _, others := range [][]string{{"a"}, {"a", "b", "c"}, {"c", "d"}} {
		_, err = w.snapGroup("g", others...)
		wants(t, err, codes.AlreadyExists, "a, b", strings.Join(others, ", "))
	}
	mismatch := []string{idsOf(group)[0], "other"}
	wants(t, w.unsnapGroup("g", mismatch...), codes.InvalidArgument, "other")
	_, err = w.service.GetVolumeGroupSnapshot(t.Context(), &csi.GetVolumeGroupSnapshotRequest{GroupSnapshotId: "g", SnapshotIds: mismatch})
	wants(t, err, codes.InvalidArgument, "other")
	if len(w.images.taken) != 2 || len(w.snapshots()) != 2 {
		t.Errorf("in Ceph %v, on record %v", w.images.taken, w.snapshots())
	}
}
