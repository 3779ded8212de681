// Package blockfile opens the two devices below a cache: the disk with the log, and the image. Nothing is kept in the page
// cache: it would need memory when the kernel has none left, and the log is stable only on the disk.
package blockfile

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"strconv"
	"strings"
	"syscall"

	"golang.org/x/sys/unix"
)

// zeroChunk is how much is written at a time where the kernel cannot zero a range by itself.
const zeroChunk = 1 << 20

// File is a block device or a regular file. Offsets, lengths and memory are aligned to blocks of 4 KiB.
type File struct {
	file *os.File
	// piece is the longest range in bytes that the kernel zeroes with one request; 0 if that is not known. krbd's is an
	// object of the image, or a set of objects if the image is striped.
	piece int64
}

// OpenLog opens the disk of a log. A write to it returns when it is stable on every copy.
func OpenLog(path string) (*File, error) { return open(path, unix.O_DIRECT|unix.O_DSYNC) }

// OpenImage opens an image. Its device must have no volatile cache, as krbd's has none: a completed write is stable.
func OpenImage(path string) (*File, error) { return open(path, unix.O_DIRECT) }

func open(path string, flags int) (*File, error) {
	info, err := os.Stat(path)
	if err != nil {
		return nil, fmt.Errorf("look at %s: %w", path, err)
	}
	if info.Mode()&fs.ModeDevice != 0 {
		flags |= unix.O_EXCL // nobody else may have mounted it, or use it for another device
	}
	file, err := os.OpenFile(path, os.O_RDWR|flags, 0)
	if errors.Is(err, unix.EBUSY) {
		err = fmt.Errorf("%w: something else uses the device", err)
	}
	if err != nil {
		return nil, fmt.Errorf("open %s: %w", path, err)
	}
	return &File{file: file, piece: longestZero(info)}, nil
}

// longestZero returns a block device's limit for one request that zeroes, or 0.
func longestZero(info fs.FileInfo) int64 {
	stat, ok := info.Sys().(*syscall.Stat_t)
	if !ok || info.Mode()&fs.ModeDevice == 0 {
		return 0
	}
	path := fmt.Sprintf("/sys/dev/block/%d:%d/queue/write_zeroes_max_bytes", unix.Major(stat.Rdev), unix.Minor(stat.Rdev))
	text, err := os.ReadFile(path)
	if err != nil {
		return 0
	}
	n, err := strconv.ParseInt(strings.TrimSpace(string(text)), 10, 64)
	if err != nil {
		return 0
	}
	return n
}

// Close closes the file.
func (f *File) Close() error { return f.file.Close() }

// Bytes is the size now.
func (f *File) Bytes() (int64, error) {
	n, err := f.file.Seek(0, io.SeekEnd)
	if err != nil {
		return 0, fmt.Errorf("ask for the size of %s: %w", f.file.Name(), err)
	}
	return n, nil
}

// ReadAt reads.
func (f *File) ReadAt(p []byte, at int64) (int, error) { return f.file.ReadAt(p, at) }

// WriteAt writes.
func (f *File) WriteAt(p []byte, at int64) (int, error) { return f.file.WriteAt(p, at) }

// WriteStable is WriteAt, of a log.
func (f *File) WriteStable(p []byte, at int64) error {
	_, err := f.file.WriteAt(p, at)
	return err
}

// Zero makes a range read as zeros. A mere discard would not do: it may leave old data, as RBD's does of parts of objects.
func (f *File) Zero(at, bytes int64, trim bool) error {
	if trim {
		if n := toBoundary(at, bytes, f.piece); n > 0 {
			if err := f.zero(at, n, trim); err != nil {
				return err
			}
			at, bytes = at+n, bytes-n
		}
	}
	return f.zero(at, bytes, trim)
}

// toBoundary returns how many bytes of a range are trimmed first, by themselves: those before the first multiple of a
// piece. The kernel cuts a range into pieces from its start on, and Ceph gives back objects that are trimmed with one request.
// Pieces that begin within an object would each trim parts of two.
func toBoundary(at, bytes, piece int64) int64 {
	if piece <= 0 || at%piece == 0 {
		return 0
	}
	if n := piece - at%piece; n < bytes {
		return n
	}
	return 0
}

func (f *File) zero(at, bytes int64, trim bool) error {
	mode := uint32(unix.FALLOC_FL_ZERO_RANGE | unix.FALLOC_FL_KEEP_SIZE)
	if trim {
		mode = unix.FALLOC_FL_PUNCH_HOLE | unix.FALLOC_FL_KEEP_SIZE
	}
	for {
		err := unix.Fallocate(int(f.file.Fd()), mode, at, bytes)
		switch {
		case errors.Is(err, unix.EINTR):
		case errors.Is(err, unix.EOPNOTSUPP):
			return f.writeZeros(at, bytes)
		case err != nil:
			return fmt.Errorf("zero %d bytes of %s at %d: %w", bytes, f.file.Name(), at, err)
		default:
			return nil
		}
	}
}

func (f *File) writeZeros(at, bytes int64) error {
	zeros, err := unix.Mmap(-1, 0, int(min(bytes, zeroChunk)), unix.PROT_READ, unix.MAP_PRIVATE|unix.MAP_ANON)
	if err != nil {
		return fmt.Errorf("make zeros: %w", err)
	}
	defer func() { _ = unix.Munmap(zeros) }()
	for bytes > 0 {
		n, err := f.file.WriteAt(zeros[:min(bytes, int64(len(zeros)))], at)
		if err != nil {
			return fmt.Errorf("write zeros: %w", err)
		}
		at, bytes = at+int64(n), bytes-int64(n)
	}
	return nil
}
