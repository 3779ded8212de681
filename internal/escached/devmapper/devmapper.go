// Package devmapper is a client of the kernel's device-mapper. It knows no target's table: what a
// table or a status line means is the caller's business.
//
// It reads through the ioctls of linux/dm-ioctl.h and changes through dmsetup. A read starts no
// child and waits for no I/O, so it also answers while a device is stuck.
package devmapper

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/escache/escache-csi/internal/command"
)

// ErrOpen means that a device cannot be removed because someone has it open.
var ErrOpen = errors.New("the device is open")

// SectorBytes is the unit of every length in a table.
const SectorBytes = 512

// Mapper reads and changes device-mapper devices. Its zero value is not usable.
type Mapper struct {
	run     command.Runner
	control *control
}

// New returns a Mapper that changes devices by running dmsetup with run.
func New(run command.Runner) *Mapper { return &Mapper{run: run, control: newControl()} }

// Device is one device as the kernel shows it.
type Device struct {
	// Target is the type of the device's only target. It is empty for a device that has no table
	// yet, more than one target, or was replaced while it was read; then Sectors, Table and Status
	// are empty too.
	Target  string
	Sectors int64
	// Table and Status are the target's own text, without start, length and type.
	Table  string
	Status string
	// Open is how many users have the device open, other devices on top of it included.
	Open      int
	Suspended bool
}

// Node returns the path at which the kernel shows a device.
func Node(device string) string { return "/dev/mapper/" + device }

// Devices reads every device whose name has the prefix and calls use with them.
//
// Reading and use run off the caller's goroutine, and the caller waits at most 5 s for both: use
// may ask the kernel for more without a risk that a poll hangs. After an error from Devices use may
// still be running.
func (m *Mapper) Devices(ctx context.Context, prefix string, use func(map[string]Device) error) error {
	return m.control.with(ctx, func(fd int) error {
		names, err := m.control.names(fd, prefix)
		if err != nil {
			return fmt.Errorf("list of devices: %w", err)
		}
		out := map[string]Device{}
		for _, name := range names {
			d, there, err := m.control.device(fd, name)
			if err != nil {
				return err
			}
			if there {
				out[name] = d
			}
		}
		return use(out)
	})
}

// Version returns the version of a target type in the running kernel, or "" if it is not loaded.
func (m *Mapper) Version(ctx context.Context, target string) (string, error) {
	found := make(chan string, 1)
	err := m.control.with(ctx, func(fd int) error {
		version, err := m.control.version(fd, target)
		found <- version
		return err
	})
	if err != nil {
		return "", err
	}
	return <-found, nil
}

// Create makes a device. The volume is the key of command.Command's breaker, here and below.
func (m *Mapper) Create(ctx context.Context, volume, device, table string) error {
	return m.dmsetup(ctx, volume, "create", device, "--table", table)
}

// Remove removes a device. It returns ErrOpen if someone has it open, and nil if there is none.
func (m *Mapper) Remove(ctx context.Context, volume, device string) error {
	err := m.dmsetup(ctx, volume, "remove", device)
	switch {
	case err == nil, strings.Contains(err.Error(), "No such device"):
		return nil
	case strings.Contains(err.Error(), "resource busy"), strings.Contains(err.Error(), "in use"):
		return fmt.Errorf("%w: %w", ErrOpen, err)
	}
	return err
}

// Suspend freezes the filesystem on a device, waits for its I/O, and suspends it.
func (m *Mapper) Suspend(ctx context.Context, volume, device string) error {
	return m.dmsetup(ctx, volume, "suspend", device)
}

// SuspendNoFreeze waits for a device's I/O, and suspends it. A filesystem on it is as after a power loss.
func (m *Mapper) SuspendNoFreeze(ctx context.Context, volume, device string) error {
	return m.dmsetup(ctx, volume, "suspend", "--nolockfs", device)
}

// SuspendNoFlush suspends a device without freezing a filesystem or waiting for I/O.
func (m *Mapper) SuspendNoFlush(ctx context.Context, volume, device string) error {
	return m.dmsetup(ctx, volume, "suspend", "--noflush", "--nolockfs", device)
}

// Load gives a device a second table, which counts from the next Resume.
func (m *Mapper) Load(ctx context.Context, volume, device, table string) error {
	return m.dmsetup(ctx, volume, "load", device, "--table", table)
}

// Resume ends a suspension, with the loaded table if there is one.
func (m *Mapper) Resume(ctx context.Context, volume, device string) error {
	return m.dmsetup(ctx, volume, "resume", device)
}

// Message sends a message to a device's target and waits for the answer. When timeout or ctx ends,
// only dmsetup is killed: the kernel goes on with the message.
func (m *Mapper) Message(ctx context.Context, volume, device, text string, timeout time.Duration) error {
	_, err := m.run.Run(ctx, command.Command{
		Volume: volume, Name: "dmsetup", Args: []string{"message", device, "0", text}, Timeout: timeout,
	})
	return err
}

func (m *Mapper) dmsetup(ctx context.Context, volume string, args ...string) error {
	_, err := m.run.Run(ctx, command.Command{Volume: volume, Name: "dmsetup", Args: args})
	return err
}
