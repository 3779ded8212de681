package krbd

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"

	"golang.org/x/sys/unix"
)

// ErrNoPool means that the cluster has no pool of that name.
var ErrNoPool = errors.New("no such pool")

// Monitors returns the addresses "IP:PORT" of the monitors that maps use.
func (c *Client) Monitors(ctx context.Context) ([]string, error) {
	return monitors(ctx, c.cfg.Conf, c.cfg.User)
}

// Silent returns those of the monitors that take no connection.
func (c *Client) Silent(ctx context.Context, mons []string) []string {
	return slices.DeleteFunc(slices.Clone(mons), func(mon string) bool { return c.reachable(ctx, []string{mon}) })
}

// Reach finds out whether the kernel reaches the cluster, whether the cluster takes the user's key, and
// whether the user may look for images in the pool. It tries to map an image that does not exist, and
// writes nothing. It returns nil, ErrNoPool, or an error of Map. ErrNotFound means that all is well but
// that the kernel's log, which tells a missing pool from a missing image, could not be read. The kernel
// must have krbd.
func (c *Client) Reach(ctx context.Context, pool string) error {
	since, unread := c.log()
	image := "escache-preflight-" + strings.ToLower(rand.Text())
	device, err := c.Map(ctx, image, pool, image)
	lines := ""
	if unread == nil {
		lines, unread = since()
	}
	switch {
	case err == nil: // no name is impossible
		return c.Unmap(ctx, image, device.ID)
	case !errors.Is(err, ErrNotFound):
		return err
	case unread != nil:
		return fmt.Errorf("%w (the kernel's log: %w)", err, unread)
	case strings.Contains(lines, "pool "+pool+" does not exist"): // drivers/block/rbd.c, do_rbd_add
		return fmt.Errorf("%w: %s", ErrNoPool, pool)
	}
	return nil
}

// kernelLog returns a function that reads what the kernel's log has got since.
func kernelLog() (since func() (string, error), err error) {
	fd, err := unix.Open("/dev/kmsg", unix.O_RDONLY|unix.O_NONBLOCK|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil, &os.PathError{Op: "open", Path: "/dev/kmsg", Err: err}
	}
	if _, err := unix.Seek(fd, 0, unix.SEEK_END); err != nil {
		_ = unix.Close(fd)
		return nil, &os.PathError{Op: "seek", Path: "/dev/kmsg", Err: err}
	}
	return func() (string, error) {
		defer func() { _ = unix.Close(fd) }()
		var lines strings.Builder
		record := make([]byte, 8<<10) // the kernel's longest record
		for {
			n, err := unix.Read(fd, record)
			switch {
			case errors.Is(err, unix.EAGAIN):
				return lines.String(), nil
			case errors.Is(err, unix.EPIPE): // records were overwritten before they were read; the next read goes on
			case err != nil:
				return "", &os.PathError{Op: "read", Path: "/dev/kmsg", Err: err}
			default:
				lines.Write(record[:n])
			}
		}
	}, nil
}
