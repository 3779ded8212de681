package rbd

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/ceph/go-ceph/rados"
)

// Anybody can move an image to the trash (`rbd trash mv`), also that of a volume whose only data it has, with dirty
// caches beside it. So only what the driver has moved there is purged. The image's metadata say so, for the
// process that moves it may not be the one that empties the trash.

// moveTime is how much later than the image's metadata the trash may say that the image was moved there. Both say
// when the move began, so they are the same but for what a slow Ceph and a change of the clock add.
const moveTime = 10 * time.Minute

// movedLast reports whether it was the driver that moved an image to the trash last. An image that was taken out of
// the trash, and that somebody else moved there again, keeps its metadata, and has a later time in the trash. The time
// there is an earlier one if the driver has finished a move that somebody had begun.
func movedLast(noted, inTrash time.Time) bool { return inTrash.Sub(noted) < moveTime }

// noteMove notes in the image's metadata that the driver is about to move it to the trash, and reports whether it could.
// A full pool that takes no note gets its space back all the same, from this process.
func noteMove(io *rados.IOContext, id string) (noted bool, err error) {
	change := metadataChange{set: map[string]string{markTrashed: time.Now().UTC().Format(time.RFC3339Nano)}}
	err = change.write(io, id, (*rados.WriteOp).AssertExists)
	if errors.Is(translate(err), ErrFull) {
		return false, nil
	}
	return err == nil, err
}

// mayErase returns an error for an image in the trash that is another Kubernetes cluster's, was released, or was not
// moved there by the driver. A purge that was interrupted has left no header, and nothing to lose.
func (c *Cluster) mayErase(io *rados.IOContext, e TrashedImage) error {
	has, _, err := readMark(io, e.ID)
	if errors.Is(err, rados.ErrNotFound) {
		return nil
	}
	if err != nil {
		return err
	}
	if err := c.foreign(has); err != nil {
		return err
	}
	if c.trash.movedUnnoted(e) {
		return nil
	}
	if at, err := time.Parse(time.RFC3339Nano, has.Trashed); err == nil && movedLast(at, e.Deleted) {
		return nil
	}
	return fmt.Errorf("%w, and may be a volume's only image: `rbd trash restore --pool %s %s` takes it out, and `rbd trash rm` "+
		"with the same arguments removes it", ErrNotMoved, e.Pool, e.ID)
}

// LeftInTrash returns the images in a pool's trash whose names begin with prefix, and that nobody purges because
// somebody else than a driver has moved them there. It asks Ceph about each image with such a name. Errors:
// ErrPoolNotFound.
func (c *Cluster) LeftInTrash(ctx context.Context, pool, prefix string) ([]TrashedImage, error) {
	return call(ctx, c, "trash_left", "pool "+pool, func(conn *rados.Conn) ([]TrashedImage, error) {
		return withPool(conn, pool, func(io *rados.IOContext) (left []TrashedImage, err error) {
			entries, err := listTrash(io)
			if err != nil {
				return nil, err
			}
			for _, e := range entries {
				if !strings.HasPrefix(e.name, prefix) {
					continue
				}
				image := TrashedImage{Pool: pool, ID: e.id, Name: e.name, Deleted: e.deleted}
				switch err := c.mayErase(io, image); {
				case errors.Is(err, ErrNotMoved):
					left = append(left, image)
				case err != nil && !errors.Is(err, ErrForeign) && !errors.Is(err, ErrReleased):
					return nil, err
				}
			}
			return left, nil
		})
	})
}
