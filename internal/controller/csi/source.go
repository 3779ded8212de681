package csi

import (
	"context"
	"errors"
	"fmt"

	"github.com/escache/escache-csi/api/v1alpha1"
	"github.com/escache/escache-csi/internal/controller/csi/requests"
	"github.com/escache/escache-csi/internal/controller/volumes"
)

// source finds the snapshot that a volume is made from, and makes the volume at least as large. A
// repeated call may come after the snapshot was deleted: then the volume exists already, or is
// given up. A volume that is a clone of another one has no snapshot yet.
func (s *service) source(ctx context.Context, r *requests.Create) (*volumes.SnapshotRef, error) {
	if r.Volume != "" {
		return nil, s.sourceVolume(ctx, r)
	}
	if r.Snapshot == "" {
		return nil, nil //nolint:nilnil // an empty volume has no source
	}
	snapshot, err := s.snapshots.Get(ctx, r.Snapshot)
	if errors.Is(err, volumes.ErrNotFound) {
		return nil, s.sourceGone(ctx, r, err)
	}
	if err != nil {
		return nil, err
	}
	if snapshot.Status.Taken == nil || !snapshot.DeletionTimestamp.IsZero() {
		return nil, fmt.Errorf("snapshot %s is being taken or deleted: %w", r.Snapshot, volumes.ErrBusy)
	}
	if snapshot.Spec.ClusterID != r.ClusterID {
		return nil, fmt.Errorf("snapshot %s is in Ceph cluster %s, and the StorageClass has clusterID %s: %w",
			r.Snapshot, snapshot.Spec.ClusterID, r.ClusterID, volumes.ErrInvalid)
	}
	r.Size.Want = max(r.Size.Want, snapshot.Status.SizeBytes)
	if !r.Size.Allows(r.Size.Want) {
		return nil, fmt.Errorf("snapshot %s has %d bytes, more than the limit of %d: %w",
			r.Snapshot, snapshot.Status.SizeBytes, r.Size.Maximum, volumes.ErrOutOfRange)
	}
	ref := volumes.SnapshotOf(snapshot)
	return &ref, nil
}

func (s *service) sourceGone(ctx context.Context, r *requests.Create, gone error) error {
	v, err := s.Volume(ctx, r.ID)
	switch {
	case errors.Is(err, volumes.ErrNotFound):
		return gone
	case err != nil:
		return err
	case v.Spec.FromSnapshot != r.Snapshot:
		return gone
	}
	made := v.Status.Phase == v1alpha1.VolumeReady
	if !made {
		if made, err = s.Made(ctx, v); err != nil {
			return s.ReportBehind(ctx, v.Name, err)
		}
	}
	if !made {
		return errors.Join(gone, s.delete(ctx, v.Name))
	}
	r.Size.Want = v.Spec.SizeBytes
	return nil
}
