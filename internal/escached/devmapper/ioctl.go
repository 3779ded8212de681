package devmapper

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"strings"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"
)

// Reads are frequent, so they go to the kernel directly: on a host that is short of CPU, starting
// dmsetup takes longer than a poll may take. The interface is that of linux/dm-ioctl.h, which is
// stable; the numbers are in host order.
const (
	controlPath = "/dev/mapper/control"

	ioctlBase    = 3<<30 | headBytes<<16 | 0xfd<<8
	listDevices  = 2
	tableStatus  = 12
	listVersions = 13
	headBytes    = 312
	// emptyBytes is the size of an answer without data, such as that of a device that has no table
	// yet: a head without its padding.
	emptyBytes    = 305
	versionMajor  = 4
	flagSuspended = 1 << 1
	flagTable     = 1 << 4
	flagFull      = 1 << 8
	flagNoFlush   = 1 << 11

	offDataSize, offDataStart, offTargets, offOpen, offFlags, offName = 12, 16, 20, 24, 28, 48

	nameBytes = 128
	// specBytes is the size of a dm_target_spec: start, length, status, next, type.
	specBytes  = 40
	offSpecLen = 8
	offType    = 24
	// nameOffset is where the name begins in a dm_name_list, after device number and next.
	nameOffset = 12
	// versionNameOffset is the same in a dm_target_versions, after next and three numbers.
	versionNameOffset = 16

	firstReply = 16 << 10
	maxReply   = 16 << 20
	// askTimeout bounds a round of questions. None of them waits for I/O, so one that takes longer
	// is stuck in the kernel.
	askTimeout = 5 * time.Second
)

var (
	errGone      = errors.New("no such device")
	errNoControl = errors.New("the kernel's device-mapper cannot be reached")
	endian       = binary.NativeEndian
)

// control asks device-mapper. One round of questions runs at a time, off the caller's goroutine: if
// one gets stuck in the kernel, the others time out instead of getting stuck too.
type control struct {
	path string
	slot chan struct{}
	ask  func(fd int, number uintptr, buf []byte) error
}

func newControl() *control {
	return &control{path: controlPath, slot: make(chan struct{}, 1), ask: ioctl}
}

func ioctl(fd int, number uintptr, buf []byte) error {
	//nolint:gosec // the kernel's interface takes a pointer
	_, _, errno := unix.Syscall(unix.SYS_IOCTL, uintptr(fd), ioctlBase|number, uintptr(unsafe.Pointer(&buf[0])))
	switch {
	case errno == unix.ENXIO:
		return errGone
	case errno != 0:
		return errno
	}
	return nil
}

// with opens the control device for a round of questions.
func (c *control) with(ctx context.Context, do func(fd int) error) error {
	ctx, cancel := context.WithTimeout(ctx, askTimeout)
	defer cancel()
	late := func() error { return fmt.Errorf("%w: no answer in time: %w", errNoControl, ctx.Err()) }
	select {
	case c.slot <- struct{}{}:
	case <-ctx.Done():
		return late()
	}
	done := make(chan error, 1)
	go func() {
		defer func() { <-c.slot }()
		fd, err := unix.Open(c.path, unix.O_RDWR|unix.O_CLOEXEC, 0)
		if err != nil {
			done <- fmt.Errorf("%w: %s: %w", errNoControl, c.path, err)
			return
		}
		defer func() { _ = unix.Close(fd) }()
		done <- do(fd)
	}()
	select {
	case err := <-done:
		return err
	case <-ctx.Done():
		return late()
	}
}

// reply asks one question and returns the whole answer: head and data.
func (c *control) reply(fd int, number uintptr, name string, flags uint32) ([]byte, error) {
	if len(name) >= nameBytes {
		return nil, fmt.Errorf("device-mapper: the name %q is too long", name)
	}
	for size := firstReply; size <= maxReply; size *= 4 {
		buf := make([]byte, size)
		endian.PutUint32(buf, versionMajor)
		endian.PutUint32(buf[offDataSize:], uint32(size))
		endian.PutUint32(buf[offDataStart:], headBytes)
		endian.PutUint32(buf[offFlags:], flags)
		copy(buf[offName:offName+nameBytes], name)
		if err := c.ask(fd, number, buf); err != nil {
			return nil, err
		}
		if endian.Uint32(buf[offFlags:])&flagFull == 0 {
			return buf, nil
		}
	}
	return nil, errors.New("device-mapper: the answer is too long")
}

