// Package writecache is the cache engine on the kernel's dm-writecache. Nothing outside this
// package knows how dm-writecache behaves.
//
// Users do not get dm-writecache's own device but one in front of it (front.go):
//
//	linear device → loop device → dm-writecache( origin, disk )
//
// On the disk, behind escached's header, lie dm-writecache's superblock and one entry for each of
// its blocks (superblock.go). The kernel's table is the only record of a cache's options: nothing
// is kept in memory.
package writecache

import (
	"context"
	"io"
	"time"

	"github.com/escache/escache-csi/internal/escached/cache"
	"github.com/escache/escache-csi/internal/escached/devmapper"
)

// Mapper changes and reads device-mapper devices.
type Mapper interface {
	Devices(ctx context.Context, prefix string, use func(map[string]devmapper.Device) error) error
	Version(ctx context.Context, target string) (string, error)
	Create(ctx context.Context, volume, device, table string) error
	Remove(ctx context.Context, volume, device string) error
	Suspend(ctx context.Context, volume, device string) error
	SuspendNoFlush(ctx context.Context, volume, device string) error
	Load(ctx context.Context, volume, device, table string) error
	Resume(ctx context.Context, volume, device string) error
	Message(ctx context.Context, volume, device, text string, timeout time.Duration) error
}

// Loops puts block devices behind loop devices.
type Loops interface {
	Find(backing string) (string, error)
	Attach(ctx context.Context, volume, backing string, size int64) (string, error)
	Detach(ctx context.Context, volume, backing string) error
}

// Engine implements cache.Engine on dm-writecache.
type Engine struct {
	dm    Mapper
	loops Loops
	disks cache.Disks
}

var _ cache.Engine = (*Engine)(nil)

// New returns an Engine over device-mapper, loop devices and direct I/O on disks.
func New(dm Mapper, loops Loops, disks cache.Disks) *Engine {
	return &Engine{dm: dm, loops: loops, disks: disks}
}

// dirtyQuery is the name under which child.Main must know the query.
const dirtyQuery = "dirty"

// Queries returns the functions that this engine runs in a child, by name.
func Queries() map[string]func(device io.ReaderAt, out io.Writer) error {
	return map[string]func(io.ReaderAt, io.Writer) error{dirtyQuery: cache.DirtyQuery(dirtyOf)}
}

// Modules implements cache.Engine.
func (*Engine) Modules() []string { return []string{"dm-writecache", "loop"} }

// Version implements cache.Engine with the version of the target in the running kernel.
func (e *Engine) Version(ctx context.Context) (string, error) { return e.dm.Version(ctx, target) }
