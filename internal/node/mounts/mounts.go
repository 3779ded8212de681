// Package mounts mounts, unmounts and finds mounts. The mount table of the kernel is the only state there is: a mount belongs to
// a volume by its device number, so it is found again after a restart.
package mounts

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	mount "k8s.io/mount-utils"

	"github.com/escache/escache-csi/internal/command"
	"github.com/escache/escache-csi/internal/node/blockdev"
)

// ErrBusy is returned while a mount point is in use.
var ErrBusy = errors.New("the mount is busy")

// Entry is one line of the mount table.
type Entry struct {
	Path string
	// Device is the filesystem's device, or for a bind-mounted device node, the device itself.
	Device blockdev.Number
	// Node is true for a bind-mounted device node: a published block volume.
	Node   bool
	FSType string
	// ReadOnly is true if this mount or its whole filesystem is.
	ReadOnly bool
	// FilesystemReadOnly is true if the whole filesystem is, as after an error.
	FilesystemReadOnly bool
	// TurnedReadOnly: the filesystem is read-only, and this mount of it is not: it was writable until an error.
	TurnedReadOnly bool
	// Options are those of the mount and of the filesystem.
	Options []string
}

// Table returns the mounts of this mount namespace. It reads no filesystem, so it cannot hang with one.
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
	unmountTimeout = 90 * time.Second // what is in the page cache is written here
	bindTimeout    = 20 * time.Second
)

// Mounter runs mount(8) and umount(8) as children.
type Mounter struct {
	run command.Runner
}

// NewMounter returns a Mounter.
func NewMounter(run command.Runner) *Mounter { return &Mounter{run: run} }

// Mount mounts a device.
func (m *Mounter) Mount(ctx context.Context, volume, device, target, fsType string, options []string) error {
	args := mount.MakeMountArgs(device, target, fsType, options)
	_, err := m.run.Run(ctx, command.Command{Volume: volume, Name: "mount", Args: args, Timeout: mountTimeout})
	return err
}

// Bind makes a directory or a device node appear at target too. If it fails, nothing stays mounted there.
func (m *Mounter) Bind(ctx context.Context, volume, source, target string, readOnly bool) error {
	options := []string{"bind"}
	if readOnly {
		options = append(options, "ro")
	}
	// A bind mount takes its own flags only in a second step.
	_, bind, remount := mount.MakeBindOpts(options)
	bound := command.Command{Volume: volume, Name: "mount", Args: mount.MakeMountArgs(source, target, "", bind), Timeout: bindTimeout}
	if _, err := m.run.Run(ctx, bound); err != nil {
		return err
	}
	if !readOnly {
		return nil
	}
	again := command.Command{Volume: volume, Name: "mount", Args: mount.MakeMountArgs(source, target, "", remount), Timeout: bindTimeout}
	if _, err := m.run.Run(ctx, again); err != nil {
		return errors.Join(err, m.Unmount(context.WithoutCancel(ctx), volume, target))
	}
	return nil
}

// Unmount unmounts what is topmost at target. It fails with ErrBusy while that is in use.
func (m *Mounter) Unmount(ctx context.Context, volume, target string) error {
	return m.unmount(ctx, volume, target, "--no-canonicalize")
}

// Detach takes a mount of a device that is gone or given up out of the tree. What is still open goes on failing.
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
