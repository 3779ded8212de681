// Package engine is the cache engine `log`: a log on the cache's disk, which a process of its own serves
// as a block device.
//
// Users get a linear device in front of the process's:
//
//	linear (counted and removed by device-mapper) → NBD device ← escache-cache( disk, origin )
//
// The kernel does not count the users of an NBD device; device-mapper does. What escached asked a process
// for is in a plan in a directory that does not outlive the host (plans.go). From that plan another
// escached finds the process, and starts it again when it has died: I/O waits meanwhile, and nothing that
// was answered is lost.
package engine

import (
	"context"
	"io"

	"github.com/escache/escache-csi/internal/escached/cache"
	"github.com/escache/escache-csi/internal/escached/cache/log/nbd/kernel"
	"github.com/escache/escache-csi/internal/escached/devmapper"
)

// Mapper changes and reads device-mapper devices.
type Mapper interface {
	Devices(ctx context.Context, prefix string, use func(map[string]devmapper.Device) error) error
	Create(ctx context.Context, volume, device, table string) error
	Remove(ctx context.Context, volume, device string) error
	SuspendNoFreeze(ctx context.Context, volume, device string) error
	SuspendNoFlush(ctx context.Context, volume, device string) error
	Load(ctx context.Context, volume, device, table string) error
	Resume(ctx context.Context, volume, device string) error
}

// Processes starts, finds and ends the processes that serve volumes: package launch.
type Processes interface {
	Start(ctx context.Context, name string, args []string) error
	Running(name string) (bool, error)
	// Kill ends a process whatever it does. Gone waits until one has ended.
	Kill(ctx context.Context, name string) error
	Gone(ctx context.Context, name string) error
	LastWords(name string) string
	Forget(name string) error
}

// Kernel is the kernel's NBD driver and what it says of block devices. Nothing here waits for I/O.
type Kernel interface {
	// Version is "" if the kernel has no NBD driver.
	Version() (string, error)
	// Connected returns the NBD devices, by backend.
	Connected() (map[string]kernel.Found, error)
	// Disconnect removes an NBD device, whoever has it open.
	Disconnect(ctx context.Context, index int) error
	// Number returns the number of a block device, MAJOR:MINOR, from its path or that number.
	Number(path string) (string, error)
	// Bytes returns the size of a block device.
	Bytes(path string) (int64, error)
}

// Engine implements cache.Engine.
type Engine struct {
	dm        Mapper
	disks     cache.Disks
	processes Processes
	kernel    Kernel
	plans     plans
}

var _ cache.Engine = (*Engine)(nil)

// Config has what an Engine works with.
type Config struct {
	Mapper    Mapper
	Disks     cache.Disks
	Processes Processes
	Kernel    Kernel
	// Dir has sockets, memories and plans of the processes. It must be on tmpfs.
	Dir string
	// Boot identifies the start of the host: a plan of another one counts as none.
	Boot string
}

// New returns an Engine.
func New(c Config) *Engine {
	return &Engine{
		dm: c.Mapper, disks: c.Disks, processes: c.Processes, kernel: c.Kernel, plans: plans{dir: c.Dir, boot: c.Boot},
	}
}

// Modules implements cache.Engine.
func (*Engine) Modules() []string { return []string{"nbd"} }

// Version implements cache.Engine.
func (e *Engine) Version(context.Context) (string, error) { return e.kernel.Version() }

// Queries returns the functions that this engine runs in a child, by name.
func Queries() map[string]func(device io.ReaderAt, out io.Writer) error {
	return map[string]func(io.ReaderAt, io.Writer) error{dirtyQuery: cache.DirtyQuery(dirtyOf)}
}
