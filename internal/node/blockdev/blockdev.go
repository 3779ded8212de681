// Package blockdev reads in /sys what the kernel knows of block devices. It opens no device, so it
// cannot hang with one.
package blockdev

import (
	"fmt"
	"os"
	"strings"

	"golang.org/x/sys/unix"
)

// Number is a device's major and minor number.
type Number struct {
	Major, Minor uint32
}

// String is major:minor, as in /proc/self/mountinfo.
func (n Number) String() string { return fmt.Sprintf("%d:%d", n.Major, n.Minor) }

// sys is the device's directory in /sys.
func (n Number) sys() string { return "/sys/dev/block/" + n.String() }

// NumberOf returns the number of a block device node. It follows symbolic links.
func NumberOf(path string) (Number, error) {
	var st unix.Stat_t
	if err := unix.Stat(path, &st); err != nil {
		return Number{}, &os.PathError{Op: "stat", Path: path, Err: err}
	}
	if st.Mode&unix.S_IFMT != unix.S_IFBLK {
		return Number{}, fmt.Errorf("%s is not a block device", path)
	}
	return Number{unix.Major(st.Rdev), unix.Minor(st.Rdev)}, nil
}

// Bytes returns the size of a device.
func Bytes(n Number) (int64, error) {
	data, err := os.ReadFile(n.sys() + "/size")
	if err != nil {
		return 0, fmt.Errorf("size of device %s: %w", n, err)
	}
	var sectors int64
	if _, err := fmt.Sscan(string(data), &sectors); err != nil {
		return 0, fmt.Errorf("size of device %s: %w", n, err)
	}
	return sectors * 512, nil
}

// Dead reports whether a mounted device is gone. A device-mapper device that was removed under a
// mount stays, without a table or with one that fails all I/O. Such a device of escached has size
// zero.
func Dead(n Number) bool {
	if n.Major == 0 {
		return false // not a block device: tmpfs, overlay and the like
	}
	if _, err := os.Stat(n.sys()); os.IsNotExist(err) {
		return true
	}
	name, err := os.ReadFile(n.sys() + "/dm/name")
	if err != nil {
		return false
	}
	size, err := os.ReadFile(n.sys() + "/size")
	return err == nil && strings.HasPrefix(string(name), "escache-") && strings.TrimSpace(string(size)) == "0"
}