// names lists the devices whose name has the prefix.
func (c *control) names(fd int, prefix string) ([]string, error) {
	buf, err := c.reply(fd, listDevices, "", 0)
	if err != nil {
		return nil, err
	}
	var out []string
	err = entries(buf, 8, nameOffset, func(entry []byte, name string) {
		if endian.Uint64(entry) != 0 && strings.HasPrefix(name, prefix) { // number 0: there is no device at all
			out = append(out, name)
		}
	})
	return out, err
}

// entries walks a list in an answer's data. An entry has the distance to the next one at nextAt,
// and its name at nameAt.
func entries(buf []byte, nextAt, nameAt int, visit func(entry []byte, name string)) error {
	data, err := payload(buf)
	if err != nil {
		return err
	}
	for len(data) > nameAt {
		name, _, ended := bytes.Cut(data[nameAt:], []byte{0})
		if !ended {
			return errors.New("device-mapper: an answer ends in a name")
		}
		visit(data, string(name))
		next := int(endian.Uint32(data[nextAt:]))
		if next == 0 {
			return nil
		}
		if next < nameAt || next > len(data) {
			return errors.New("device-mapper: a list in an answer leads out of it")
		}
		data = data[next:]
	}
	return nil
}

// payload returns the data behind an answer's head.
func payload(buf []byte) ([]byte, error) {
	start := int(endian.Uint32(buf[offDataStart:]))
	end := int(endian.Uint32(buf[offDataSize:]))
	if end == emptyBytes {
		return nil, nil
	}
	if start < headBytes || start > end || end > len(buf) {
		return nil, fmt.Errorf("device-mapper: an answer has a wrong head: data from %d to %d of %d", start, end, len(buf))
	}
	return buf[start:end], nil
}

// device reads one device. there is false if it is gone. One that changes meanwhile is shown without
// a table.
func (c *control) device(fd int, name string) (d Device, there bool, err error) {
	table, err := c.target(fd, name, flagTable|flagNoFlush)
	if errors.Is(err, errGone) {
		return d, false, nil
	}
	if err != nil {
		return d, false, fmt.Errorf("table of %s: %w", name, err)
	}
	d, err = c.target(fd, name, flagNoFlush)
	if errors.Is(err, errGone) {
		return d, false, nil
	}
	if err != nil {
		return d, false, fmt.Errorf("status of %s: %w", name, err)
	}
	if d.Target != table.Target { // it got a table, or was replaced, between the two answers
		return Device{Open: d.Open, Suspended: d.Suspended}, true, nil
	}
	d.Table, d.Sectors = table.Table, table.Sectors
	return d, true, nil
}

// target asks for a device's table or its status, and leaves the answer in both Table and Status.
func (c *control) target(fd int, name string, flags uint32) (d Device, err error) {
	buf, err := c.reply(fd, tableStatus, name, flags)
	if err != nil {
		return d, err
	}
	data, err := payload(buf)
	if err != nil {
		return d, err
	}
	d.Open = int(int32(endian.Uint32(buf[offOpen:])))
	d.Suspended = endian.Uint32(buf[offFlags:])&flagSuspended != 0
	if endian.Uint32(buf[offTargets:]) != 1 || len(data) < specBytes {
		return d, nil
	}
	kind, _, _ := bytes.Cut(data[offType:specBytes], []byte{0})
	text, _, ended := bytes.Cut(data[specBytes:], []byte{0})
	if !ended {
		return d, errors.New("device-mapper: the answer has no end")
	}
	d.Target, d.Sectors = string(kind), int64(endian.Uint64(data[offSpecLen:]))
	d.Table, d.Status = string(text), string(text)
	return d, nil
}

// version returns the version of a target type, or "" if it is not loaded.
func (c *control) version(fd int, name string) (string, error) {
	buf, err := c.reply(fd, listVersions, "", 0)
	if err != nil {
		return "", err
	}
	found := ""
	err = entries(buf, 0, versionNameOffset, func(entry []byte, kind string) {
		if kind == name {
			found = fmt.Sprintf("%d.%d.%d", endian.Uint32(entry[4:]), endian.Uint32(entry[8:]), endian.Uint32(entry[12:]))
		}
	})
	return found, err
}
