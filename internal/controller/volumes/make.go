package volumes

import (
	"context"
	"fmt"
)

// MakeImage makes an image, of a snapshot or empty. isNew says that no earlier call can have begun it:
// an image that is there is somebody else's then. Otherwise it is what an earlier call has left. No node
// may have had it yet.
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
