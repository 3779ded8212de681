package engine

import (
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/escache/escache-csi/api/escache"
	"github.com/escache/escache-csi/internal/escached/drbd"
	"github.com/escache/escache-csi/internal/escached/lvm"
	"github.com/escache/escache-csi/internal/escached/memory"
	"github.com/escache/escache-csi/internal/escached/volume"
)

// Node reports what this host has and whether it is healthy. It never fails, and starts no child
// process: it is polled, and a busy host must not look dead.
func (e *Engine) Node(ctx context.Context) (escache.Node, error) {
	n := escache.Node{Name: e.Config.Node, HostID: e.HostID(), Version: e.version, MaxVolumes: e.Config.DRBD.Minors.Size()}
	n.Kernel, n.Reasons = e.Kernel.Describe(ctx)
	n.Engines = e.Caches.Runnable(ctx)
	if e.Config.MaxVolumes > 0 {
		n.MaxVolumes = min(n.MaxVolumes, e.Config.MaxVolumes)
	}
	bad := func(format string, args ...any) { n.Reasons = append(n.Reasons, fmt.Sprintf(format, args...)) }
	space, age, err := e.space.Latest()
	if err != nil {
		bad("the caches' volume group cannot be read: %v", err)
	}
	if id := e.HostID(); err == nil && id != "" && space.GroupID != id {
		bad("the caches' volume group was re-created (%s, at the start %s); start escached again", space.GroupID, id)
	}
	if space.Missing > 0 {
		bad("LVM does not find %d of the disks of volume group %s, and creates no cache here; %s", space.Missing, e.Config.VolumeGroup,
			lvm.WithoutMissing(e.Config.VolumeGroup))
	}
	n.CacheCapacityBytes, n.CacheFreeBytes = space.Capacity, space.Free
	n.CacheReadSecondsAgo = int64(age / time.Second)

	volumes := e.Volumes.List()
	n.Volumes, n.CacheAllocatedBytes = len(volumes), allocated(volumes, space)
	e.count(ctx, &n, volumes, bad)
	for name, stuck := range e.Stuck() {
		bad("a command of %s is stuck: %v", e.title(name), stuck)
	}
	e.faults.Range(func(name, why any) bool {
		bad("%s: %v", e.title(name.(string)), why) //nolint:forcetypeassert // only strings are stored
		return true
	})
	slices.Sort(n.Reasons)
	n.Healthy = len(n.Reasons) == 0
	return n, nil
}

// allocated returns the space that replicas use in the volume group, in bytes. Capacity that is
// neither allocated nor free is used by something other than escached.
func allocated(volumes []volume.Volume, space lvm.Space) int64 {
	var sum int64
	for _, v := range volumes {
		extent := max(space.Extent, 1)
		sum += (v.CacheBytes + extent - 1) / extent * extent
	}
	return min(sum, space.Capacity-space.Free) // a replica that is being created uses nothing yet
}

func (e *Engine) count(ctx context.Context, n *escache.Node, volumes []volume.Volume, bad func(string, ...any)) {
	table, err := e.States.Read()
	if err != nil {
		bad("DRBD's state cannot be read: %v", err)
	}
	devices, err := e.Caches.States(ctx, volume.NamePrefix)
	if err != nil {
		bad("the caches' state cannot be read: %v", err)
	}
	for _, v := range volumes {
		if table.Devices[v.Minor].Role == drbd.Primary {
			n.Primaries++
		}
		if dev, ok := devices[v.Name()]; ok {
			n.DirtyBytes += dev.Dirty
			n.ConnectedBytes += v.CacheBytes
			n.CacheMemoryBytes += e.memoryOf(v)
		}
	}
	free, err := e.MemoryClaims.Free()
	if err != nil {
		bad("no volume can be connected: %v", err)
		return
	}
	n.CacheMemoryFreeBytes = free
	// The caches of another engine may take less or more: each is counted again when it is connected.
	if more, bounded := memory.Largest(free, e.Caches.Of(escache.EngineWritecache).Memory); bounded {
		total := n.ConnectedBytes + more
		n.ConnectableBytes = &total
	}
}

// memoryOf returns what a volume's cache takes of this host's memory while it is connected.
func (e *Engine) memoryOf(v volume.Volume) int64 { return e.Caches.Of(v.Engine).Memory(v.CacheBytes) }

// title returns POOL/IMAGE of the volume with a kernel name, for messages.
func (e *Engine) title(name string) string {
	if v, ok := e.Volumes.Get(name); ok {
		return v.Pool + "/" + v.Image
	}
	return name
}
