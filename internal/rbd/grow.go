package rbd

import (
	"context"
	"fmt"
	"syscall"

	"github.com/ceph/go-ceph/rados"
	librbd "github.com/ceph/go-ceph/rbd"
)

// GrowImage makes an image at least sizeBytes large, and returns the size it then has. A larger
// image is not changed, and who has it open is told to look at its size again.
//
// librbd changes an image's size only with its exclusive lock, and a node's map never lends it. So
// an image that is mapped grows through its header object, and the node's kernel is told to look at
// it again. That needs an image without object-map: the kernel cannot grow one that it has loaded,
// and would take new objects for absent. Such an image is ErrBusy until it is unmapped.
func (c *Cluster) GrowImage(ctx context.Context, ref ImageRef, sizeBytes int64) (int64, error) {
	if sizeBytes <= 0 || sizeBytes%sectorSize != 0 {
		return 0, fmt.Errorf("%s: size %d: must be a positive multiple of %d bytes: %w", ref, sizeBytes, sectorSize, ErrInvalid)
	}
	return callAlone(ctx, c, "image_resize", ref.String(), ref, func(conn *rados.Conn) (int64, error) {
		return withPool(conn, ref.Pool, func(io *rados.IOContext) (int64, error) {
			at, err := useOf(conn, io, ref.Name)
			if err == nil {
				err = c.refuseForeign(io, at.id)
			}
			switch {
			case err != nil:
				return at.size, err
			case at.size >= sizeBytes: // an interrupted call may have written that and told nobody
				_, err = notifyWatchers(io, at.header())
				return at.size, err
			case at.holder == "":
				return growFree(io, ref.Name, sizeBytes)
			case at.features&ObjectMap != 0:
				return at.size, fmt.Errorf("%w: %s has it mapped, and an image with object-map cannot grow then; "+
					"detach the volume to expand it",
					ErrBusy, at.holder)
			}
			return growHeader(io, at.header(), sizeBytes)
		})
	})
}

// growFree grows an image whose lock nobody has. librbd would also shrink it, so what counts is its size directly before.
func growFree(io *rados.IOContext, name string, sizeBytes int64) (int64, error) {
	return withImage(io, name, readWrite, func(image *librbd.Image) (int64, error) {
		has, err := image.GetSize()
		if err != nil || int64(has) >= sizeBytes {
			return int64(has), err
		}
		return sizeBytes, image.Resize(uint64(sizeBytes))
	})
}

// growHeader sets the size in an image's header object as librbd does under the lock: by the
// object's own class. The write counts only if the object is still what was read, so it never
// shrinks an image that somebody else has made larger.
func growHeader(io *rados.IOContext, header string, sizeBytes int64) (int64, error) {
	for range headerTries {
		has, version, err := headerSize(io, header)
		if err != nil {
			return 0, err
		}
		if has >= sizeBytes {
			_, err = notifyWatchers(io, header)
			return has, err
		}
		err = setHeaderSize(io, header, version, sizeBytes)
		if err == nil {
			_, err = notifyWatchers(io, header)
			return sizeBytes, err
		}
		if n := errno(err); n != syscall.ERANGE && n != syscall.EOVERFLOW { // older, newer than asserted
			return has, err
		}
	}
	return 0, fmt.Errorf("%w: its header changes all the time", ErrBusy)
}
