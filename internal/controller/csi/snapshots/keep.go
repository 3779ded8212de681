package snapshots

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/escache/escache-csi/api/v1alpha1"
	"github.com/escache/escache-csi/internal/controller/volumes"
	"github.com/escache/escache-csi/internal/crashpoint"
)

// snapshotsOf returns the snapshots of a volume that are on record. Ceph knows those that the cache
// does not know yet, and deletes no image that has one.
func (s *Snapshots) snapshotsOf(ctx context.Context, volume string) ([]*v1alpha1.CacheSnapshot, error) {
	all := &v1alpha1.CacheSnapshotList{}
	if err := s.Cached.List(ctx, all, client.MatchingFields{VolumeField: volume}); err != nil {
		return nil, fmt.Errorf("look for snapshots of volume %s: %w", volume, err)
	}
	var out []*v1alpha1.CacheSnapshot
	for i := range all.Items {
		// The cache may not know yet that a snapshot is taken, or gone.
		switch now, err := s.Get(ctx, all.Items[i].Name); {
		case err == nil:
			out = append(out, now)
		case !errors.Is(err, volumes.ErrNotFound):
			return nil, err
		}
	}
	return out, nil
}

// Left returns the snapshots of a volume that is deleted, and refuses it while one of them is
// being taken, or a clone made: that could not go on without the volume.
func (s *Snapshots) Left(ctx context.Context, volume string) ([]*v1alpha1.CacheSnapshot, error) {
	snapshots, err := s.snapshotsOf(ctx, volume)
	if err != nil {
		return nil, err
	}
	for _, snapshot := range snapshots {
		if snapshot.Status.Taken == nil && snapshot.DeletionTimestamp.IsZero() {
			kind := "VolumeSnapshot"
			if snapshot.Spec.Group != nil {
				kind = "VolumeGroupSnapshot"
			}
			return nil, fmt.Errorf("volume %s: its snapshot %s is being taken; wait until it is, or delete its %s: %w",
				volume, snapshot.Name, kind, volumes.ErrRefused)
		}
	}
	return snapshots, s.WithoutClones(ctx, volume)
}

// deleteKept deletes the image of a deleted volume with its last snapshot. That the volume has no
// record proves nothing: it is deleted only if the image itself says so. The snapshot's record is
// still there, so that the call is repeated until this has succeeded.
func (s *Snapshots) deleteKept(ctx context.Context, last *v1alpha1.CacheSnapshot) error {
	image := volumes.SnapshotOf(last).ImageRef
	switch v, err := s.Volume(ctx, last.Spec.Volume); {
	case err == nil && volumes.ImageOf(v) == image:
		return nil // what is left to do for its image is DeleteVolume's
	case err != nil && !errors.Is(err, volumes.ErrNotFound):
		return err
	}
	all, err := s.snapshotsOf(ctx, last.Spec.Volume)
	if err != nil {
		return err
	}
	if slices.ContainsFunc(all, func(other *v1alpha1.CacheSnapshot) bool { return other.Name != last.Name }) {
		return nil
	}
	if err := s.Images.DeleteKept(ctx, image, last.Spec.Volume); err != nil {
		return fmt.Errorf("delete image %s with its last snapshot: %w", image, err)
	}
	crashpoint.Reach("delete_snapshot/image_removed")
	return nil
}
