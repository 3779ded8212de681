// Package krbd maps RBD images with the kernel's RBD client. Each map is a Ceph client of its own
// and has the image's exclusive lock, so putting that client on Ceph's blocklist stops this map and
// no other. A map that is made read-only has no lock, and cannot write.
package krbd

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/escache/escache-csi/internal/command"
	"github.com/escache/escache-csi/internal/escached/listing"
)

// Reasons for which an image cannot be mapped or unmapped.
var (
	ErrInUse       = errors.New("another client holds the image's exclusive lock")
	ErrNotFound    = errors.New("no such image")
	ErrUnavailable = errors.New("Ceph does not answer")  //nolint:staticcheck // a name
	ErrRefused     = errors.New("Ceph refuses the user") //nolint:staticcheck // a name
	ErrBusy        = errors.New("the mapped image is in use")
)

const (
	// options makes each map a client of its own that must get the lock. krbd breaks the lock of a
	// dead holder after 30 s. A shorter lock_timeout leaves that decision to csi-controller, which
	// fences the holder first.
	options = "exclusive,noshare,lock_timeout=20,mount_timeout=15"
	// filesystemOptions also has the kernel cut discards where Ceph's objects begin, and discard whole objects only.
	// By default it cuts them anywhere. Each part then discards the end of one object and the beginning of the
	// next, and no object goes. If an image's objects are smaller, the kernel takes their size.
	filesystemOptions = options + ",alloc_size=4194304"
	// readOnlyOptions makes a map that cannot write. It neither locks nor watches the image.
	readOnlyOptions = "ro,noshare,mount_timeout=15"
	// mapTimeout is longer than the kernel's own limits together.
	mapTimeout   = 50 * time.Second
	unmapTimeout = 30 * time.Second
)

// SysfsWriter writes to sysfs with a time limit. If the kernel refuses, the error is a
// syscall.Errno.
type SysfsWriter interface {
	WriteSysfs(ctx context.Context, volume, path string, data []byte, timeout time.Duration) error
}

// Config says how to reach the cluster. The files are read at each map.
type Config struct {
	Conf    string
	Keyring string
	User    string
	// Sys is where sysfs is mounted, usually "/sys".
	Sys string
}

// Client maps and unmaps images.
type Client struct {
	cfg   Config
	write SysfsWriter
	dial  func(ctx context.Context, network, address string) (net.Conn, error)
	// log returns a function that reads what the kernel's log has got since.
	log func() (func() (string, error), error)
}

// New returns a client of one cluster.
func New(cfg Config, write SysfsWriter) *Client {
	return &Client{cfg: cfg, write: write, dial: (&net.Dialer{Timeout: 2 * time.Second}).DialContext, log: kernelLog}
}

// Device is one mapped image.
type Device struct {
	ID      int
	Pool    string
	Image   string
	ImageID string
	Bytes   int64
	// Number is the device's MAJOR:MINOR, as device-mapper's tables name it.
	Number string
	// ClientAddress is this map's Ceph client, "IP:0/NONCE", as `ceph osd blocklist` takes it.
	ClientAddress string
	// ReadOnly: it was made by MapReadOnly.
	ReadOnly bool
}

// Path returns the path of the block device.
func (d Device) Path() string { return "/dev/rbd" + strconv.Itoa(d.ID) }

// Map maps an image exclusively and returns its device. The caller must first unmap what an
// earlier, unfinished call has left.
func (c *Client) Map(ctx context.Context, volume, pool, image string) (Device, error) {
	return c.mapWith(ctx, volume, pool, image, options)
}

// MapForFilesystem is Map for a device that a filesystem uses without a cache: what it discards comes back to Ceph.
func (c *Client) MapForFilesystem(ctx context.Context, volume, pool, image string) (Device, error) {
	return c.mapWith(ctx, volume, pool, image, filesystemOptions)
}

// MapReadOnly is Map for a device that nobody can write to. Other clients may have the image's lock.
func (c *Client) MapReadOnly(ctx context.Context, volume, pool, image string) (Device, error) {
	return c.mapWith(ctx, volume, pool, image, readOnlyOptions)
}

func (c *Client) mapWith(ctx context.Context, volume, pool, image, options string) (Device, error) {
	mons, err := monitors(ctx, c.cfg.Conf, c.cfg.User)
	if err != nil {
		return Device{}, err
	}
	key, err := secret(c.cfg.Keyring, c.cfg.User)
	if err != nil {
		return Device{}, err
	}
	line := fmt.Sprintf("%s name=%s,secret=%s,%s %s %s -", strings.Join(mons, ","), c.cfg.User, key, options, pool, image)
	if err := c.write.WriteSysfs(ctx, volume, c.bus("add_single_major"), []byte(line), mapTimeout); err != nil {
		return Device{}, fmt.Errorf("map %s/%s: %w", pool, image, c.explain(ctx, mons, err))
	}
	devices, err := c.Find(pool, image)
	if err != nil {
		return Device{}, err
	}
	if len(devices) == 0 {
		return Device{}, fmt.Errorf("map %s/%s: the kernel reports success, but shows no device", pool, image)
	}
	return devices[len(devices)-1], nil
}

