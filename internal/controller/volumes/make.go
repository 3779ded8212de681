package volumes

import (
	"context"
	"errors"
	"fmt"

	"github.com/escache/escache-csi/api/v1alpha1"
	"github.com/escache/escache-csi/internal/authority"
)

// MakeImage makes an image, of a snapshot or empty. isNew says that no earlier call can have begun it:
// an image that is there is somebody else's then. Otherwise it is what an earlier call has left. No node
// may have had it yet: see Made.
func MakeImage(ctx context.Context, images Images, spec ImageSpec, isNew bool) error {
	made, err := images.Create(ctx, spec)
	switch {
	case err != nil || made:
		return err
	case isNew:
		return fmt.Errorf("an image of this name exists already, perhaps with somebody's data, "+
			"and no record says that it is this driver's; rename or remove it: %w", ErrRefused)
	case spec.From == nil:
		_, err = images.Mark(ctx, spec.ImageRef, spec.Volume) // the earlier call may not have come so far
		return err
	}
	if err := images.Delete(ctx, spec.ImageRef); err != nil {
		return err
	}
	_, err = images.Create(ctx, spec)
	return err
}

// Made reports whether an earlier call has made the image of a volume that is a copy of something else, and
// has not come to say so on record. A copy that is not complete may be thrown away and made again. The record
// alone does not say that: it may have been set back to a time before the image was used, which may be the only
// place of its data now. So image and hosts are asked. An error means that the image has to stay.
func (s *Steps) Made(ctx context.Context, v *v1alpha1.CacheVolume) (bool, error) {
	note, err := s.Images.Noted(ctx, ImageOf(v))
	switch {
	case errors.Is(err, ErrNotFound):
		return false, nil
	case err != nil:
		return false, fmt.Errorf("read the metadata of image %s: %w", ImageOf(v), err)
	case note.Later:
		return false, laterNote(ImageOf(v))
	}
	if err := authority.NotBehind(v, note.noted()); err != nil {
		return false, err
	}
	if note.Complete && note.Volume == v.Name {
		return true, nil
	}
	// The image may be of a version that noted nothing.
	_, err = authority.Confirmed(v, "", authority.Attachment{}, s.Reports(ctx, v, s.WellReplicas(v)))
	return false, err
}
