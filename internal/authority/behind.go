package authority

import (
	"errors"
	"fmt"

	"github.com/escache/escache-csi/api/v1alpha1"
)

// Noted is what an image's metadata says of the last attachment of its volume. Both numbers only grow.
type Noted struct {
	Volume string
	Epoch  int64
	// LinkGeneration counts how often the replicas were created again, which may happen within an attachment.
	LinkGeneration int64
	// Node is the one that had the volume then. It is for people only.
	Node string
	// Pool and Image are those of the volume. The note may be on a copy of them.
	Pool, Image string
}

// NotBehind returns an error if the image tells of a later attachment, or of later replicas, than the
// record: the record was set back, for example by restoring an old etcd. So it was, too, if the image is another
// volume's by now, which has adopted it. What is noted of another image says nothing: a copy has the note of what it
// was copied from. The error wraps ErrRecordBehind.
func NotBehind(v *v1alpha1.CacheVolume, image Noted) error {
	switch {
	case image.OfAnother(v.Spec.Pool, v.Spec.Image, v.Name):
		return fmt.Errorf("volume %s: %w: by its metadata image %s/%s is volume %s's, which has adopted it since; see docs/restore-etcd.md",
			v.Name, ErrRecordBehind, image.Pool, image.Image, image.Volume)
	case image.Volume != v.Name:
		return nil
	case image.Epoch > v.Status.Epoch:
		return fmt.Errorf("volume %s: %w: its image's metadata has epoch %d of node %q, the record says %d; see docs/restore-etcd.md",
			v.Name, ErrRecordBehind, image.Epoch, image.Node, v.Status.Epoch)
	case image.LinkGeneration > v.Spec.LinkGeneration:
		return fmt.Errorf("volume %s: %w: by its image's metadata its replicas were created again since (linkGeneration %d, the record "+
			"says %d); see docs/restore-etcd.md", v.Name, ErrRecordBehind, image.LinkGeneration, v.Spec.LinkGeneration)
	}
	return nil
}

// OfAnother reports whether the note says of this image that it is another volume's than this one. A clone has its
// parent's note until it gets its own, and that says nothing: it is of another image.
func (image Noted) OfAnother(pool, name, volume string) bool {
	return image.Volume != "" && image.Volume != volume && image.Pool == pool && image.Image == name
}

// Tells reports whether the image tells of the attachment on record, and of its replicas. Before it does,
// no host may connect the volume: if the record were set back then, nobody could tell.
func (image Noted) Tells(v *v1alpha1.CacheVolume) bool {
	return image.Volume == v.Name && image.Epoch == v.Status.Epoch && image.LinkGeneration == v.Spec.LinkGeneration
}

// ErrUnanswered means that csi-controller has not compared the record with the image's metadata since the
// node asked for that.
var ErrUnanswered = errors.New("csi-controller has not answered")

// Compared returns nil if csi-controller has answered this question of the attached node, and the record is as
// new as the image's metadata. Nothing that a restored etcd brings back answers a new question. The error
// wraps ErrUnanswered, or ErrRecordBehind.
func Compared(v *v1alpha1.CacheVolume, question string) error {
	switch c := v.Status.Comparison; {
	case c == nil || question == "" || c.Question != question || c.Answered != question:
		return fmt.Errorf("volume %s: %w", v.Name, ErrUnanswered)
	case c.Behind != "":
		return behindError(c.Behind)
	}
	return nil
}

// behindError is what csi-controller has answered.
type behindError string

func (e behindError) Error() string { return string(e) }

// Unwrap returns ErrRecordBehind.
func (behindError) Unwrap() error { return ErrRecordBehind }
