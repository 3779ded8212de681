package snapshots

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"time"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/grpc/codes"
	"google.golang.org/protobuf/types/known/timestamppb"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/escache/escache-csi/api/v1alpha1"
	"github.com/escache/escache-csi/internal/controller/csi/requests"
	"github.com/escache/escache-csi/internal/controller/volumes"
	"github.com/escache/escache-csi/internal/crashpoint"
	"github.com/escache/escache-csi/internal/finalizers"
)

// Create writes the record, then takes the snapshot, then records that it exists. The image
// must contain everything that was written to the volume at that moment: a detached volume is
// written back first, an attached one is held.
//
// https://github.com/container-storage-interface/spec/blob/v1.13.0/spec.md#createsnapshot
func (s *Snapshots) Create(ctx context.Context, r requests.Snapshot) (*csi.CreateSnapshotResponse, error) {
	snapshot, v, err := s.snapshotRecord(ctx, r)
	if err != nil {
		return nil, s.undoSnapshot(ctx, snapshot, err)
	}
	if isUntaken(snapshot) {
		taken, err := s.TakeSnapshot(ctx, v, volumes.SnapshotOf(snapshot))
		if err != nil {
			return nil, s.undoTaking(ctx, []*v1alpha1.CacheSnapshot{snapshot}, fmt.Errorf("take a snapshot of volume %s: %w", v.Name, err))
		}
		crashpoint.Reach("create_snapshot/taken")
		snapshot.Status = takenStatus(metav1.NewTime(taken.Taken), taken.SizeBytes)
		if err := s.Cached.Status().Update(ctx, snapshot); err != nil {
			return nil, fmt.Errorf("record that snapshot %s is taken: %w", snapshot.Name, err)
		}
		crashpoint.Reach("create_snapshot/taken_written")
	}
	return &csi.CreateSnapshotResponse{Snapshot: ToCSI(snapshot)}, nil
}

// snapshotRecord returns the snapshot's record (the one that an earlier call has written, or a new
// one) and the volume. The volume is nil if the snapshot is complete already. With an error it returns
// the record that is written and has to go if the call is not repeated; nil if there is none.
func (s *Snapshots) snapshotRecord(ctx context.Context, r requests.Snapshot) (*v1alpha1.CacheSnapshot, *v1alpha1.CacheVolume, error) {
	snapshot, err := s.Get(ctx, r.ID)
	switch {
	case errors.Is(err, volumes.ErrNotFound):
	case err != nil:
		return nil, nil, err
	case isMarked(snapshot) && (snapshot.Spec.Volume != r.Volume || snapshot.Spec.Group != nil):
		return nil, nil, fmt.Errorf("snapshot %s is being deleted: %w", r.ID, volumes.ErrBusy)
	case isMarked(snapshot):
		return nil, nil, s.goOnDeleting(ctx, "snapshot "+r.ID, snapshot)
	case snapshot.Spec.Volume != r.Volume:
		return nil, nil, fmt.Errorf("snapshot %s is of volume %s, not of %s: %w",
			r.ID, snapshot.Spec.Volume, r.Volume, volumes.ErrDifferent)
	case snapshot.Spec.Group != nil:
		return nil, nil, fmt.Errorf("snapshot %s is of group snapshot %s: %w", r.ID, snapshot.Spec.Group.Name, volumes.ErrDifferent)
	case isTaken(snapshot):
		return snapshot, nil, nil
	default:
		if err := s.newAttempt(ctx, snapshot); err != nil {
			return nil, nil, err
		}
	}
	written := err == nil
	v, missing := s.Volume(ctx, r.Volume)
	if missing == nil {
		missing = volumes.Usable(v)
	}
	if missing == nil && !v.DeletionTimestamp.IsZero() {
		missing = fmt.Errorf("volume %s is being deleted: %w", r.Volume, volumes.ErrRefused)
	}
	if missing != nil {
		return snapshot, nil, missing // Get returns nil if there is no record
	}
	if written {
		return snapshot, v, s.notComplete(ctx, snapshot)
	}
	snapshot = s.newSnapshot(r.ID, v)
	unknown := s.notComplete(ctx, snapshot)
	if unknown != nil && !isRepeated(unknown) {
		return nil, nil, unknown
	}
	if err := s.Cached.Create(ctx, snapshot); err != nil {
		return nil, nil, fmt.Errorf("write the record of snapshot %s: %w", r.ID, err)
	}
	crashpoint.Reach("create_snapshot/object_written")
	return snapshot, v, unknown
}

