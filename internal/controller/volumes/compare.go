package volumes

import (
	"context"
	"errors"

	"github.com/escache/escache-csi/api/v1alpha1"
	"github.com/escache/escache-csi/internal/authority"
)

// Compare answers the attached node's question whether the record is as new as the image's metadata. The node
// waits for that before it connects the volume, because no host can read an image's metadata. If the metadata
// cannot be read or written, there is no answer.
//
// Most questions need no lock: an operation that has the volume may wait for the node that asks. Only the metadata
// must not be written beside another operation.
func (l *Locked) Compare(ctx context.Context, id string) error {
	if answered, err := l.steps.answerAsNoted(ctx, id); answered || err != nil {
		return err
	}
	_, err := under(l, id, comparison, func() (struct{}, error) { return struct{}{}, l.steps.answer(ctx, id) })
	return err
}

// answer reads the record after the question and the metadata after the record. Its write fails if the
// record has changed meanwhile: then the question is answered by what it says by then.
func (s *Steps) answer(ctx context.Context, id string) error {
	v, err := s.Volume(ctx, id)
	if err != nil || !v.Status.Comparison.Waits() {
		return err
	}
	return s.writeAnswer(ctx, v, s.Connectable(ctx, v))
}

// answerAsNoted is answer if the image tells of the attachment on record already. It writes nothing to the image.
func (s *Steps) answerAsNoted(ctx context.Context, id string) (answered bool, err error) {
	v, err := s.Volume(ctx, id)
	if err != nil || !v.Status.Comparison.Waits() {
		return err == nil, err
	}
	if noted, err := s.compare(ctx, v); err == nil && noted.Tells(v) {
		return true, s.writeAnswer(ctx, v, nil)
	}
	return false, nil // the locked answer meets what is wrong, too
}

// writeAnswer fails if the record has changed since it was read. A failure is the answer only if it says that the
// record is behind.
func (s *Steps) writeAnswer(ctx context.Context, v *v1alpha1.CacheVolume, failure error) error {
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
