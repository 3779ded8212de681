//go:build e2e

package host

import (
	"context"
	"fmt"
	"testing"
	"time"

	"github.com/escache/escache-csi/api/escache"
	"github.com/escache/escache-csi/internal/escached/cache/writecache"
	"github.com/escache/escache-csi/test/labtest"
)

const memoryCache = 1 << 30

// memoryIsCounted compares what escached counts for a connected cache with what the kernel takes for it.
// Kernels differ by what they keep for each block; escached may count a third too much, and nothing too
// little.
func memoryIsCounted(t *testing.T, lab *labtest.Lab) {
	n1 := lab.Hosts[0]
	v := lab.NewVolume(t, labtest.VolumeSpec{CacheBytes: memoryCache})
	v.Lay(t)
	before, counted := n1.Memory(t), nodeOf(t, n1)
	v.Connect(t, n1)
	took, counts := n1.Memory(t).Writecache-before.Writecache, nodeOf(t, n1)
	added := counts.CacheMemoryBytes - counted.CacheMemoryBytes
	t.Logf("a cache of %d bytes: the kernel takes %d bytes (%.2f %%), escached counts %d", v.CacheBytes, took,
		100*float64(took)/float64(v.CacheBytes), added)
	if took <= 0 || added < took || added > took+took/3 {
		t.Errorf("the kernel takes %d bytes for a cache of %d, escached counts %d", took, v.CacheBytes, added)
	}
	if grown := counts.ConnectedBytes - counted.ConnectedBytes; grown != v.CacheBytes {
		t.Errorf("a cache of %d bytes raised connectedBytes by %d", v.CacheBytes, grown)
	}
	v.Stop(t, n1)
	if left := n1.Memory(t).Writecache - before.Writecache; left != 0 {
		t.Errorf("after stop the kernel still has %d bytes", left)
	}
	v.Remove(t, nil)
}

// nothingWithoutMemory takes memory away until a cache does not fit any more.
func nothingWithoutMemory(t *testing.T, lab *labtest.Lab) {
	n1 := lab.Hosts[0]
	v, other := lab.NewVolume(t, labtest.VolumeSpec{CacheBytes: memoryCache}), lab.NewVolume(t, labtest.VolumeSpec{})
	v.Lay(t)
	other.Lay(t)
	device := other.Connect(t, n1)
	need := writecache.New(nil, nil, nil).Memory(v.CacheBytes)
	takeMemory(t, n1, need/2)
	if free := nodeOf(t, n1).CacheMemoryFreeBytes; free >= need {
		t.Fatalf("%d bytes are free, and the cache takes %d", free, need)
	}

	epoch := v.NextEpoch(t, n1)
	refused(t, v, n1, epoch, escache.CodeNoRoom)
	if status := v.Status(t, n1); status.State != escache.StateStandby || status.Role != escache.RoleSecondary || status.Epoch != 0 {
		t.Errorf("the refused call changed something: %+v", status)
	}
	if watchers, err := v.Watchers(t.Context()); err != nil || len(watchers) != 0 {
		t.Errorf("watchers %v, %v; the image was mapped", watchers, err)
	}
	again, err := n1.API.DevConnect(t.Context(), other.ConnectRequest(other.Epoch()))
	if err != nil || *again != device {
		t.Errorf("a volume that is connected: %+v, %v; it was %+v", again, err, device)
	}

	giveMemoryBack(t, n1)
	v.Connect(t, n1)
	v.Remove(t, n1)
	other.Remove(t, n1)
}

// memoryHog is where the test's file in memory is.
const memoryHog = "/run/memory-hog"

// takeMemory leaves this many bytes for caches.
func takeMemory(t *testing.T, h *labtest.Host, leave int64) {
	t.Helper()
	take := nodeOf(t, h).CacheMemoryFreeBytes - leave
	if take <= 0 {
		t.Fatalf("only %d bytes are free for caches", take+leave)
	}
	t.Cleanup(func() { giveMemoryBack(t, h) })
	h.Shell(t, fmt.Sprintf("mkdir -p %[1]s && mount -t tmpfs -o size=%[2]dM hog %[1]s && dd if=/dev/zero of=%[1]s/file bs=1M count=%[2]d 2>/dev/null",
		memoryHog, take>>20))
}

func giveMemoryBack(t *testing.T, h *labtest.Host) {
	t.Helper()
	putRight(t, h, fmt.Sprintf("! mountpoint -q %[1]s || umount %[1]s; rm -rf %[1]s", memoryHog))
}

// putRight runs a script on a host, also when the test has ended.
func putRight(t *testing.T, h *labtest.Host, script string) {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.WithoutCancel(t.Context()), 2*time.Minute)
	defer cancel()
	if _, err := h.Try(ctx, nil, "sh", "-c", script); err != nil {
		t.Errorf("put %s right: %v", h.Name, err)
	}
}

func nodeOf(t *testing.T, h *labtest.Host) escache.Node {
	t.Helper()
	n, err := h.API.Node(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	return *n
}
