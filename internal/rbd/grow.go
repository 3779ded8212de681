package rbd

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"syscall"
	"time"

	"github.com/ceph/go-ceph/rados"
	librbd "github.com/ceph/go-ceph/rbd"
)

// GrowImage makes an image at least that large, and returns the size it has then. A larger image stays as it is.
//
// librbd changes an image's size only with its exclusive lock, and a node's map never lends it. So an image that is mapped grows
// through its header object, and the node's kernel is told to look at it again. That needs an image without object-map: the kernel
// cannot grow one that it has loaded, and would take new objects for absent. Such an image is ErrBusy until it is unmapped.
func (c *Cluster) GrowImage(ctx context.Context, ref ImageRef, sizeBytes int64) (int64, error) {
	if sizeBytes <= 0 || sizeBytes%sectorSize != 0 {
		return 0, fmt.Errorf("%s: size %d: must be a positive multiple of %d bytes: %w", ref, sizeBytes, sectorSize, ErrInvalid)
	}
	return call(ctx, c, "image_resize", ref.String(), func(conn *rados.Conn) (int64, error) {
		return withPool(conn, ref.Pool, func(io *rados.IOContext) (int64, error) {
			at, err := withImage(io, ref.Name, readOnly, readGrowth)
			switch {
			case err != nil || at.size >= sizeBytes:
				return at.size, err
			case at.holder == "":
				return withImage(io, ref.Name, readWrite, func(image *librbd.Image) (int64, error) {
					return sizeBytes, image.Resize(uint64(sizeBytes))
				})
			case at.features&ObjectMap != 0:
				return at.size, fmt.Errorf("%w: %s has it mapped, and an image with object-map cannot grow then; "+
					"detach the volume to expand it",
					ErrBusy, at.holder)
			}
			return growHeader(io, "rbd_header."+at.id, sizeBytes)
		})
	})
}

// growth is what decides how an image grows.
type growth struct {
	size     int64
	id       string
	features Features
	holder   string // the client that has the exclusive lock; empty: nobody
}

func readGrowth(image *librbd.Image) (growth, error) {
	var out growth
	size, err := image.GetSize()
	if err != nil {
		return out, err
	}
	features, err := image.GetFeatures()
	if err != nil {
		return out, err
	}
	if out.id, err = image.GetId(); err != nil {
		return out, err
	}
	_, lockers, err := image.ListLockers()
	if err != nil {
		return out, err
	}
	if len(lockers) > 0 {
		out.holder = lockers[0].Addr
	}
	out.size, out.features = int64(size), Features(features)
	return out, nil
}

const (
	// growTries is how often somebody else may change the header between a look at it and the write.
	growTries = 8
	// notifyTime is how long watchers have to look at the header again. One that is dead must not hold up the call.
	notifyTime = 10 * time.Second
)

// growHeader sets the size in an image's header object as librbd does under the lock: by the object's own class. The write counts
// only if the object is still what was read, so it never shrinks an image that somebody else has made larger.
func growHeader(io *rados.IOContext, header string, sizeBytes int64) (int64, error) {
	for range growTries {
		has, version, err := headerSize(io, header)
		if err != nil {
			return 0, err
		}
		if has >= sizeBytes {
			return has, notifyWatchers(io, header)
		}
		err = setHeaderSize(io, header, version, sizeBytes)
		if err == nil {
			return sizeBytes, notifyWatchers(io, header)
		}
		if n := errno(err); n != syscall.ERANGE && n != syscall.EOVERFLOW { // older, newer than asserted
			return has, err
		}
	}
	return 0, fmt.Errorf("%w: its header changes all the time", ErrBusy)
}

// headerSize reads the size of the image itself, not of a snapshot, and the version of the object that says so.
func headerSize(io *rados.IOContext, header string) (size int64, version uint64, err error) {
	const noSnapshot = ^uint64(0) - 1 // CEPH_NOSNAP
	op := rados.CreateReadOp()
	defer op.Release()
	step := op.Exec("rbd", "get_size", binary.LittleEndian.AppendUint64(nil, noSnapshot))
	if err := op.Operate(io, header, rados.OperationNoFlag); err != nil {
		return 0, 0, err
	}
	answer, err := step.Bytes()
	if err != nil {
		return 0, 0, err
	}
	// get_size answers with the order of the objects, a byte, and the size.
	const orderBytes, sizeBytes = 1, 8
	if len(answer) < orderBytes+sizeBytes {
		return 0, 0, fmt.Errorf("%w: %s answers get_size with %d bytes", ErrCeph, header, len(answer))
	}
	version, err = io.GetLastVersion()
	return int64(binary.LittleEndian.Uint64(answer[orderBytes:])), version, err
}

func setHeaderSize(io *rados.IOContext, header string, version uint64, sizeBytes int64) error {
	op := rados.CreateWriteOp()
	defer op.Release()
	op.AssertVersion(version)
	op.Exec("rbd", "set_size", binary.LittleEndian.AppendUint64(nil, uint64(sizeBytes)))
	return op.Operate(io, header, rados.OperationNoFlag)
}

// notifyWatchers has everybody who has the image open read its header again. A notification without content means that since the
// first RBD. One that does not answer is not this call's failure: escached waits for the new size, and says so if it does not come.
func notifyWatchers(io *rados.IOContext, header string) error {
	_, _, err := io.NotifyWithTimeout(header, nil, notifyTime)
	if errors.Is(translate(err), ErrUnavailable) {
		return nil
	}
	return err
}
