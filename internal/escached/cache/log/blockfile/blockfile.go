// Package blockfile opens the two devices below a cache: the disk with the log, and the image. Nothing is kept in the page
// cache: it would need memory when the kernel has none left, and the log is stable only on the disk.
package blockfile

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"

	"golang.org/x/sys/unix"
)

// zeroChunk is how much is written at a time where the kernel cannot zero a range by itself.
const zeroChunk = 1 << 20

// File is a block device or a regular file. Offsets, lengths and memory are aligned to blocks of 4 KiB.
type File struct{ file *os.File }

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
	return &File{file}, nil
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
