// Package loop puts a block device behind a loop device.
package loop

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/escache/escache-csi/internal/command"
	"github.com/escache/escache-csi/internal/escached/listing"
	"github.com/escache/escache-csi/internal/pause"
)

// ErrOpen means that a loop device cannot be removed because it is open.
var ErrOpen = errors.New("the loop device is open")

const (
	sectorBytes = 512
	// blockBytes is the unit of I/O, which direct I/O on a dm-writecache device needs.
	blockBytes = 4096
	// detachTime bounds how long Detach waits for others to close the device. udev opens every new
	// device for a moment.
	detachTime = 5 * time.Second
	poll       = 50 * time.Millisecond
)

// Control drives loop devices through losetup.
type Control struct {
	run     command.Runner
	sys     string
	number  func(path string) (uint64, error)
	backing func(device string) (uint64, error)
}

// New returns a Control that runs losetup with run.
func New(run command.Runner) *Control {
	return &Control{run: run, sys: "/sys/block", number: deviceNumber, backing: backingNumber}
}

// Find returns the loop device of a block device, "" if it has none. It starts no child and waits
// for no I/O.
func (c *Control) Find(backing string) (string, error) {
	number, err := c.number(backing)
	if errors.Is(err, os.ErrNotExist) {
		return "", nil
	}
	if err != nil {
		return "", err
	}
	devices, err := listing.Names(c.sys)
	if err != nil {
		return "", err
	}
	for _, name := range devices {
		path, err := os.ReadFile(filepath.Join(c.sys, name, "loop", "backing_file"))
		if err != nil {
			continue // it is no loop device, or was removed just now
		}
		device := "/dev/" + name
		// The file that the kernel names may be another node of the same device. If the loop device
		// was made in a container that has ended, its path does not exist here. Then ask the loop
		// device itself.
		other, err := c.number(strings.TrimSpace(string(path)))
		if err != nil {
			other, err = c.backing(device)
		}
		if err == nil && other == number {
			return device, nil
		}
	}
	return "", nil
}

// backingNumber is the number of the block device behind a loop device.
func backingNumber(device string) (uint64, error) {
	file, err := os.Open(device) //nolint:gosec // its name is from the kernel's list
	if err != nil {
		return 0, err
	}
	defer func() { _ = file.Close() }() // it was only read
	status, err := unix.IoctlLoopGetStatus64(int(file.Fd()))
	if err != nil {
		return 0, fmt.Errorf("read the backing device of %s: %w", device, err)
	}
	return status.Rdevice, nil
}

func deviceNumber(path string) (uint64, error) {
	var st unix.Stat_t
	if err := unix.Stat(path, &st); err != nil {
		return 0, &os.PathError{Op: "stat", Path: path, Err: err}
	}
	if st.Mode&unix.S_IFMT != unix.S_IFBLK {
		return 0, fmt.Errorf("%s is not a block device", path)
	}
	return st.Rdev, nil
}

// Attach returns the loop device of a block device, and makes one if there is none. It makes the
// loop device as large as the block device is now. I/O goes past the page cache.
func (c *Control) Attach(ctx context.Context, volume, backing string, size int64) (string, error) {
	device, err := c.Find(backing)
	if err != nil {
		return "", err
	}
	if device == "" {
		out, err := c.run.Run(ctx, command.Command{Volume: volume, Name: "losetup", Args: []string{
			"--find", "--show", "--direct-io=on", "--sector-size", strconv.Itoa(blockBytes), backing,
		}})
		return strings.TrimSpace(string(out.Stdout)), err
	}
	have, err := os.ReadFile(filepath.Join(c.sys, filepath.Base(device), "size"))
	if err != nil {
		return "", fmt.Errorf("size of %s: %w", device, err)
	}
	if strings.TrimSpace(string(have)) == strconv.FormatInt(size/sectorBytes, 10) {
		return device, nil
	}
	_, err = c.run.Run(ctx, command.Command{Volume: volume, Name: "losetup", Args: []string{"--set-capacity", device}})
	return device, err
}

// Detach removes the loop device of a block device. It succeeds if there is none, and returns
// ErrOpen if the loop device stays open.
func (c *Control) Detach(ctx context.Context, volume, backing string) error {
	device, err := c.Find(backing)
	if err != nil || device == "" {
		return err
	}
	if _, err := c.run.Run(ctx, command.Command{Volume: volume, Name: "losetup", Args: []string{"--detach", device}}); err != nil {
		return err
	}
	// losetup succeeds at once, but the kernel removes the device when the last user has closed it.
	for start := time.Now(); ; {
		device, err := c.Find(backing)
		switch {
		case err != nil || device == "":
			return err
		case time.Since(start) > detachTime:
			return fmt.Errorf("%w: %s", ErrOpen, device)
		}
		if err := pause.For(ctx, poll); err != nil {
			return err
		}
	}
}
