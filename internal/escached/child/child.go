// Package child does kernel work that may block for ever in a child process of our own binary: writes to sysfs and direct
// I/O on replicated devices. A thread of the service that got stuck there could never be given up; a child can.
//
// Secrets go in on stdin, never in arguments.
package child

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"strconv"
	"strings"
	"syscall"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/escache/escache-csi/internal/command"
	"github.com/escache/escache-csi/internal/escached/cache/writecache"
)

// Verb is the hidden subcommand of the binary that leads to Main.
const Verb = "child"

const (
	opSysfs = "sysfs-write"
	opRead  = "read"
	opWrite = "write"
	opDirty = "dirty"
)

// Main runs one operation: sysfs-write PATH | read DEVICE OFFSET BYTES | write DEVICE OFFSET | dirty DEVICE OFFSET.
func Main(args []string, stdin io.Reader, stdout io.Writer) error {
	if len(args) < 2 {
		return errors.New("child: an operation and a path are needed; this command is escached's own")
	}
	var nums []int64
	for _, a := range args[2:] {
		n, err := strconv.ParseInt(a, 10, 64)
		if err != nil {
			return fmt.Errorf("child: %w", err)
		}
		nums = append(nums, n)
	}
	path := args[1]
	switch op := args[0]; {
	case op == opSysfs && len(nums) == 0:
		return writeSysfs(path, stdin)
	case op == opRead && len(nums) == 2:
		return withDevice(path, os.O_RDONLY, func(f *os.File) error {
			buf := aligned(nums[1])
			if _, err := f.ReadAt(buf, nums[0]); err != nil {
				return err
			}
			_, err := stdout.Write(buf)
			return err
		})
	case op == opWrite && len(nums) == 1:
		return writeDevice(path, nums[0], stdin)
	case op == opDirty && len(nums) == 1:
		return withDevice(path, os.O_RDONLY, func(f *os.File) error {
			n, err := writecache.CountDirty(directReader{f}, nums[0])
			if err == nil {
				_, err = fmt.Fprintln(stdout, n)
			}
			return err
		})
	default:
		return fmt.Errorf("child: no operation %q with %d numbers", op, len(nums))
	}
}

func writeSysfs(path string, stdin io.Reader) error {
	if !strings.HasPrefix(path, "/sys/") || strings.Contains(path, "..") {
		return fmt.Errorf("child: %s is not below /sys", path)
	}
	data, err := io.ReadAll(io.LimitReader(stdin, 64<<10))
	if err != nil {
		return err
	}
	fd, err := unix.Open(path, unix.O_WRONLY|unix.O_CLOEXEC, 0)
	if err != nil {
		return errnoError(path, err)
	}
	defer func() { _ = unix.Close(fd) }()
	// One write, never repeated: to krbd each one is a command.
	if _, err := unix.Write(fd, data); err != nil {
		return errnoError(path, err)
	}
	return nil
}

// errnoError prints the number, which the parent reads back.
func errnoError(path string, err error) error {
	if errno, ok := errors.AsType[syscall.Errno](err); ok {
		return fmt.Errorf("%s%d writing %s: %w", errnoPrefix, int(errno), path, errno)
	}
	return err
}

const errnoPrefix = "errno="

func writeDevice(path string, offset int64, stdin io.Reader) error {
	data, err := io.ReadAll(io.LimitReader(stdin, 16<<20))
	if err != nil {
		return err
	}
	if len(data) == 0 || len(data)%writecache.BlockBytes != 0 {
		return fmt.Errorf("child: %d bytes are not whole blocks", len(data))
	}
	buf := aligned(int64(len(data)))
	copy(buf, data)
	return withDevice(path, os.O_WRONLY|unix.O_DSYNC, func(f *os.File) error {
		_, err := f.WriteAt(buf, offset)
		return err
	})
}

// withDevice opens past the page cache, which knows nothing of what DRBD writes below or beside it.
func withDevice(path string, flags int, do func(*os.File) error) error {
	f, err := os.OpenFile(path, flags|unix.O_DIRECT, 0)
	if err != nil {
		return err
	}
	return errors.Join(do(f), f.Close())
}

// aligned returns a buffer that direct I/O takes.
func aligned(n int64) []byte {
	const unit = writecache.BlockBytes
	buf := make([]byte, n+unit)
	skip := int64(-uintptr(unsafe.Pointer(&buf[0])) % unit) //nolint:gosec // an address is looked at, not used
	return buf[skip : skip+n : skip+n]
}

// directReader lets callers read into any buffer.
type directReader struct{ f *os.File }

func (d directReader) ReadAt(p []byte, off int64) (int, error) {
	buf := aligned(int64(len(p)))
	n, err := d.f.ReadAt(buf, off)
	copy(p, buf[:n])
	return n, err
}

// Client starts the children.
type Client struct{ run command.Runner }

// NewClient returns a Client that runs this very binary with run.
func NewClient(run command.Runner) *Client { return &Client{run: run} }

func (c *Client) do(ctx context.Context, volume string, query bool, timeout time.Duration, stdin []byte, args ...string) ([]byte, error) {
	res, err := c.run.Run(ctx, command.Command{
		// The running binary itself, also after the file was replaced by an upgrade.
		Volume: volume, Name: "/proc/self/exe", Args: append([]string{Verb}, args...), Stdin: stdin, Timeout: timeout, Query: query,
	})
	return res.Stdout, err
}

// WriteSysfs writes data in one call. A refusal by the kernel is returned as its syscall.Errno.
func (c *Client) WriteSysfs(ctx context.Context, volume, path string, data []byte, timeout time.Duration) error {
	_, err := c.do(ctx, volume, false, timeout, data, opSysfs, path)
	if exit, ok := errors.AsType[*command.ExitError](err); ok {
		if _, after, ok := strings.Cut(exit.Stderr, errnoPrefix); ok {
			number, _, _ := strings.Cut(after, " ")
			if n, bad := strconv.Atoi(number); bad == nil {
				return fmt.Errorf("write %s: %w", path, syscall.Errno(n))
			}
		}
	}
	return err
}

// Read returns n bytes of a device, both in whole blocks.
func (c *Client) Read(ctx context.Context, volume, device string, offset, n int64) ([]byte, error) {
	out, err := c.do(ctx, volume, true, 0, nil, opRead, device, strconv.FormatInt(offset, 10), strconv.FormatInt(n, 10))
	if err == nil && int64(len(out)) != n {
		return nil, fmt.Errorf("read %s: %d of %d bytes", device, len(out), n)
	}
	return out, err
}

// Write puts whole blocks on a device and returns when they are stable.
func (c *Client) Write(ctx context.Context, volume, device string, offset int64, data []byte) error {
	_, err := c.do(ctx, volume, false, 0, data, opWrite, device, strconv.FormatInt(offset, 10))
	return err
}

// CountDirty reads the cache's metadata at offset and returns the dirty bytes.
func (c *Client) CountDirty(ctx context.Context, volume, device string, offset int64) (int64, error) {
	out, err := c.do(ctx, volume, true, time.Minute, nil, opDirty, device, strconv.FormatInt(offset, 10))
	if err != nil {
		return 0, err
	}
	n, err := strconv.ParseInt(strings.TrimSpace(string(out)), 10, 64)
	if err != nil {
		return 0, fmt.Errorf("dirty bytes of %s: %w", device, err)
	}
	return n, nil
}
