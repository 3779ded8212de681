package nodegroup

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/escache/escache-csi/api/v1alpha1"
	"github.com/escache/escache-csi/internal/controller/volumes"
)

// Images reads what images say of their volumes.
type Images interface {
	// Noted returns an image's note. The error wraps volumes.ErrNotFound if there is no such image.
	Noted(ctx context.Context, image volumes.ImageRef) (volumes.Note, error)
	// Find returns what the images of this name say of whose they are, in one Ceph cluster, or in all if clusterID is
	// empty. There may be none.
	Find(ctx context.Context, clusterID, pool, image string) ([]volumes.Found, error)
}

// errNeeded means that a dirty replica may be needed after all.
var errNeeded = errors.New("what it has may be needed")

// reader reads the metadata of images for one clean-up. A Ceph cluster that does not answer is asked once: it holds up the
// clean-up for as long as a host may, not for each replica.
type reader struct {
	images   Images
	patience time.Duration
	silent   map[string]error // by cluster; of "" are calls to all of them
}

// needless returns an error unless nobody needs what is dirty in a stale replica. Within one attachment its epoch does not
// tell an old copy from one that was made on that host again, and an old etcd may have brought the entry back. The image
// tells. v is the volume's record, or nil.
func (r *reader) needless(ctx context.Context, stale v1alpha1.StaleReplica, v *v1alpha1.CacheVolume) error {
	if v != nil && v.Spec.Pool == stale.Pool && v.Spec.Image == stale.Image {
		image := volumes.ImageOf(v)
		note, err := ask(ctx, r, image.ClusterID, func(ctx context.Context) (volumes.Note, error) { return r.images.Noted(ctx, image) })
		switch {
		case errors.Is(err, volumes.ErrNotFound) && !v.DeletionTimestamp.IsZero():
			return nil
		case err != nil:
			return fmt.Errorf("%w: read the metadata of image %s: %w", errNeeded, image, err)
		}
		if err := note.NotAhead(v); err != nil {
			return fmt.Errorf("%w: %w", errNeeded, err)
		}
		return nil
	}
	images, err := ask(ctx, r, stale.ClusterID, func(ctx context.Context) ([]volumes.Found, error) {
		return r.images.Find(ctx, stale.ClusterID, stale.Pool, stale.Image)
	})
	if err != nil {
		return fmt.Errorf("%w: %w", errNeeded, err)
	}
	for _, image := range images {
		if err := notOf(image, stale.Node); err != nil {
			return fmt.Errorf("%w: there is no record of volume %s, and image %s is there: %w",
				errNeeded, stale.Volume, image.ImageRef, err)
		}
	}
	return nil
}

// notOf returns an error unless an image without a record says that the node's replica does not count.
func notOf(image volumes.Found, node string) error {
	note := image.Note
	switch {
	case image.Released, image.Deleted != "":
		return nil // all of it was in Ceph
	case image.Unreadable != nil:
		return image.Unreadable
	case note.Later:
		return errors.New("its metadata are of a later version of the driver: upgrade csi-controller")
	case note.Volume == "" || note.Spec.Pool != image.Pool || note.Spec.Image != image.Image: // of what it is a copy of
		return errors.New("its metadata do not say which hosts have its copies")
	case slices.Contains(note.Spec.Replicas, node):
		return fmt.Errorf("by its metadata this host has a copy of volume %s; `kubectl escache adopt --all` makes the record again",
			note.Volume)
	}
	return nil
}

// passing reports whether waiting may help against this failure.
func passing(err error) bool {
	return errors.Is(err, volumes.ErrUnavailable) || errors.Is(err, context.DeadlineExceeded) || errors.Is(err, context.Canceled)
}

// ask calls a Ceph cluster, unless it has not answered before.
func ask[T any](ctx context.Context, r *reader, cluster string, call func(context.Context) (T, error)) (T, error) {
	if err := r.silent[cluster]; err != nil {
		var none T
		return none, err
	}
	ctx, cancel := context.WithTimeout(ctx, r.patience)
	defer cancel()
	answer, err := call(ctx)
	if passing(err) {
		r.silent[cluster] = err
	}
	return answer, err
}
