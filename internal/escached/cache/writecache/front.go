package writecache

import (
	"context"
	"errors"
	"fmt"
	"strings"
)

// What users get is not dm-writecache's own device but one in front of it:
//
//	linear (counted, frozen and removed by device-mapper) → loop → dm-writecache
//
// With its cache on a disk dm-writecache answers a write that must be stable at once (FUA, with which filesystems end an fsync) as soon as
// the block is stable, while the note of where it lies may follow a second later: lost with the power until then is what was synced
// (drivers/md/dm-writecache.c: writecache_map_write; Linux 4.18 to 6.x at least). A flush it does right. A loop device has a cache to flush
// but no FUA, so the kernel's block layer turns every FUA into a flush behind the write.
const frontSuffix = "-front"

// Loops puts block devices behind loop devices.
type Loops interface {
	Find(backing string) (string, error)
	Attach(ctx context.Context, volume, backing string, size int64) (string, error)
	Detach(ctx context.Context, volume, backing string) error
}

func front(name string) string  { return name + frontSuffix }
func isFront(name string) bool  { return strings.HasSuffix(name, frontSuffix) }
func node(name string) string   { return "/dev/mapper/" + name }
func sectors(bytes int64) int64 { return bytes / sector }
func linear(size int64, below string) string {
	return fmt.Sprintf("0 %d linear %s 0", sectors(size), below)
}

// Path is where the kernel shows the device that users get.
func (m *Mapper) Path(name string) string { return node(front(name)) }

// Expose makes the device that users get, or makes it as large as the cache has become, under running I/O. What is there already stays.
func (m *Mapper) Expose(ctx context.Context, name string, size int64) error {
	loop, err := m.loops.Attach(ctx, name, node(name), size)
	if err != nil {
		return err
	}
	have, there, err := m.target(ctx, front(name))
	switch {
	case err != nil:
		return err
	case !there:
		return m.change(ctx, name, "create", front(name), "--table", linear(size, loop))
	case int64(have.sectors) == sectors(size) && !have.suspended:
		return nil
	}
	if err := m.change(ctx, name, "suspend", "--noflush", "--nolockfs", front(name)); err != nil {
		return err
	}
	if err := m.change(ctx, name, "load", front(name), "--table", linear(size, loop)); err != nil {
		return errors.Join(err, m.change(ctx, name, "resume", front(name)))
	}
	return m.change(ctx, name, "resume", front(name))
}

// exposed completes what a cache's own device says with what the one in front of it says.
func (m *Mapper) exposed(fd int, name string, d Device) (Device, error) {
	f, there, err := m.control.there(fd, front(name))
	if err != nil {
		return d, err
	}
	if there {
		d.Open, d.Suspended = f.open, d.Suspended || f.suspended
		return d, nil
	}
	// It was interrupted while it was made or removed: the loop device is no user.
	if d.Open > 0 {
		loop, err := m.loops.Find(node(name))
		if err != nil {
			return d, err
		}
		if loop != "" {
			d.Open--
		}
	}
	return d, nil
}
