package volumes

import (
	"context"
	"errors"

	"github.com/escache/escache-csi/internal/authority"
)

// Compare answers the attached node's question whether the record is as new as the image's metadata. The node
// waits for that before it connects the volume, because no host can read an image's metadata. If the metadata
// cannot be read or written, there is no answer.
func (l *Locked) Compare(ctx context.Context, id string) error {
	_, err := under(l, id, comparison, func() (struct{}, error) { return struct{}{}, l.steps.answer(ctx, id) })
	return err
}

// answer reads the record after the question and the metadata after the record. Its write fails if the
// record has changed meanwhile: then the question is answered by what it says by then.
func (s *Steps) answer(ctx context.Context, id string) error {
	v, err := s.Volume(ctx, id)
	if err != nil || v.Status.Comparison == nil || v.Status.Comparison.Question == v.Status.Comparison.Answered {
		return err
	}
	failure := s.Connectable(ctx, v)
	if failure != nil && !errors.Is(failure, authority.ErrRecordBehind) {
		return failure
	}
	c := v.Status.Comparison
	c.Answered, c.Behind = c.Question, ""
	if failure != nil {
		c.Behind = failure.Error()
		s.tellBehind(ctx, v, failure)
	}
	return s.UpdateStatus(ctx, v, "it was compared with its image's metadata")
}
