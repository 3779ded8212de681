package rbd

// #cgo LDFLAGS: -lrados
// #include <rados/librados.h>
import "C"

import (
	"syscall"

	"github.com/ceph/go-ceph/rados"
)

// go-ceph has no call for the numbers of snapshots, which Ceph's monitors give.

// newSnapshotID takes the next number of a snapshot in the pool, which must be the one that has the image's data.
func newSnapshotID(io *rados.IOContext) (uint64, error) {
	var id C.rados_snap_t
	err := radosResult(C.rados_ioctx_selfmanaged_snap_create(C.rados_ioctx_t(io.Pointer()), &id))
	return uint64(id), err
}

// dropSnapshotID gives a number back: the OSDs forget what they have kept for it. That the pool never gave it is no error, as with
// librbd.
func dropSnapshotID(io *rados.IOContext, id uint64) error {
	err := radosResult(C.rados_ioctx_selfmanaged_snap_remove(C.rados_ioctx_t(io.Pointer()), C.rados_snap_t(id)))
	if errno(err) == syscall.ENOENT {
		return nil
	}
	return err
}

// radosResult is what a function of librados returns: 0 or an error's number, negative.
func radosResult(code C.int) error {
	if code == 0 {
		return nil
	}
	return radosError(code)
}

type radosError int

func (e radosError) Error() string  { return syscall.Errno(-e).Error() }
func (e radosError) ErrorCode() int { return int(e) }
