package writecache

import (
	"context"
	"errors"
	"fmt"
	"strings"

	"github.com/escache/escache-csi/internal/escached/devmapper"
)

// Users do not get dm-writecache's own device but one in front of it:
//
//	linear (counted, frozen and removed by device-mapper) → loop → dm-writecache
//
// With its cache on a disk, dm-writecache answers a write that must be stable at once (FUA, with
// which a filesystem ends an fsync) as soon as the block itself is stable. The entry that says
// where the block lies may follow a second later: if power fails before, the synced block is lost
// (drivers/md/dm-writecache.c: writecache_map_write; Linux 4.18 to 6.x at least). It handles a
// flush correctly. A loop device has a cache to flush but no FUA, so the kernel's block layer turns
// every FUA into a flush after the write.
const frontSuffix = "-front"

func front(name string) string { return name + frontSuffix }
func isFront(name string) bool { return strings.HasSuffix(name, frontSuffix) }

func linear(size int64, below string) string {
	return fmt.Sprintf("0 %d linear %s 0", size/devmapper.SectorBytes, below)
}

// expose makes the device in front of a cache, or makes it as large as the cache has become, under
// running I/O. It does nothing to one that is complete.
func (e *Engine) expose(ctx context.Context, name string, size int64) error {
	loop, err := e.loops.Attach(ctx, name, devmapper.Node(name), size)
	if err != nil {
		return err
	}
	have, there, err := e.below(ctx, front(name))
	switch {
	case err != nil:
		return err
	case !there:
		return e.dm.Create(ctx, name, front(name), linear(size, loop))
	case have.Sectors == size/devmapper.SectorBytes && !have.Suspended:
		return nil
	}
	if err := e.dm.SuspendNoFlush(ctx, name, front(name)); err != nil {
		return err
	}
	if err := e.dm.Load(ctx, name, front(name), linear(size, loop)); err != nil {
		return errors.Join(err, e.dm.Resume(ctx, name, front(name)))
	}
	return e.dm.Resume(ctx, name, front(name))
}

// seenFromFront replaces what dm-writecache's own device says about its users with what the device
// in front says.
func (e *Engine) seenFromFront(d *device, name string, all map[string]devmapper.Device) error {
	if f, there := all[front(name)]; there {
		d.open, d.suspended = f.Open, d.suspended || f.Suspended
		return nil
	}
	// Making or removing it was interrupted. The loop device that may be there is not a user.
	if d.open > 0 {
		loop, err := e.loops.Find(devmapper.Node(name))
		if err != nil {
			return err
		}
		if loop != "" {
			d.open--
		}
	}
	return nil
}
