package csi

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"google.golang.org/grpc/codes"

	"github.com/escache/escache-csi/api/v1alpha1"
	"github.com/escache/escache-csi/internal/authority"
	"github.com/escache/escache-csi/internal/controller/volumes"
)

// takeBack removes what calls have begun for a volume that is not made, if external-provisioner gives it
// up because of this failure: it deletes no volume that it was refused. An interrupted take-back goes on
// after any failure. While something may be left, the answer is Unavailable: external-provisioner then
// repeats the call, even if the claim is gone.
func (s *service) takeBack(ctx context.Context, id string, cause error) error {
	v, err := s.Volume(ctx, id)
	switch {
	case errors.Is(err, volumes.ErrNotFound):
		return cause
	case !isFinal(cause) && (err != nil || v.DeletionTimestamp.IsZero()):
		return cause // the repeated call needs the record
	case err == nil && !unmade(v):
		return cause
	case err == nil:
		err = s.removeUnmade(ctx, v)
	}
	if err == nil || errors.Is(err, authority.ErrRecordBehind) { // a person must decide what becomes of such a record
		return cause
	}
	return notTakenBack(cause, err)
}

// unmade reports whether CreateVolume has begun the volume and not ended. Somebody else has made the image
// that a volume adopts.
func unmade(v *v1alpha1.CacheVolume) bool {
	return v.Status.BeingMade() && v.Status.Epoch == 0 && v.Spec.Adoption == nil && !v.BeingReleased()
}

// removeUnmade deletes a volume that no node has had. The record alone does not say that, so image and
// hosts are asked. If the image does not name the volume, nobody knows whose data it has.
func (s *service) removeUnmade(ctx context.Context, v *v1alpha1.CacheVolume) error {
	if _, err := s.Made(ctx, v); err != nil {
		return err
	}
	note, err := s.Images.Noted(ctx, volumes.ImageOf(v))
	switch {
	case gone(err) != nil:
		return err
	case err == nil && note.Volume != v.Name:
		return fmt.Errorf("image %s is there, and its metadata does not name the volume: rename it, or remove it if nobody needs it: %w",
			volumes.ImageOf(v), volumes.ErrRefused)
	case err == nil && hasData(note):
		return nil
	}
	return s.delete(ctx, v.Name)
}

// hasData reports whether an image that no node has had was not made empty. It may be all that is left of
// what it was made of.
func hasData(note volumes.Note) bool {
	return note.Complete && (note.Spec.FromSnapshot != "" || note.Spec.FromVolume != "" || note.Spec.Adoption != nil)
}

// undo is takeBack for the call that has written the record. An image that was there before is somebody
// else's, so undo removes none. If this call may have made one, the record stays, and the repeated call
// goes on with the image or takes it back.
func (s *service) undo(ctx context.Context, v *v1alpha1.CacheVolume, cause error) error {
	if !isFinal(cause) {
		return cause
	}
	if !isRefusal(cause) {
		_, err := s.Images.Noted(ctx, volumes.ImageOf(v))
		if err == nil {
			err = fmt.Errorf("image %s is there", volumes.ImageOf(v))
		}
		if gone(err) != nil {
			return notTakenBack(cause, err)
		}
	}
	if err := s.MarkDeleted(ctx, v); err != nil {
		return notTakenBack(cause, err)
	}
	if err := s.RemoveRecord(ctx, v); err != nil {
		return notTakenBack(cause, err)
	}
	return cause
}

func notTakenBack(cause, left error) error {
	return fmt.Errorf("%w: %s; and what was begun could not be taken back: %s", volumes.ErrUnavailable, cause.Error(), left.Error())
}

// isFinal reports whether external-provisioner gives a volume up after this failure of CreateVolume, or, if
// there was no room, has its pod scheduled again, perhaps to another group. See checkError in its
// pkg/controller/controller.go (v6.3.0).
func isFinal(err error) bool {
	repeated := []codes.Code{codes.OK, codes.Canceled, codes.DeadlineExceeded, codes.Unavailable, codes.Aborted}
	return !slices.Contains(repeated, volumes.Code(err))
}

// isRefusal reports whether the call was refused before Ceph made anything. Other failures can come in the
// middle.
func isRefusal(err error) bool {
	refusals := []codes.Code{codes.InvalidArgument, codes.NotFound, codes.FailedPrecondition, codes.AlreadyExists, codes.OutOfRange}
	return slices.Contains(refusals, volumes.Code(err))
}
