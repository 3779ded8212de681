// Package process serves the device of one volume: it opens the log and the image, gives the kernel sockets, answers the kernel's requests
// and those of escached, and writes back. cmd/escache-cache is one such process. It knows of no other volume, and neither of Ceph's cluster
// nor of Kubernetes.
//
// When it dies, or is replaced by another version, users wait: the kernel keeps the device, and repeats on the successor's connections what
// was not answered.
package process

import (
	"errors"
	"fmt"
	"os"
	"regexp"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/escache/escache-csi/internal/escached/cache"
	"github.com/escache/escache-csi/internal/escached/cache/log/control"
	"github.com/escache/escache-csi/internal/escached/cache/log/device"
	"github.com/escache/escache-csi/internal/escached/cache/log/record"
)

// Config says which volume a process serves.
type Config struct {
	// Name is the volume's on this host.
	Name string
	// Disk is the cache's disk, a DRBD device. The log begins at cache.HeaderBytes.
	Disk string
	// Origin is the path of the image's block device, or its number, MAJOR:MINOR.
	Origin string
	// Bytes is the size of the image. The device is smaller if it is not a multiple of 4 KiB, and larger if it has been resized since.
	Bytes int64
	// Identity is the image whose cache must be on the disk.
	Identity cache.Identity
	// Socket is where the process is controlled.
	Socket string
	// Memory is a file on tmpfs, for what was answered and is not in the log yet. It locks the volume on this host: one process at a time
	// has it. Beside it is a file with the options in effect.
	Memory string
	// Options are those of a new device. One that goes on keeps its own.
	Options control.Options
	// AcceptLosses also opens a log that has lost acknowledged data.
	AcceptLosses bool
	Version      string
}

// Check returns an error that says which setting cannot be.
func (c Config) Check() error {
	for flag, value := range map[string]string{
		"name": c.Name, "disk": c.Disk, "origin": c.Origin, "socket": c.Socket, "memory": c.Memory,
		"pool": c.Identity.Pool, "image": c.Identity.Image, "image-id": c.Identity.ImageID,
	} {
		if value == "" || strings.ContainsAny(value, "\n\x00") {
			return fmt.Errorf("%s is %q: it needs a value of one line", flag, value)
		}
	}
	if err := CheckBytes(c.Bytes); err != nil {
		return err
	}
	return c.Options.Check()
}

// CheckBytes returns an error if a volume cannot have so many bytes.
func CheckBytes(n int64) error {
	if n < record.BlockBytes {
		return fmt.Errorf("%w: a volume of %d bytes is too small: it needs %d", control.ErrInvalid, n, record.BlockBytes)
	}
	if wholeBlocks(n) > device.MaxBytes {
		return fmt.Errorf("%w: a volume of %d bytes is too large for this engine: it takes 16 TiB; use the engine writecache",
			control.ErrInvalid, n)
	}
	return nil
}

func wholeBlocks(n int64) int64 { return n / record.BlockBytes * record.BlockBytes }

// Backend is the name under which the kernel knows a volume's device.
func Backend(name string) string { return "escache:" + name }

var deviceNumber = regexp.MustCompile(`^\d+:\d+$`)

// origin is the path of the image's device and its number.
func (c Config) origin() (path, number string, err error) {
	path = c.Origin
	if deviceNumber.MatchString(path) {
		if path, err = nodeOf(path); err != nil {
			return "", "", err
		}
	}
	info, err := os.Stat(path)
	if err != nil {
		return "", "", fmt.Errorf("look for the image: %w", err)
	}
	var stat unix.Stat_t
	if err := unix.Stat(path, &stat); err != nil {
		return "", "", fmt.Errorf("look at %s: %w", path, err)
	}
	if info.Mode()&os.ModeDevice == 0 {
		return path, "0:0", nil
	}
	return path, fmt.Sprintf("%d:%d", unix.Major(stat.Rdev), unix.Minor(stat.Rdev)), nil
}

// nodeOf returns the path that the kernel gives a block device in devtmpfs. The links in /dev/block are udev's,
// which comes later, or not at all.
func nodeOf(number string) (string, error) {
	text, err := os.ReadFile("/sys/dev/block/" + number + "/uevent")
	if err != nil {
		return "", fmt.Errorf("look for the image: %w", err)
	}
	for line := range strings.Lines(string(text)) {
		if name, found := strings.CutPrefix(strings.TrimSpace(line), "DEVNAME="); found {
			return "/dev/" + name, nil
		}
	}
	return "", fmt.Errorf("look for the image: device %s has no name in sysfs", number)
}

// ErrLosses means that the log has lost data that was acknowledged.
var ErrLosses = errors.New("the log has lost acknowledged data")
