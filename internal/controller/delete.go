package controller

import (
	"context"
	"errors"
	"fmt"

	"github.com/escache/escache-csi/api/v1alpha1"
	"github.com/escache/escache-csi/internal/authority"
	"github.com/escache/escache-csi/internal/crashpoint"
)

// delete removes what the record names, and the record last, so that a repeated call finds what is left. What is dirty in a cache is
// written back first. A volume that was never attached has no replicas, and no node is asked.
//
// https://github.com/container-storage-interface/spec/blob/v1.13.0/spec.md#deletevolume
func (s *service) delete(ctx context.Context, id string) error {
	v, err := s.volume(ctx, id)
	if errors.Is(err, ErrNotFound) {
		s.Book.Forget(id)
		return nil
	}
	if err != nil {
		return err
	}
	if v.Status.FlushAttached() {
		if err := s.finishFlush(ctx, v); err != nil {
			return err
		}
	}
	if v.Status.AttachedNode != "" {
		return fmt.Errorf("volume %s is attached to node %s and has to be detached first: %w", id, v.Status.AttachedNode, ErrRefused)
	}
	if err := s.withoutSnapshots(ctx, id); err != nil {
		return err
	}
	if _, err := s.settle(ctx, v); err != nil {
		return err
	}
	if !authority.InCeph(v) {
		// Nobody can attach it any more once its claim is gone.
		if err := s.writeBack(ctx, v, authority.Current(v)); err != nil {
			return fmt.Errorf("volume %s is written back before it is deleted: %w", id, err)
		}
	}
	if err := s.markDeleted(ctx, v); err != nil {
		return err
	}
	crashpoint.Reach("delete_volume/object_marked")
	if v.Status.Epoch > 0 {
		if err := s.dropReplicas(ctx, v, v.Spec.Replicas, nil); err != nil {
			return err
		}
	}
	crashpoint.Reach("delete_volume/replicas_removed")
	if err := s.Images.Delete(ctx, imageOf(v)); err != nil {
		return fmt.Errorf("delete image %s: %w", imageOf(v), err)
	}
	crashpoint.Reach("delete_volume/image_removed")
	if err := s.letGo(ctx, v); err != nil {
		return err
	}
	crashpoint.Reach("delete_volume/object_removed")
	return nil
}

// settle asks the replicas of a detached volume whether everything is in Ceph by now, and records it if so. A volume for
// which nobody can say keeps its authority; that is no error here. What the replicas said is returned.
func (s *service) settle(ctx context.Context, v *v1alpha1.CacheVolume) (map[string]authority.Report, error) {
	if authority.InCeph(v) || v.Status.AttachedNode != "" {
		return nil, nil //nolint:nilnil // nobody was asked
	}
	reports := s.reports(ctx, v)
	if !authority.Settled(v, reports) {
		return reports, nil
	}
	s.inCeph(v)
	return reports, s.updateStatus(ctx, v, "its cache is clean")
}

func (s *service) inCeph(v *v1alpha1.CacheVolume) {
	now := s.now()
	v.Status.Authority = v1alpha1.AuthorityCeph
	v.Status.LastFlushTime = &now
	v.Status.SetDirtyBytes(0)
}