// explain wraps err with the reason that the kernel's errno means here.
func (c *Client) explain(ctx context.Context, mons []string, err error) error {
	var errno syscall.Errno
	var timeout *command.TimeoutError
	switch {
	case errors.As(err, &timeout):
		return fmt.Errorf("%w: %w", ErrUnavailable, err)
	case !errors.As(err, &errno):
		return err
	}
	switch errno { //nolint:exhaustive // all others are left as they are
	case syscall.EROFS, syscall.EBUSY:
		return fmt.Errorf("%w and does not release it: %w", ErrInUse, err)
	case syscall.ENOENT:
		return fmt.Errorf("%w; check the names of pool and image: %w", ErrNotFound, err)
	case syscall.EPERM, syscall.EACCES:
		return fmt.Errorf("%w client.%s: check its key and caps: %w", ErrRefused, c.cfg.User, err)
	case syscall.ETIMEDOUT:
		// Either no monitor answered, or all did and the lock's holder did not.
		if c.reachable(ctx, mons) {
			return fmt.Errorf("%w and does not answer; put that client on Ceph's blocklist if it must release the image: %w", ErrInUse, err)
		}
		return fmt.Errorf("%w: %w", ErrUnavailable, err)
	case syscall.EIO, syscall.ECONNREFUSED, syscall.EHOSTUNREACH, syscall.ENETUNREACH, syscall.EINTR, syscall.ESHUTDOWN:
		return fmt.Errorf("%w: %w", ErrUnavailable, err)
	}
	return err
}

func (c *Client) reachable(ctx context.Context, mons []string) bool {
	return slices.ContainsFunc(mons, func(mon string) bool {
		conn, err := c.dial(ctx, "tcp", mon)
		if err != nil {
			return false
		}
		_ = conn.Close()
		return true
	})
}

// Unmap unmaps a device. It returns ErrBusy while the device is open, and nil if there is none.
func (c *Client) Unmap(ctx context.Context, volume string, id int) error {
	err := c.write.WriteSysfs(ctx, volume, c.bus("remove_single_major"), []byte(strconv.Itoa(id)), unmapTimeout)
	switch {
	case errors.Is(err, syscall.ENOENT):
		return nil
	case errors.Is(err, syscall.EBUSY):
		return fmt.Errorf("unmap rbd%d: %w", id, ErrBusy)
	case err != nil:
		return fmt.Errorf("unmap rbd%d: %w", id, err)
	}
	return nil
}

// Find returns escached's maps of an image, sorted by ID. An empty name matches any. Maps that
// others have made, without a client of their own, are not listed.
func (c *Client) Find(pool, image string) ([]Device, error) {
	dirs, err := listing.Names(c.bus("devices"))
	if err != nil {
		return nil, fmt.Errorf("list rbd devices: %w", err)
	}
	var out []Device
	for _, dir := range dirs {
		d, ours, err := readDevice(c.bus(filepath.Join("devices", dir)))
		if errors.Is(err, os.ErrNotExist) || errors.Is(err, syscall.ENODEV) {
			continue // unmapped meanwhile
		}
		if err != nil {
			return nil, fmt.Errorf("list rbd devices: %w", err)
		}
		if ours && (pool == "" || d.Pool == pool) && (image == "" || d.Image == image) {
			out = append(out, d)
		}
	}
	slices.SortFunc(out, func(a, b Device) int { return a.ID - b.ID })
	return out, nil
}

func readDevice(dir string) (d Device, ours bool, err error) {
	var errs []error
	get := func(name string) string {
		data, err := os.ReadFile(filepath.Join(dir, name))
		errs = append(errs, err)
		return strings.TrimSpace(string(data))
	}
	number := func(text string) int64 {
		n, err := strconv.ParseInt(text, 10, 64)
		errs = append(errs, err)
		return n
	}
	d = Device{
		ID: int(number(filepath.Base(dir))), Pool: get("pool"), Image: get("name"), ImageID: get("image_id"),
		Bytes: number(get("size")), ClientAddress: get("client_addr"),
	}
	config := optionsOf(get("config_info"))
	d.Number = get(filepath.Join("../../../../block", "rbd"+strconv.Itoa(d.ID), "dev"))
	d.ReadOnly = slices.Contains(config, "ro")
	ours = get("current_snap") == "-" && slices.Contains(config, "noshare") && (d.ReadOnly || slices.Contains(config, "exclusive"))
	return d, ours, errors.Join(errs...)
}

// optionsOf returns the options in a text of config_info: MONITORS OPTION,OPTION,… POOL IMAGE SNAPSHOT.
func optionsOf(config string) []string {
	const at = 1
	if fields := strings.Fields(config); len(fields) > at {
		return strings.Split(fields[at], ",")
	}
	return nil
}

// MayMap reports whether a command that hangs in the kernel is one of Map or Unmap. Then the image may be
// mapped later, although Find does not list it now.
func MayMap(stuck *command.StuckError) bool {
	return stuck != nil && strings.Contains(stuck.Command, "/"+busDir+"/")
}

// busDir is krbd's directory in sysfs.
const busDir = "bus/rbd"

// Available reports whether the running kernel has krbd.
func (c *Client) Available() bool {
	_, err := os.Stat(c.bus("add_single_major"))
	return err == nil
}

func (c *Client) bus(name string) string { return filepath.Join(c.cfg.Sys, busDir, name) }
