package node

import (
	"context"
	"fmt"
	"os"
	"strings"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"github.com/escache/escache-csi/internal/node/mounts"
)

// KernelDevices asks the kernel about block devices. None of it reads a device.
type KernelDevices struct {
	mu      sync.Mutex
	pending map[string]time.Time
	sysRoot string
}

// NewKernelDevices returns a KernelDevices.
func NewKernelDevices() *KernelDevices {
	return &KernelDevices{pending: map[string]time.Time{}, sysRoot: "/sys/dev/block/"}
}

// Number of a device node.
func (k *KernelDevices) Number(path string) (mounts.Number, error) { return mounts.DeviceNumber(path) }

// Bytes is a device's size.
func (k *KernelDevices) Bytes(n mounts.Number) (int64, error) { return mounts.DeviceBytes(n) }

// Dead reports whether a mounted device is gone. A device-mapper device that was torn down under a mount stays, without a table
// or with one that fails everything; it has size zero or is not one of ours any more.
func (k *KernelDevices) Dead(n mounts.Number) bool {
	if n.Major == 0 {
		return false // not a block device: tmpfs, overlay and the like
	}
	if _, err := os.Stat(k.sysRoot + n.String()); os.IsNotExist(err) {
		return true
	}
	name, err := os.ReadFile(k.sysRoot + n.String() + "/dm/name")
	if err != nil {
		return false
	}
	size, err := os.ReadFile(k.sysRoot + n.String() + "/size")
	return err == nil && strings.HasPrefix(string(name), "escache-") && strings.TrimSpace(string(size)) == "0"
}

// usageTime bounds pending a filesystem.
const usageTime = 5 * time.Second

// Usage of the filesystem mounted at path. A filesystem that does not answer keeps one goroutine, not one for each call.
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