// newAttempt changes a record that an earlier call has written and that does not say that its snapshot is taken. That call may have written
// so and got no answer: if the write comes later than this one, the API server refuses it. Until then the record may say any moment that
// what Ceph has is good, so nothing is taken or removed there before.
func (s *Snapshots) newAttempt(ctx context.Context, snapshot *v1alpha1.CacheSnapshot) error {
	before := snapshot.DeepCopy()
	attempts, _ := strconv.Atoi(snapshot.Annotations[v1alpha1.AnnotationAttempt]) // 0 if there is none
	metav1.SetMetaDataAnnotation(&snapshot.ObjectMeta, v1alpha1.AnnotationAttempt, strconv.Itoa(attempts+1))
	if err := s.Cached.Patch(ctx, snapshot, client.MergeFromWithOptions(before, client.MergeFromWithOptimisticLock{})); err != nil {
		return fmt.Errorf("count the attempts on the record of snapshot %s: %w: %w", snapshot.Name, volumes.ErrUnavailable, err)
	}
	return nil
}

// leftFor is how long a snapshot in Ceph, whose record does not say that it is taken, passes for what an interrupted call
// has left. csi-snapshotter repeats a call within minutes.
const leftFor = time.Hour

// notComplete refuses to replace a snapshot that is complete.
func (s *Snapshots) notComplete(ctx context.Context, snapshot *v1alpha1.CacheSnapshot) error {
	since, err := s.completeSince(ctx, snapshot)
	if err != nil || since.IsZero() {
		return err
	}
	return fmt.Errorf("snapshot %s is in Ceph since %s, and the record does not know that: it was set back, or a call was interrupted, "+
		"and the snapshot may be torn. Nothing is replaced. Rename or remove Ceph's snapshot: docs/restore-etcd.md: %w",
		volumes.SnapshotOf(snapshot), since.UTC().Format(time.RFC3339), volumes.ErrRefused)
}

// completeSince returns when Ceph took a snapshot that it has had for longer than interrupted calls leave one: it passes for complete, and
// for one whose record was set back, for example by restoring an old etcd. It returns the zero time for any other.
func (s *Snapshots) completeSince(ctx context.Context, snapshot *v1alpha1.CacheSnapshot) (time.Time, error) {
	ref := volumes.SnapshotOf(snapshot)
	at, err := s.Images.SnapshotTime(ctx, ref)
	if err != nil {
		return time.Time{}, fmt.Errorf("look for snapshot %s: %w", ref, err)
	}
	if at.IsZero() || s.Now().Sub(at) < leftFor {
		return time.Time{}, nil
	}
	return at, nil
}

// newSnapshot is the record of a volume's snapshot before it is written.
func (s *Snapshots) newSnapshot(id string, v *v1alpha1.CacheVolume) *v1alpha1.CacheSnapshot {
	return &v1alpha1.CacheSnapshot{
		ObjectMeta: metav1.ObjectMeta{Name: id, Finalizers: []string{v1alpha1.SnapshotFinalizer}},
		Spec: v1alpha1.CacheSnapshotSpec{
			Volume: v.Name, ClusterID: v.Spec.ClusterID, Pool: v.Spec.Pool, Image: v.Spec.Image, Snapshot: s.ImagePrefix + id,
		},
	}
}

func takenStatus(at metav1.Time, sizeBytes int64) v1alpha1.CacheSnapshotStatus {
	return v1alpha1.CacheSnapshotStatus{
		Taken: &at, SizeBytes: sizeBytes, Summary: v1alpha1.CacheSnapshotSummary{Size: v1alpha1.HumanBytes(sizeBytes)},
	}
}

// undoSnapshot removes what was begun, if anything was, and csi-snapshotter will not repeat the call: it deletes only
// snapshots whose id it has learned.
func (s *Snapshots) undoSnapshot(ctx context.Context, snapshot *v1alpha1.CacheSnapshot, cause error) error {
	if snapshot == nil || isRepeated(cause) {
		return cause
	}
	if err := s.takeBack(ctx, snapshot); err != nil {
		return fmt.Errorf("%w: %s; and what was begun could not be taken back: %s", volumes.ErrUnavailable, cause.Error(), err.Error())
	}
	return cause
}

// takeBack removes the record of a snapshot that does not say that it is taken, and what Ceph has of it. If that is complete, it stays
// in Ceph, and no later call takes it for its own, or replaces it.
func (s *Snapshots) takeBack(ctx context.Context, snapshot *v1alpha1.CacheSnapshot) error {
	since, err := s.completeSince(ctx, snapshot)
	switch {
	case err != nil:
		return err
	case since.IsZero():
		return s.Delete(ctx, snapshot)
	}
	if err := s.markSnapshot(ctx, snapshot); err != nil {
		return err
	}
	return s.removeRecord(ctx, snapshot)
}

