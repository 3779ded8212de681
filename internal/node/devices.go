package node

import (
	"context"
	"fmt"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"github.com/escache/escache-csi/internal/node/blockdev"
)

// KernelDevices asks the kernel about block devices and mounted filesystems. It reads no device.
type KernelDevices struct {
	mu sync.Mutex
	// pending holds the paths whose statfs has not returned, and when it began.
	pending map[string]time.Time
}

// NewKernelDevices returns a KernelDevices.
func NewKernelDevices() *KernelDevices {
	return &KernelDevices{pending: map[string]time.Time{}}
}

// Number returns the number of a device node.
func (*KernelDevices) Number(path string) (blockdev.Number, error) { return blockdev.NumberOf(path) }

// Bytes returns a device's size.
func (*KernelDevices) Bytes(n blockdev.Number) (int64, error) { return blockdev.Bytes(n) }

// Dead reports whether a mounted device is gone.
func (*KernelDevices) Dead(n blockdev.Number) bool { return blockdev.Dead(n) }

// usageTime bounds one statfs.
const usageTime = 5 * time.Second

// Usage returns the usage of the filesystem mounted at path. If it does not answer within
// usageTime, Usage returns ErrUnavailable. A filesystem that hangs occupies one goroutine, not one
// per call.
func (k *KernelDevices) Usage(ctx context.Context, path string) (Usage, error) {
	k.mu.Lock()
	if since, ok := k.pending[path]; ok {
		k.mu.Unlock()
		return Usage{}, fmt.Errorf("%w: the filesystem at %s has not answered for %s", ErrUnavailable, path,
			time.Since(since).Round(time.Second))
	}
	k.pending[path] = time.Now()
	k.mu.Unlock()
	type answer struct {
		u   Usage
		err error
	}
	answers := make(chan answer, 1)
	go func() {
		u, err := statfs(path)
		k.mu.Lock()
		delete(k.pending, path)
		k.mu.Unlock()
		answers <- answer{u, err}
	}()
	timer := time.NewTimer(usageTime)
	defer timer.Stop()
	select {
	case a := <-answers:
		return a.u, a.err
	case <-timer.C:
	case <-ctx.Done():
	}
	return Usage{}, fmt.Errorf("%w: the filesystem at %s does not answer", ErrUnavailable, path)
}

func statfs(path string) (Usage, error) {
	var st unix.Statfs_t
	if err := unix.Statfs(path, &st); err != nil {
		return Usage{}, fmt.Errorf("%w: statfs %s: %w", ErrUnavailable, path, err)
	}
	block := st.Frsize
	return Usage{
		TotalBytes: int64(st.Blocks) * block, FreeBytes: int64(st.Bfree) * block, AvailableBytes: int64(st.Bavail) * block,
		TotalInodes: int64(st.Files), FreeInodes: int64(st.Ffree),
	}, nil
}
