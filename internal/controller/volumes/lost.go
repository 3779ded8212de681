package volumes

import (
	"context"
	"errors"
	"fmt"

	"github.com/escache/escache-csi/api/v1alpha1"
)

// lostImageError says that somebody has removed the image of a volume whose cache may have more than Ceph had.
// Nothing can be written back any more. It is ErrNotFound.
type lostImageError struct {
	volume string
	image  ImageRef
}

func (e *lostImageError) Error() string {
	return fmt.Sprintf("image %s is not in Ceph, so nothing can be written back: take it out of the trash (rbd trash ls), or, "+
		"if it is lost for good, accept the loss: kubectl escache discard-cache %s: %v", e.image, e.volume, ErrNotFound)
}

// Unwrap makes errors.Is true for ErrNotFound.
func (e *lostImageError) Unwrap() error { return ErrNotFound }

// lost returns a *lostImageError if the failure, of a step that needs the image of a volume, is ErrNotFound because
// Ceph says that the image is not there. Otherwise it returns the failure.
func (s *Steps) lost(ctx context.Context, v *v1alpha1.CacheVolume, failure error) error {
	if errors.Is(failure, ErrNotFound) && s.imageGone(ctx, v) {
		return &lostImageError{v.Name, ImageOf(v)}
	}
	return failure
}

// imageGone reports whether Ceph says that a volume's image, or its pool, is not there. A cluster that does not
// answer, or is not configured, says nothing.
func (s *Steps) imageGone(ctx context.Context, v *v1alpha1.CacheVolume) bool {
	found, err := s.Images.Find(ctx, v.Spec.ClusterID, v.Spec.Pool, v.Spec.Image)
	return err == nil && len(found) == 0
}