// goOnDeleting refuses to take snapshots that are being deleted. If they are not taken, an earlier call could not take
// them back in one go. csi-snapshotter deletes what it knows, and these it does not know, so their removal goes on here.
func (s *Snapshots) goOnDeleting(ctx context.Context, what string, snapshots ...*v1alpha1.CacheSnapshot) error {
	if !slices.ContainsFunc(snapshots, isTaken) {
		for _, snapshot := range snapshots {
			if err := s.takeBack(ctx, snapshot); err != nil {
				return fmt.Errorf("%s is being deleted: %w: %s", what, volumes.ErrUnavailable, err.Error())
			}
		}
	}
	return fmt.Errorf("%s is being deleted: %w", what, volumes.ErrBusy)
}

// isRepeated reports whether csi-snapshotter repeats a call that failed so until it knows how the call
// has ended.
func isRepeated(cause error) bool {
	repeated := []codes.Code{codes.Canceled, codes.DeadlineExceeded, codes.Unavailable, codes.ResourceExhausted, codes.Aborted}
	return slices.Contains(repeated, volumes.Code(cause))
}

// markSnapshot tells Kubernetes to delete the record. Its finalizer keeps it until the snapshot is gone.
func (s *Snapshots) markSnapshot(ctx context.Context, snapshot *v1alpha1.CacheSnapshot) error {
	if err := s.Cached.Delete(ctx, snapshot, client.Preconditions{UID: &snapshot.UID}); client.IgnoreNotFound(err) != nil {
		return fmt.Errorf("mark snapshot %s as deleted: %w", snapshot.Name, err)
	}
	return nil
}

// Delete removes Ceph's snapshot, with the last one the image of a deleted volume, and the
// record last.
//
// https://github.com/container-storage-interface/spec/blob/v1.13.0/spec.md#deletesnapshot
func (s *Snapshots) Delete(ctx context.Context, snapshot *v1alpha1.CacheSnapshot) error {
	if err := s.markSnapshot(ctx, snapshot); err != nil {
		return err
	}
	crashpoint.Reach("delete_snapshot/object_marked")
	if err := s.Images.DeleteSnapshot(ctx, volumes.SnapshotOf(snapshot)); err != nil {
		return fmt.Errorf("delete snapshot %s: %w", volumes.SnapshotOf(snapshot), err)
	}
	crashpoint.Reach("delete_snapshot/snapshot_removed")
	if err := s.deleteKept(ctx, snapshot); err != nil {
		return err
	}
	return s.removeRecord(ctx, snapshot)
}

// removeRecord removes the record of a snapshot that is marked as deleted.
func (s *Snapshots) removeRecord(ctx context.Context, snapshot *v1alpha1.CacheSnapshot) error {
	if err := finalizers.Remove(ctx, s.Cached, snapshot); err != nil {
		return fmt.Errorf("remove the record of snapshot %s: %w", snapshot.Name, err)
	}
	return nil
}

// VolumeField is the index of snapshots by their volume.
const VolumeField = "spec.volume"

// Index adds the index of snapshots by their volume to a cache.
func Index(ctx context.Context, cache client.FieldIndexer) error {
	return cache.IndexField(ctx, &v1alpha1.CacheSnapshot{}, VolumeField, VolumeOf)
}

// VolumeOf returns the key by which Index finds snapshots.
func VolumeOf(o client.Object) []string {
	if snapshot, ok := o.(*v1alpha1.CacheSnapshot); ok {
		return []string{snapshot.Spec.Volume}
	}
	return nil
}

// Get reads a CacheSnapshot from the API server itself.
func (s *Snapshots) Get(ctx context.Context, id string) (*v1alpha1.CacheSnapshot, error) {
	if !volumes.IsName(id) {
		return nil, fmt.Errorf("snapshot %q: %w", id, volumes.ErrNotFound)
	}
	snapshot := &v1alpha1.CacheSnapshot{}
	err := s.Live.Get(ctx, client.ObjectKey{Name: id}, snapshot)
	switch {
	case apierrors.IsNotFound(err):
		return nil, fmt.Errorf("snapshot %s: %w", id, volumes.ErrNotFound)
	case err != nil:
		return nil, fmt.Errorf("read snapshot %s: %w", id, err)
	}
	return snapshot, nil
}

// ToCSI returns a snapshot as CSI has it.
func ToCSI(snapshot *v1alpha1.CacheSnapshot) *csi.Snapshot {
	out := &csi.Snapshot{
		SnapshotId: snapshot.Name, SourceVolumeId: snapshot.Spec.Volume, SizeBytes: snapshot.Status.SizeBytes,
		CreationTime: timestamppb.New(snapshot.Status.Taken.Time), ReadyToUse: true,
	}
	if group := snapshot.Spec.Group; group != nil {
		out.GroupSnapshotId = group.Name
	}
	return out
}
