package rbd

import (
	"encoding/binary"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/ceph/go-ceph/rados"
	librbd "github.com/ceph/go-ceph/rbd"
)

// What librbd does to an image only with its exclusive lock is done here to an image whose lock a
// node's map has and never lends: through the image's header object, by the calls of the object's
// own class that librbd uses itself, and then the node's kernel is told to look at the header
// again.

// use is who uses an image, and what decides what can be done to it meanwhile.
type use struct {
	size      int64
	id        string
	features  Features
	snapshots []librbd.SnapInfo // the hidden ones included
	holder    string            // the address of the client that has the exclusive lock; empty: nobody
	client    uint64            // its number
	dataPool  int64             // the number of the pool that has its data
}

func (u use) header() string { return headerOf(u.id) }

func (u use) has(snapshot string) bool {
	return slices.ContainsFunc(u.snapshots, func(s librbd.SnapInfo) bool { return s.Name == snapshot })
}

func headerOf(id string) string { return "rbd_header." + id }

// headerTries is how often somebody else may change a header between a look at it and the write.
const headerTries = 8

// useOf reads who uses an image. A client on the blocklist does not: it cannot reach the image, takes note
// of nothing, and librbd takes the lock from it.
func useOf(conn *rados.Conn, io *rados.IOContext, name string) (use, error) {
	at, err := withImage(io, name, readOnly, readUse)
	if err != nil || at.holder == "" {
		return at, err
	}
	entries, err := blocklistEntries(conn)
	if err == nil && listed(entries, at.holder, 0) {
		at.holder, at.client = "", 0
	}
	return at, err
}

func readUse(image *librbd.Image) (use, error) {
	var out use
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
	if out.dataPool, err = image.GetDataPoolID(); err != nil {
		return out, err
	}
	snapshots, err := image.GetSnapshotNames()
	if err != nil {
		return out, err
	}
	_, lockers, err := image.ListLockers()
	if err != nil {
		return out, err
	}
	if len(lockers) > 0 {
		out.holder = lockers[0].Addr
		out.client, err = strconv.ParseUint(strings.TrimPrefix(lockers[0].Client, "client."), 10, 64)
		if err != nil {
			return out, fmt.Errorf("%w: the lock's holder is %q, not a client's number", ErrCeph, lockers[0].Client)
		}
	}
	out.size, out.features, out.snapshots = int64(size), Features(features), snapshots
	return out, nil
}

// headerSize reads the size of the image itself, not of a snapshot, and the version of the object
// that says so.
func headerSize(io *rados.IOContext, header string) (size int64, version uint64, err error) {
	size, _, version, err = headerExtent(io, header)
	return size, version, err
}

// headerExtent is headerSize that returns also the order: objects have 1 << order bytes.
func headerExtent(io *rados.IOContext, header string) (size int64, order byte, version uint64, err error) {
	const noSnapshot = ^uint64(0) - 1 // CEPH_NOSNAP
	answer, err := execRead(io, header, "get_size", binary.LittleEndian.AppendUint64(nil, noSnapshot))
	if err != nil {
		return 0, 0, 0, err
	}
	// get_size answers with the order of the objects, a byte, and the size.
	const orderBytes, sizeBytes = 1, 8
	if len(answer) < orderBytes+sizeBytes {
		return 0, 0, 0, fmt.Errorf("%w: %s answers get_size with %d bytes", ErrCeph, header, len(answer))
	}
	version, err = io.GetLastVersion()
	return int64(binary.LittleEndian.Uint64(answer[orderBytes:])), answer[0], version, err
}

func setHeaderSize(io *rados.IOContext, header string, version uint64, sizeBytes int64) error {
	op := rados.CreateWriteOp()
	defer op.Release()
	op.AssertVersion(version)
	op.Exec("rbd", "set_size", binary.LittleEndian.AppendUint64(nil, uint64(sizeBytes)))
	return op.Operate(io, header, rados.OperationNoFlag)
}

// addHeaderSnapshot writes a snapshot of the image as it is now; an error with EEXIST if there is
// one of that name, ESTALE if another snapshot has a higher number.
func addHeaderSnapshot(io *rados.IOContext, header, name string, id uint64) error {
	return execHeader(io, header, "snapshot_add", binary.LittleEndian.AppendUint64(appendText(nil, name), id))
}

// removeHeaderSnapshot takes a snapshot out of the header; an error with EBUSY if it has clones.
func removeHeaderSnapshot(io *rados.IOContext, header string, id uint64) error {
	return execHeader(io, header, "snapshot_remove", binary.LittleEndian.AppendUint64(nil, id))
}

// hideHeaderSnapshot takes a snapshot out of sight, into the namespace that Ceph calls the trash, where it stays for its clones and gets
// no more; an error with EEXIST if it is there.
func hideHeaderSnapshot(io *rados.IOContext, header string, id uint64) error {
	return execHeader(io, header, "snapshot_trash_add", binary.LittleEndian.AppendUint64(nil, id))
}

// hasClones reports whether a snapshot has clones of format 2. One with clones of format 1 is protected, and cannot be hidden.
func hasClones(io *rados.IOContext, header string, id uint64) (bool, error) {
	_, err := execRead(io, header, "children_list", binary.LittleEndian.AppendUint64(nil, id))
	if errno(err) == syscall.ENOENT { // Ceph keeps no empty list
		return false, nil
	}
	return err == nil, err
}

func execHeader(io *rados.IOContext, header, method string, in []byte) error {
	op := rados.CreateWriteOp()
	defer op.Release()
	op.AssertExists()
	op.Exec("rbd", method, in)
	return op.Operate(io, header, rados.OperationNoFlag)
}

// notifyTime is how long watchers have to look at the header again. One that is dead must not hold
// up the call.
const notifyTime = 10 * time.Second

// notifyWatchers has everybody who has the image open read its header again, and returns the
// numbers of the clients that have. A notification without content means that since the first RBD.
// That one does not answer is no error.
func notifyWatchers(io *rados.IOContext, header string) (done []uint64, err error) {
	acks, _, err := io.NotifyWithTimeout(header, nil, notifyTime)
	for _, ack := range acks {
		done = append(done, uint64(ack.NotifierID))
	}
	if errors.Is(translate(err), ErrUnavailable) {
		return done, nil
	}
	return done, err
}
