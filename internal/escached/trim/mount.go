package trim

import (
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/escache/escache-csi/internal/fstype"
)

// mounted is a filesystem that is mounted nowhere but here.
type mounted struct {
	root *os.File
	size int64
}

// open mounts the device's filesystem. It formats and checks nothing.
func open(r Request) (*mounted, error) {
	fd, err := detached(r)
	if err != nil {
		return nil, err
	}
	// The mount itself cannot be used for an ioctl, only a directory that is opened in it.
	root, err := unix.Openat(fd, ".", unix.O_RDONLY|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	err = errors.Join(err, unix.Close(fd))
	if err != nil {
		return nil, fmt.Errorf("open the filesystem on %s: %w", r.Device, err)
	}
	m := &mounted{root: os.NewFile(uintptr(root), r.Device)}
	var s unix.Statfs_t
	if err := unix.Fstatfs(root, &s); err != nil {
		return nil, errors.Join(fmt.Errorf("size of the filesystem on %s: %w", r.Device, err), m.close())
	}
	if s.Flags&unix.ST_RDONLY != 0 {
		return nil, errors.Join(refuse("the filesystem on %s is read-only; trimming writes", r.Device), m.close())
	}
	if err := sound(r); err != nil {
		return nil, errors.Join(err, m.close())
	}
	if m.size, err = deviceSize(r.Device); err != nil {
		return nil, errors.Join(err, m.close())
	}
	return m, nil
}

// Where ext4 keeps its state on the device, in little endian, and the bit of it that says that the kernel has found
// errors: see s_state in Linux' Documentation/filesystems/ext4/super.rst.
const ext4State, ext4HasErrors = 1024 + 0x3a, 0x2

// sound refuses an ext4 that has found errors in itself, and that fsck has not seen since: what it counts as free may be
// in use, and would be lost. It is asked after the mount, which takes such an error over from the journal. An xfs that
// finds an error shuts down.
func sound(r Request) error {
	if r.Type != fstype.Ext4 {
		return nil
	}
	f, err := os.Open(r.Device)
	if err != nil {
		return fmt.Errorf("state of the filesystem on %s: %w", r.Device, err)
	}
	var state [2]byte
	_, err = f.ReadAt(state[:], ext4State)
	if err := errors.Join(err, f.Close()); err != nil {
		return fmt.Errorf("state of the filesystem on %s: %w", r.Device, err)
	}
	if binary.LittleEndian.Uint16(state[:])&ext4HasErrors != 0 {
		return refuse("the filesystem on %s has errors, so what it counts as free may be in use: run fsck first, see "+
			"docs/filesystem-errors.md", r.Device)
	}
	return nil
}

// deviceSize bounds a filesystem: its own count of blocks leaves out what it keeps for itself.
func deviceSize(device string) (int64, error) {
	f, err := os.Open(device)
	if err != nil {
		return 0, fmt.Errorf("size of %s: %w", device, err)
	}
	size, err := f.Seek(0, 2)
	return size, errors.Join(err, f.Close())
}

func (m *mounted) close() error { return m.root.Close() }

// trimRange is the kernel's struct fstrim_range, and fitrim the number of its ioctl: see linux/fs.h. x/sys has
// neither.
type trimRange struct{ start, length, minimum uint64 }

const fitrim = 0xc0185879 // _IOWR('X', 121, struct fstrim_range)

// trim discards what is free in a part. The kernel ends it early only if this process is killed.
func (m *mounted) trim(start, length int64) (int64, error) {
	part := trimRange{start: uint64(start), length: uint64(length)}
	_, _, errno := unix.Syscall(unix.SYS_IOCTL, m.root.Fd(), fitrim,
		uintptr(unsafe.Pointer(&part))) //nolint:gosec // an ioctl takes a pointer
	switch {
	case errno == 0:
		return int64(part.length), nil
	case errors.Is(errno, unix.EINVAL) && start > 0:
		return 0, nil // behind the filesystem's last block: it is smaller than its device
	case errors.Is(errno, unix.EOPNOTSUPP), errors.Is(errno, unix.ENOTTY):
		return 0, refuse("%s takes no discards", m.root.Name())
	case errors.Is(errno, unix.EROFS):
		return 0, refuse("the filesystem on %s is read-only; trimming writes", m.root.Name())
	}
	return 0, fmt.Errorf("trim the filesystem on %s at byte %d: %w", m.root.Name(), start, errno)
}

// detached mounts a device, and returns the mount's file. Closing it unmounts.
func detached(r Request) (fd int, err error) {
	fs, err := unix.Fsopen(r.Type, unix.FSOPEN_CLOEXEC)
	if err != nil {
		if errors.Is(err, unix.ENODEV) {
			return -1, refuse("the kernel of this host has no %s", r.Type)
		}
		return -1, fmt.Errorf("begin to mount %s: %w", r.Type, err)
	}
	defer func() { err = errors.Join(err, unix.Close(fs)) }()
	if err := unix.FsconfigSetString(fs, "source", r.Device); err != nil {
		return -1, fmt.Errorf("name %s to the kernel: %w", r.Device, err)
	}
	for _, o := range filesystemOptions(fstype.MountOptions(r.Type, r.Options, false)) {
		if key, value, has := strings.Cut(o, "="); has {
			err = unix.FsconfigSetString(fs, key, strings.Trim(value, `"`))
		} else {
			err = unix.FsconfigSetFlag(fs, o)
		}
		if err != nil {
			return -1, refuse("the kernel does not take the mount option %s: %v%s", o, err, told(fs))
		}
	}
	if err := unix.FsconfigCreate(fs); err != nil {
		why := fmt.Errorf("%s does not mount as %s: %w%s", r.Device, r.Type, err, told(fs))
		switch {
		case errors.Is(err, unix.EBUSY):
			return -1, refuse("%v; it is in use here read-only, or by something that is not its filesystem", why)
		case errors.Is(err, unix.EIO), errors.Is(err, unix.EINTR), errors.Is(err, unix.ENOMEM), errors.Is(err, unix.ENOENT),
			errors.Is(err, unix.ENXIO):
			return -1, why
		}
		return -1, refuse("%v; nothing was repaired or formatted", why)
	}
	fd, err = unix.Fsmount(fs, unix.FSMOUNT_CLOEXEC, unix.MOUNT_ATTR_NODEV|unix.MOUNT_ATTR_NOSUID|unix.MOUNT_ATTR_NOEXEC)
	if err != nil {
		return -1, fmt.Errorf("mount %s: %w", r.Device, err)
	}
	return fd, nil
}

// filesystemOptions leaves out the options that are not the filesystem's: those of a mount in a directory tree, and
// those that only programs know.
func filesystemOptions(options []string) []string {
	others := []string{
		"defaults", "rw", "dev", "nodev", "suid", "nosuid", "exec", "noexec", "atime", "noatime", "relatime", "norelatime", "strictatime",
		"nostrictatime", "diratime", "nodiratime", "symfollow", "nosymfollow", "auto", "noauto", "user", "nouser", "users", "owner",
		"group", "nofail", "_netdev", "loud", "async",
	}
	var all []string
	for _, word := range options {
		for _, o := range strings.FieldsFunc(word, comma()) {
			key, _, _ := strings.Cut(o, "=")
			if slices.Contains(others, o) || strings.HasPrefix(o, "x-") || strings.HasPrefix(o, "X-") || key == "comment" {
				continue
			}
			all = append(all, o)
		}
	}
	return all
}

// comma returns a function that finds the commas between options: those in quotes are part of one.
func comma() func(rune) bool {
	quoted := false
	return func(r rune) bool {
		if r == '"' {
			quoted = !quoted
		}
		return r == ',' && !quoted
	}
}

// told is what the kernel has to say about a mount that failed.
func told(fs int) string {
	var words []string
	line := make([]byte, 1024)
	for {
		n, err := unix.Read(fs, line)
		if err != nil || n <= 0 {
			break
		}
		words = append(words, strings.TrimSpace(strings.TrimPrefix(string(line[:n]), "e ")))
	}
	if len(words) == 0 {
		return ""
	}
	return " (" + strings.Join(words, "; ") + ")"
}
