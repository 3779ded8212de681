package csi

import (
	"context"
	"errors"
	"fmt"

	"github.com/escache/escache-csi/api/v1alpha1"
	"github.com/escache/escache-csi/internal/controller/csi/requests"
	"github.com/escache/escache-csi/internal/controller/volumes"
	"github.com/escache/escache-csi/internal/crashpoint"
)

// sourceVolume checks the volume that another one is to be a clone of, and makes the clone at least
// as large. Once there is a record of the clone, it has nothing to say: the clone may be made, and
// the source changed or gone since.
func (s *service) sourceVolume(ctx context.Context, r *requests.Create) error {
	switch _, err := s.Volume(ctx, r.ID); {
	case err == nil:
		return nil
	case !errors.Is(err, volumes.ErrNotFound):
		return err
	}
	from, err := s.Volume(ctx, r.Volume)
	if err != nil {
		return s.explain(ctx, r.Volume, "make the claim from that snapshot", err)
	}
	if err := volumes.Cloneable(from); err != nil {
		return err
	}
	if from.Spec.ClusterID != r.ClusterID {
		return fmt.Errorf("volume %s is in Ceph cluster %s, and the StorageClass has clusterID %s: %w",
			from.Name, from.Spec.ClusterID, r.ClusterID, volumes.ErrInvalid)
	}
	if r.Size.Minimum > 0 && r.Size.Want < from.Spec.SizeBytes {
		return fmt.Errorf("volume %s has %d bytes, and a clone of it cannot have %d: ask for as much, or more: %w",
			from.Name, from.Spec.SizeBytes, r.Size.Minimum, volumes.ErrOutOfRange)
	}
	r.Size.Want = max(r.Size.Want, from.Spec.SizeBytes)
	if !r.Size.Allows(r.Size.Want) {
		return fmt.Errorf("volume %s has %d bytes, more than the limit of %d: %w",
			from.Name, from.Spec.SizeBytes, r.Size.Maximum, volumes.ErrOutOfRange)
	}
	return nil
}

// cloneVolume makes a volume's image as a clone of another volume, which may be attached and written
// to. The caller holds the lock of the new volume. What cannot succeed is taken back:
// external-provisioner deletes no volume that it was refused.
func (s *service) cloneVolume(ctx context.Context, v *v1alpha1.CacheVolume, isNew bool) error {
	done, err := s.turn(ctx, v.Spec.FromVolume, makingClone)
	if err != nil {
		return err
	}
	defer done()
	from, err := s.Volume(ctx, v.Spec.FromVolume)
	if err == nil {
		err = s.ReportBehind(ctx, from.Name, s.cloneFrom(ctx, v, from, isNew))
	}
	if !isFinal(err) {
		return err
	}
	if left := s.undoClone(ctx, v, from, isNew); left != nil {
		return notTakenBack(err, left)
	}
	if !isNew {
		return s.undo(ctx, v, err)
	}
	return err // the caller takes back a new record
}

// cloneFrom takes a temporary snapshot of the source, as any other snapshot is taken, makes the image
// as a clone of that, and removes the snapshot. Repeated, it begins with a snapshot of now: what an
// interrupted call has left may be from a moment at which the source went on writing.
func (s *service) cloneFrom(ctx context.Context, v, from *v1alpha1.CacheVolume, isNew bool) error {
	if err := volumes.Cloneable(from); err != nil {
		return err
	}
	ref := cloneSnapshot(from, v.Name)
	taken, err := s.TakeSnapshot(ctx, from, ref)
	if err != nil {
		return fmt.Errorf("take a snapshot of volume %s: %w", from.Name, err)
	}
	crashpoint.Reach("create_volume/source_taken")
	if taken.SizeBytes > v.Spec.SizeBytes {
		return fmt.Errorf("volume %s has grown to %d bytes, and its clone %s was to have %d: %w",
			from.Name, taken.SizeBytes, v.Name, v.Spec.SizeBytes, volumes.ErrOutOfRange)
	}
	if err := s.imageFrom(ctx, v, &ref, isNew); err != nil {
		return err
	}
	crashpoint.Reach("create_volume/cloned")
	if err := s.Images.DeleteSnapshot(ctx, ref); err != nil {
		return fmt.Errorf("remove the temporary snapshot %s: %w", ref, err)
	}
	crashpoint.Reach("create_volume/source_released")
	return nil
}

// undoClone removes the temporary snapshot, and the image that an earlier call may have made. An image
// that was there before the record is somebody else's.
func (s *service) undoClone(ctx context.Context, v, from *v1alpha1.CacheVolume, isNew bool) error {
	if !isNew {
		if err := s.Images.Delete(ctx, volumes.ImageOf(v)); err != nil {
			return err
		}
	}
	if from == nil {
		return nil
	}
	return s.Images.DeleteSnapshot(ctx, cloneSnapshot(from, v.Name))
}

// dropCloneSnapshot removes the temporary snapshot of a clone that is deleted before it was made. If
// the source has no record any more, nobody knows where that would be.
func (s *service) dropCloneSnapshot(ctx context.Context, v *v1alpha1.CacheVolume) error {
	if v.Spec.FromVolume == "" || !v.Status.BeingMade() {
		return nil
	}
	done, err := s.operations.Begin(v.Spec.FromVolume, "the removal of a clone's snapshot")
	if err != nil {
		return err
	}
	defer done()
	from, err := s.Volume(ctx, v.Spec.FromVolume)
	if errors.Is(err, volumes.ErrNotFound) {
		return nil
	}
	if err == nil {
		err = s.Images.DeleteSnapshot(ctx, cloneSnapshot(from, v.Name))
	}
	if err != nil {
		return fmt.Errorf("remove the temporary snapshot of volume %s: %w", v.Spec.FromVolume, err)
	}
	return nil
}

// cloneSnapshot names the temporary snapshot of the source of a clone. No object of Kubernetes has a
// name with an underscore, so it is never the name of a CacheSnapshot's snapshot.
func cloneSnapshot(from *v1alpha1.CacheVolume, clone string) volumes.SnapshotRef {
	return volumes.SnapshotRef{ImageRef: volumes.ImageOf(from), Snapshot: "clone_" + clone}
}
