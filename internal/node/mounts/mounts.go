// Package mounts mounts, unmounts and finds mounts. The kernel's mount table is its only state. The
// device number tells which volume a mount belongs to, also after a restart.
package mounts

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"golang.org/x/sys/unix"
	mount "k8s.io/mount-utils"

	"github.com/escache/escache-csi/internal/command"
	"github.com/escache/escache-csi/internal/fstype"
	"github.com/escache/escache-csi/internal/node/blockdev"
)

// ErrBusy is returned while a mount point is in use.
var ErrBusy = errors.New("the mount is busy")

// Entry is one line of the mount table.
type Entry struct {
	Path string
	// Device is the filesystem's device; for a bind-mounted device node it is the device itself.
	Device blockdev.Number
	// Node is true for a bind-mounted device node: a published block volume.
	Node   bool
	FSType string
	// ReadOnly is true if this mount or its whole filesystem is read-only.
	ReadOnly bool
	// FilesystemReadOnly is true if the whole filesystem is read-only, as after an error.
	FilesystemReadOnly bool
	// TurnedReadOnly is true if the filesystem is read-only and this mount is not: an error has
	// turned it read-only.
	TurnedReadOnly bool
	// Options are the options of the mount and of the filesystem.
	Options []string
}

// ShutDown reports whether the filesystem is an xfs that has shut itself down after an error. The mount table does not say so, but the
// kernel refuses any look at its root with an I/O error. It has the root in memory, so ShutDown waits for no device.
func (e Entry) ShutDown() bool {
	if e.FSType != fstype.XFS {
		return false
	}
	var root unix.Stat_t
	return errors.Is(unix.Lstat(e.Path, &root), unix.EIO)
}

// Table returns the mounts of this mount namespace, in the order in which they were made. It reads
// no filesystem, so it cannot hang with one.
func (*Mounter) Table() ([]Entry, error) {
	infos, err := mount.ParseMountInfo("/proc/self/mountinfo")
	if err != nil {
		return nil, fmt.Errorf("read the mount table: %w", err)
	}
	return entries(infos, blockdev.NumberOf), nil
}

func entries(infos []mount.MountInfo, number func(path string) (blockdev.Number, error)) []Entry {
	all := make([]Entry, 0, len(infos))
	for _, info := range infos {
		filesystemReadOnly := has(info.SuperOptions, "ro") || has(info.SuperOptions, "emergency_ro") || has(info.SuperOptions, "shutdown")
		e := Entry{
			Path: unescape(info.MountPoint), FSType: info.FsType,
			Device:             blockdev.Number{Major: uint32(info.Major), Minor: uint32(info.Minor)},
			FilesystemReadOnly: filesystemReadOnly,
			TurnedReadOnly:     filesystemReadOnly && !has(info.MountOptions, "ro"),
			ReadOnly:           filesystemReadOnly || has(info.MountOptions, "ro"),
			Options:            append(append([]string{}, info.MountOptions...), info.SuperOptions...),
		}
		if (info.FsType == "devtmpfs" || info.FsType == "tmpfs") && info.Root != "/" {
			if n, err := number(e.Path); err == nil {
				e.Device, e.Node = n, true
			}
		}
		all = append(all, e)
	}
	return all
}

func has(options []string, name string) bool { return slices.Contains(options, name) }

// unescape undoes the kernel's octal escapes of blank, tab, newline and backslash.
func unescape(path string) string {
	return strings.NewReplacer(`\040`, " ", `\011`, "\t", `\012`, "\n", `\134`, `\`).Replace(path)
}

// At returns the topmost mount at a path, or nil.
func At(table []Entry, path string) *Entry {
	for i := len(table) - 1; i >= 0; i-- {
		if table[i].Path == path {
			return &table[i]
		}
	}
	return nil
}

// Of returns the mounts of a device.
func Of(table []Entry, device blockdev.Number) []Entry {
	var of []Entry
	for _, e := range table {
		if e.Device == device {
			of = append(of, e)
		}
	}
	return of
}

const (
	mountTimeout   = 90 * time.Second // ext4 and xfs replay their journal here
	unmountTimeout = 90 * time.Second // the kernel writes the page cache back here
	bindTimeout    = 20 * time.Second
)

// Mounter runs mount(8), umount(8) and the binder as children.
type Mounter struct {
	run command.Runner
	// binder is the command that makes a bind mount that is read-only from its first moment, without source and target.
	binder []string
}

// NewMounter returns a Mounter. It runs the binder with SOURCE TARGET, which does what BindReadOnly does.
func NewMounter(run command.Runner, binder []string) *Mounter {
	return &Mounter{run: run, binder: binder}
}

// Mount mounts a device.
func (m *Mounter) Mount(ctx context.Context, volume, device, target, fsType string, options []string) error {
	args := mount.MakeMountArgs(device, target, fsType, options)
	_, err := m.run.Run(ctx, command.Command{Volume: volume, Name: "mount", Args: args, Timeout: mountTimeout})
	return err
}

// Bind bind-mounts a directory or a device node at target. If it fails, it leaves nothing mounted
// there.
func (m *Mounter) Bind(ctx context.Context, volume, source, target string, readOnly bool) error {
	args := mount.MakeMountArgs(source, target, "", []string{"bind"})
	c := command.Command{Volume: volume, Name: "mount", Args: args, Timeout: bindTimeout}
	if readOnly {
		c.Name, c.Args = m.binder[0], append(slices.Clone(m.binder[1:]), source, target)
	}
	_, err := m.run.Run(ctx, c)
	return err
}

// Unmount unmounts the topmost mount at target. It fails with ErrBusy while the mount is in use.
func (m *Mounter) Unmount(ctx context.Context, volume, target string) error {
	return m.unmount(ctx, volume, target, "--no-canonicalize")
}

// Detach unmounts lazily, for a device that is gone or given up. I/O to files that are still open
// keeps failing.
func (m *Mounter) Detach(ctx context.Context, volume, target string) error {
	return m.unmount(ctx, volume, target, "--no-canonicalize", "--lazy")
}

func (m *Mounter) unmount(ctx context.Context, volume, target string, flags ...string) error {
	_, err := m.run.Run(ctx, command.Command{Volume: volume, Name: "umount", Args: append(flags, target), Timeout: unmountTimeout})
	var exit *command.ExitError
	if errors.As(err, &exit) && strings.Contains(exit.Stderr, "busy") {
		return fmt.Errorf("unmount %s: %w: a process has files open there: %w", target, ErrBusy, err)
	}
	return err
}
