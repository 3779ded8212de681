package disk

import (
	"crypto/rand"
	weak "math/rand/v2"
	"os"

	"golang.org/x/sys/unix"

	"github.com/escache/escache-csi/internal/benchmark"
	"github.com/escache/escache-csi/internal/benchmark/device"
)

// fill fills a buffer with bytes that no layer below can compress or skip: it has no zeros.
func fill(p []byte) {
	_, _ = rand.Read(p) // it never fails
	for i := range p {
		p[i] |= 1
	}
}

// content returns a buffer for direct I/O that is filled.
func content(size int) ([]byte, error) {
	p, err := device.Buffer(size)
	if err == nil {
		fill(p)
	}
	return p, err
}

// number marks each block of a buffer, so that no two writes are the same. To make up all of it each
// time would cost more than to write it. It makes no zeros.
func number(p []byte, n int64) {
	for block := 0; block < len(p); block += benchmark.BlockBytes {
		for i := range 5 {
			p[block+i] = byte(n>>(7*i)) | 0x80
		}
		n++
	}
}

// SyncWrites writes blocks of 4 KiB to the first span bytes of a file or device. They are in an
// order that no layer below can guess or merge. The file must be open with O_DIRECT and O_DSYNC.
func SyncWrites(file *os.File, span int64, workers int) Load {
	// A stride without a common divisor with the number of blocks visits each of them once a round.
	const stride = 7919
	blocks := span / benchmark.BlockBytes
	return Load{Workers: workers, OperationBytes: benchmark.BlockBytes, Start: func(int) (func(int64) error, error) {
		p, err := content(benchmark.BlockBytes)
		return func(n int64) error {
			number(p, n)
			_, err := file.WriteAt(p, n*stride%blocks*benchmark.BlockBytes)
			return err
		}, err
	}}
}

// Appends makes files longer by 4 KiB at a time, each followed by fdatasync. Each worker has a file.
func Appends(files []*os.File) Load {
	return FileWrites(files, func(n int64) int64 { return n })
}

// FileWrites writes 4 KiB to files, each followed by fdatasync. Each worker has a file, and place says
// which of its blocks a write goes to.
func FileWrites(files []*os.File, place func(n int64) (block int64)) Load {
	return Load{Workers: len(files), OperationBytes: benchmark.BlockBytes, Start: func(worker int) (func(int64) error, error) {
		p, own, file := make([]byte, benchmark.BlockBytes), int64(0), files[worker]
		fill(p)
		return func(int64) error {
			number(p, own)
			if _, err := file.WriteAt(p, place(own)*benchmark.BlockBytes); err != nil {
				return err
			}
			own++
			return os.NewSyscallError("fdatasync "+file.Name(), unix.Fdatasync(int(file.Fd())))
		}, nil
	}}
}

// RandomReads reads blocks of 4 KiB of the first span bytes of a file that is open with O_DIRECT.
func RandomReads(file *os.File, span int64, workers int) Load {
	blocks := span / benchmark.BlockBytes
	return Load{Workers: workers, OperationBytes: benchmark.BlockBytes, Start: func(int) (func(int64) error, error) {
		p, err := device.Buffer(benchmark.BlockBytes)
		return func(int64) error {
			_, err := file.ReadAt(p, weak.Int64N(blocks)*benchmark.BlockBytes) //nolint:gosec // it only has to be hard for a cache to guess
			return err
		}, err
	}}
}

// SequentialWrites writes the first span bytes of a file or device once, size bytes at a time, and
// makes them stable at the end. The file must be open with O_DIRECT.
func SequentialWrites(file *os.File, span int64, size, workers int) Load {
	return Load{
		Workers: workers, OperationBytes: int64(size), Operations: span / int64(size),
		Start: func(int) (func(int64) error, error) {
			p, err := content(size)
			return func(n int64) error {
				number(p, n*int64(size)/benchmark.BlockBytes)
				_, err := file.WriteAt(p, n*int64(size))
				return err
			}, err
		},
		Finish: file.Sync,
	}
}
