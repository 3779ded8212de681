package engine

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"regexp"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/escache/escache-csi/internal/escached/cache/log/nbd/kernel"
	"github.com/escache/escache-csi/internal/escached/devmapper"
)

// HostKernel is the running kernel.
type HostKernel struct {
	// Program is the path of the program that serves volumes. Without it this engine cannot run.
	Program string
}

var _ Kernel = HostKernel{}

// version is that of the engine: of the format of its disks.
const version = "1"

// Version implements Kernel.
func (k HostKernel) Version() (string, error) {
	if _, err := os.Stat(k.Program); err != nil {
		return "", fmt.Errorf("the program of the cache engine log is missing; it comes with escached: %w", err)
	}
	_, err := os.Stat("/sys/module/nbd")
	if errors.Is(err, fs.ErrNotExist) {
		return "", nil
	}
	if err != nil {
		return "", fmt.Errorf("look for the NBD driver: %w", err)
	}
	return version, nil
}

// Connected implements Kernel.
func (HostKernel) Connected() (map[string]kernel.Found, error) { return kernel.All() }

// Disconnect implements Kernel.
func (HostKernel) Disconnect(ctx context.Context, index int) error {
	driver, err := kernel.Open()
	if err != nil {
		return err
	}
	return errors.Join(driver.Disconnect(ctx, index), driver.Close())
}

var isNumber = regexp.MustCompile(`^\d+:\d+$`)

// Number implements Kernel.
func (HostKernel) Number(path string) (string, error) {
	if isNumber.MatchString(path) {
		return path, nil
	}
	var st unix.Stat_t
	if err := unix.Stat(path, &st); err != nil {
		return "", fmt.Errorf("look at %s: %w", path, err)
	}
	if st.Mode&unix.S_IFMT != unix.S_IFBLK {
		return "", fmt.Errorf("%s is no block device", path)
	}
	return fmt.Sprintf("%d:%d", unix.Major(st.Rdev), unix.Minor(st.Rdev)), nil
}

// Bytes implements Kernel. It opens nothing: that could wait for the device's I/O.
func (k HostKernel) Bytes(path string) (int64, error) {
	number, err := k.Number(path)
	if err != nil {
		return 0, err
	}
	text, err := os.ReadFile("/sys/dev/block/" + number + "/size")
	if err != nil {
		return 0, fmt.Errorf("read the size of %s: %w", path, err)
	}
	sectors, err := strconv.ParseInt(strings.TrimSpace(string(text)), 10, 64)
	if err != nil {
		return 0, fmt.Errorf("read the size of %s: %w", path, err)
	}
	return sectors * devmapper.SectorBytes, nil
}

// Boot returns what tells this start of the host from others.
func Boot() (string, error) {
	text, err := os.ReadFile("/proc/sys/kernel/random/boot_id")
	if err != nil {
		return "", fmt.Errorf("read this boot's id: %w", err)
	}
	return strings.TrimSpace(string(text)), nil
}
