package csi

import (
	"context"
	"errors"
	"fmt"

	"github.com/escache/escache-csi/api/v1alpha1"
	"github.com/escache/escache-csi/internal/controller/volumes"
	"github.com/escache/escache-csi/internal/crashpoint"
)

// delete removes what the record names, and the record last, so that a repeated call finds what is
// left. Dirty data in a cache is written back first. A volume that was never attached has no
// replicas, and no node is asked. An image with snapshots stays until the last of them is deleted.
//
// https://github.com/container-storage-interface/spec/blob/v1.13.0/spec.md#deletevolume
func (s *service) delete(ctx context.Context, id string) error {
	v, err := s.Volume(ctx, id)
	if errors.Is(err, volumes.ErrNotFound) {
		s.Book.Forget(id)
		return gone(s.readOnly.Delete(ctx, id))
	}
	if err != nil {
		return err
	}
	if err := ownsImage(v); err != nil {
		return err
	}
	if v.Status.AttachedNode != "" && !v.Status.FlushAttached() {
		return fmt.Errorf("volume %s is attached to node %s and has to be detached first: %w",
			id, v.Status.AttachedNode, volumes.ErrRefused)
	}
	snapshots, err := s.snapshots.Left(ctx, id)
	if err != nil {
		return err
	}
	// Once its claim is gone, no node can attach it any more.
	if err := s.WriteBackDetached(ctx, v); err != nil {
		return fmt.Errorf("volume %s is written back before it is deleted: %w", id, err)
	}
	reports, err := s.UpToDate(ctx, v)
	if err != nil {
		return err
	}
	if err := s.ImageNotNewer(ctx, v); err != nil {
		return err
	}
	// The record was read again if it was written back: somebody may want to keep the image now.
	if err := ownsImage(v); err != nil {
		return err
	}
	if err := s.MarkDeleted(ctx, v); err != nil {
		return err
	}
	crashpoint.Reach("delete_volume/object_marked")
	if v.Status.Epoch > 0 {
		s.WithoutLeftovers(ctx, v, reports) // a host that keeps its device refuses to remove its replica
		if err := s.DropReplicas(ctx, v, v.Spec.Replicas, nil); err != nil {
			return err
		}
	}
	crashpoint.Reach("delete_volume/replicas_removed")
	if err := s.dropImage(ctx, v, snapshots); err != nil {
		return err
	}
	if err := s.RemoveRecord(ctx, v); err != nil {
		return err
	}
	crashpoint.Reach("delete_volume/object_removed")
	return nil
}

// ownsImage refuses a volume whose image is not the driver's yet, or soon not any more, or that is on its
// way to another group.
func ownsImage(v *v1alpha1.CacheVolume) error {
	switch {
	case v.BeingReleased():
		return fmt.Errorf("volume %s is being released: its image stays: %w", v.Name, volumes.ErrRefused)
	case v.Status.Phase == v1alpha1.VolumeConflict:
		return volumes.InConflict(v)
	case v.Spec.Adoption != nil && v.Status.Phase == "":
		return fmt.Errorf("volume %s does not have its image yet, which is not the driver's: %w", v.Name, volumes.ErrRefused)
	case v.Status.Move != nil:
		return volumes.Moving(v)
	}
	return nil
}

// gone turns the error that there is no such volume into success.
func gone(err error) error {
	if errors.Is(err, volumes.ErrNotFound) {
		return nil
	}
	return err
}

// dropImage deletes the image of a volume that is deleted. If it has snapshots, it stays for them, and
// its metadata says so.
func (s *service) dropImage(ctx context.Context, v *v1alpha1.CacheVolume, snapshots []*v1alpha1.CacheSnapshot) error {
	image := volumes.ImageOf(v)
	if len(snapshots) > 0 {
		if err := s.Images.Keep(ctx, image, v.Name); err != nil {
			return fmt.Errorf("keep image %s for its snapshots: %w", image, err)
		}
		crashpoint.Reach("delete_volume/image_kept")
		s.Log.InfoContext(ctx, "the volume is deleted, and its image stays for its snapshots",
			"volume", v.Name, "image", image.String(), "snapshots", len(snapshots))
		return nil
	}
	if err := s.Images.Delete(ctx, image); err != nil {
		return fmt.Errorf("delete image %s: %w", image, err)
	}
	crashpoint.Reach("delete_volume/image_removed")
	return s.dropCloneSnapshot(ctx, v)
}
