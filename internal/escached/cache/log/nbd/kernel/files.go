package kernel

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/escache/escache-csi/internal/escached/listing"
)

const sectorBytes = 512

// files are where the kernel shows its devices.
type files struct{ sys, dev string }

// Found is a device that is connected.
type Found struct {
	Index int
	Bytes int64
}

// Path is the device's file.
func Path(index int) string { return fmt.Sprintf("/dev/nbd%d", index) }

// Find finds the device of a backend. It asks nobody, and so does not wait.
func (d *Driver) Find(backend string) (found Found, there bool, err error) {
	all, err := d.files.all()
	found, there = all[backend]
	return found, there, err
}

// All returns all devices that are connected and have a backend's name, by that name.
func All() (map[string]Found, error) { return files{sys: "/sys/block"}.all() }

func (f files) all() (map[string]Found, error) {
	devices, err := listing.Names(f.sys)
	if err != nil {
		return nil, fmt.Errorf("look for NBD devices: %w", err)
	}
	all := map[string]Found{}
	for _, device := range devices {
		number, is := strings.CutPrefix(device, "nbd")
		if !is {
			continue
		}
		name, err := os.ReadFile(filepath.Join(f.sys, device, "backend"))
		if errors.Is(err, fs.ErrNotExist) || errors.Is(err, unix.ENODEV) {
			continue // it was disconnected just now
		}
		if err != nil {
			return nil, fmt.Errorf("read an NBD device's backend: %w", err)
		}
		index, err := strconv.Atoi(number)
		if err != nil {
			continue
		}
		sectors, err := f.number(index, "size")
		if err != nil {
			return nil, err
		}
		all[strings.TrimSuffix(string(name), "\n")] = Found{Index: index, Bytes: sectors * sectorBytes}
	}
	return all, nil
}

func (f files) number(index int, name string) (int64, error) {
	text, err := os.ReadFile(filepath.Join(f.sys, fmt.Sprintf("nbd%d", index), name))
	if err != nil {
		return 0, fmt.Errorf("read the %s of nbd%d: %w", name, index, err)
	}
	n, err := strconv.ParseInt(strings.TrimSpace(string(text)), 10, 64)
	if err != nil {
		return 0, fmt.Errorf("read the %s of nbd%d: %w", name, index, err)
	}
	return n, nil
}

// WithoutScheduler takes the I/O scheduler from a device: each request would cost more, and it gains nothing.
func (d *Driver) WithoutScheduler(index int) error {
	path := filepath.Join(d.files.sys, fmt.Sprintf("nbd%d", index), "queue", "scheduler")
	if err := os.WriteFile(path, []byte("none"), 0); err != nil {
		return fmt.Errorf("take the scheduler from nbd%d: %w", index, err)
	}
	return nil
}

// touch opens a device and closes it.
func (f files) touch(index int) error {
	path := filepath.Join(f.dev, fmt.Sprintf("nbd%d", index))
	fd, err := unix.Open(path, unix.O_RDONLY|unix.O_CLOEXEC, 0)
	if err != nil {
		return fmt.Errorf("open %s: %w", path, err)
	}
	if err := unix.Close(fd); err != nil {
		return fmt.Errorf("close %s: %w", path, err)
	}
	return nil
}
