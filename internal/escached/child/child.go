// Package child does kernel work that may block for ever: writes to sysfs and direct I/O on
// replicated devices. It runs that work in a child process of escached's own binary. The service
// can stop waiting for a stuck child, but not for a stuck thread of its own. Children that change
// something are marked, so that the next escached knows of those that are still stuck.
//
// Secrets are passed on stdin, never as arguments.
package child

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/escache/escache-csi/internal/command"
)

// Verb is the hidden subcommand of the binary that runs Main.
const Verb = "child"

const (
	opSysfs = "sysfs-write"
	opRead  = "read"
	opWrite = "write"
	opQuery = "query"
)

// blockBytes is the unit of direct I/O: sizes, offsets and buffers are multiples of it.
const blockBytes = 4096

// Query reads a device past the page cache and prints its result to out. Reads may have any size,
// and offsets are whole blocks.
type Query = func(device io.ReaderAt, out io.Writer) error

// Main runs one operation: sysfs-write PATH | read DEVICE OFFSET... | write DEVICE OFFSET |
// query DEVICE NAME, where NAME is one of the queries.
func Main(args []string, queries map[string]Query, stdin io.Reader, stdout io.Writer) error {
	if len(args) < 2 {
		return errors.New("child: needs an operation and a path; only escached itself runs this command")
	}
	op, path, rest := args[0], args[1], args[2:]
	if op == opQuery {
		return runQuery(path, rest, queries, stdout)
	}
	var nums []int64
	for _, a := range rest {
		n, err := strconv.ParseInt(a, 10, 64)
		if err != nil {
			return fmt.Errorf("child: %w", err)
		}
		nums = append(nums, n)
	}
	switch {
	case op == opSysfs && len(nums) == 0:
		return writeSysfs(path, stdin)
	case op == opRead && len(nums) > 0:
		return withDevice(path, os.O_RDONLY, func(f *os.File) error {
			return readBlocks(f, nums, stdout)
		})
	case op == opWrite && len(nums) == 1:
		return writeDevice(path, nums[0], stdin)
	default:
		return fmt.Errorf("child: unknown operation %q with %d numbers", op, len(nums))
	}
}

func readBlocks(f *os.File, offsets []int64, stdout io.Writer) error {
	buf := aligned(blockBytes)
	for _, offset := range offsets {
		if _, err := f.ReadAt(buf, offset); err != nil {
			return err
		}
		if _, err := stdout.Write(buf); err != nil {
			return err
		}
	}
	return nil
}

func runQuery(path string, names []string, queries map[string]Query, stdout io.Writer) error {
	if len(names) != 1 || queries[names[0]] == nil {
		return fmt.Errorf("child: unknown query %q", names)
	}
	return withDevice(path, os.O_RDONLY, func(f *os.File) error {
		return queries[names[0]](directReader{f}, stdout)
	})
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
	// One write, never repeated: krbd takes each write as a command.
	if _, err := unix.Write(fd, data); err != nil {
		return errnoError(path, err)
	}
	return nil
}

// errnoError puts the number of an errno into the message, for WriteSysfs to parse.
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
	if len(data) == 0 || len(data)%blockBytes != 0 {
		return fmt.Errorf("child: %d bytes are not whole blocks", len(data))
	}
	buf := aligned(int64(len(data)))
	copy(buf, data)
	return withDevice(path, os.O_WRONLY|unix.O_DSYNC, func(f *os.File) error {
		_, err := f.WriteAt(buf, offset)
		return err
	})
}

// withDevice opens a device past the page cache, which does not see what DRBD writes below it.
func withDevice(path string, flags int, do func(*os.File) error) error {
	f, err := os.OpenFile(path, flags|unix.O_DIRECT, 0)
	if err != nil {
		return err
	}
	return errors.Join(do(f), f.Close())
}

// aligned returns a buffer of n bytes that is aligned for direct I/O.
func aligned(n int64) []byte {
	const unit = blockBytes
	buf := make([]byte, n+unit)
	skip := int64(-uintptr(unsafe.Pointer(&buf[0])) % unit) //nolint:gosec // the address is only computed with
	return buf[skip : skip+n : skip+n]
}

// directReader does direct I/O into buffers that are not aligned.
type directReader struct{ f *os.File }

func (d directReader) ReadAt(p []byte, off int64) (int, error) {
	buf := aligned(int64(len(p)))
	n, err := d.f.ReadAt(buf, off)
	copy(p, buf[:n])
	return n, err
}

// Client runs Main in child processes.
type Client struct{ run command.Runner }

// NewClient returns a Client that runs this binary with run.
func NewClient(run command.Runner) *Client { return &Client{run: run} }

func (c *Client) do(ctx context.Context, volume string, query bool, timeout time.Duration, stdin []byte, args ...string) ([]byte, error) {
	res, err := c.run.Run(ctx, command.Command{
		// This is the running binary even if an upgrade has replaced the file.
		Volume: volume, Name: "/proc/self/exe", Args: append([]string{Verb}, args...), Verb: Verb + " " + args[0], Stdin: stdin,
		Timeout: timeout, Query: query, Mark: !query,
	})
	return res.Stdout, err
}

// WriteSysfs writes data to path in one call. If the kernel refuses, the error wraps its
// syscall.Errno.
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

// Read returns the blocks of a device at some offsets, in one child. The offsets are those of whole blocks.
func (c *Client) Read(ctx context.Context, volume, device string, offsets ...int64) ([][]byte, error) {
	args := []string{opRead, device}
	for _, offset := range offsets {
		args = append(args, strconv.FormatInt(offset, 10))
	}
	out, err := c.do(ctx, volume, true, 0, nil, args...)
	if err != nil {
		return nil, err
	}
	if want := len(offsets) * blockBytes; len(out) != want {
		return nil, fmt.Errorf("read %s: %d of %d bytes", device, len(out), want)
	}
	return slices.Collect(slices.Chunk(out, blockBytes)), nil
}

// Write writes whole blocks to a device and returns when they are stable.
func (c *Client) Write(ctx context.Context, volume, device string, offset int64, data []byte) error {
	_, err := c.do(ctx, volume, false, 0, data, opWrite, device, strconv.FormatInt(offset, 10))
	return err
}

// Query runs one of Main's queries on a device and returns what it prints. A timeout of zero means
// the default of commands.
func (c *Client) Query(ctx context.Context, volume, query, device string, timeout time.Duration) ([]byte, error) {
	return c.do(ctx, volume, true, timeout, nil, opQuery, device, query)
}
