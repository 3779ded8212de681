package ceph

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/escache/escache-csi/internal/controller/volumes"
	"github.com/escache/escache-csi/internal/rbd"
)

// Settled waits until what earlier calls do to an image has really ended.
func (i *Images) Settled(ctx context.Context, image volumes.ImageRef) error {
	cluster, err := i.cluster(image.ClusterID)
	if err != nil {
		return err
	}
	return translate(ctx, cluster.Settled(ctx, refOf(image)))
}

// TakeSnapshot takes a snapshot. It replaces one of the same name: an interrupted call left it, and
// the image may have been written to at that time.
func (i *Images) TakeSnapshot(ctx context.Context, snapshot volumes.SnapshotRef) (volumes.Snapshot, error) {
	cluster, err := i.cluster(snapshot.ClusterID)
	if err != nil {
		return volumes.Snapshot{}, err
	}
	taken, err := cluster.CreateSnapshot(ctx, snapshotOf(snapshot))
	if errors.Is(err, rbd.ErrExists) {
		if err = cluster.RemoveSnapshot(ctx, snapshotOf(snapshot)); err == nil {
			taken, err = cluster.CreateSnapshot(ctx, snapshotOf(snapshot))
		}
	}
	if err != nil {
		return volumes.Snapshot{}, translate(ctx, err)
	}
	return volumes.Snapshot{SizeBytes: taken.SizeBytes, Taken: taken.Created}, nil
}

// SnapshotTime returns when a snapshot was taken.
func (i *Images) SnapshotTime(ctx context.Context, snapshot volumes.SnapshotRef) (time.Time, error) {
	cluster, err := i.cluster(snapshot.ClusterID)
	if err != nil {
		return time.Time{}, err
	}
	all, err := cluster.ListSnapshots(ctx, refOf(snapshot.ImageRef))
	if errors.Is(err, rbd.ErrNotFound) || errors.Is(err, rbd.ErrPoolNotFound) {
		return time.Time{}, nil
	}
	for _, one := range all {
		if one.Name == snapshot.Snapshot {
			return one.Created, nil
		}
	}
	return time.Time{}, translate(ctx, err)
}

// DeleteSnapshot removes a snapshot. If the snapshot, its image or its pool is gone, that is
// success.
func (i *Images) DeleteSnapshot(ctx context.Context, snapshot volumes.SnapshotRef) error {
	cluster, err := i.cluster(snapshot.ClusterID)
	if err != nil {
		return fmt.Errorf("%w: %w", volumes.ErrRefused, err)
	}
	err = cluster.RemoveSnapshot(ctx, snapshotOf(snapshot))
	if errors.Is(err, rbd.ErrNotFound) || errors.Is(err, rbd.ErrPoolNotFound) {
		return nil
	}
	return translate(ctx, err)
}

// Keep notes that the image stays for the snapshots of a volume that is deleted. If the image or its
// pool is gone, that is success.
func (i *Images) Keep(ctx context.Context, image volumes.ImageRef, volume string) error {
	cluster, err := i.cluster(image.ClusterID)
	if err != nil {
		return fmt.Errorf("%w: %w", volumes.ErrRefused, err)
	}
	err = cluster.KeepImage(ctx, refOf(image), volume, i.now().UTC().Format(time.RFC3339))
	if errors.Is(err, rbd.ErrNotFound) || errors.Is(err, rbd.ErrPoolNotFound) {
		return nil
	}
	return translate(ctx, err)
}

// DeleteKept deletes the image if its metadata says that it stays for the snapshots of this volume,
// which is deleted.
func (i *Images) DeleteKept(ctx context.Context, image volumes.ImageRef, volume string) error {
	cluster, err := i.cluster(image.ClusterID)
	if err != nil {
		return fmt.Errorf("%w: %w", volumes.ErrRefused, err)
	}
	mark, err := cluster.MarkOf(ctx, refOf(image))
	switch {
	case errors.Is(err, rbd.ErrNotFound), errors.Is(err, rbd.ErrPoolNotFound):
		return nil
	case err != nil:
		return translate(ctx, err)
	case mark.Deleted == "" || mark.Volume != volume:
		return nil
	}
	return i.Delete(ctx, image)
}
