// Package kernel gives the kernel's NBD driver the sockets of a device, over generic netlink: drivers/block/nbd.c and
// include/uapi/linux/nbd-netlink.h of Linux, 5.14 or newer.
//
// What is relied on there:
//   - When all connections of a device are lost, its requests wait for new ones as long as the dead-connection timeout says, and fail then.
//   - What was sent on a connection and not answered is repeated on another one, or a new one, when its request timeout is over, and not
//     before: closing the socket does not hasten it. The connection counts as lost then. The request does not fail.
//   - Reconfigure puts a socket in the place of a lost one. If no connection is lost, it drops the socket and reports success.
//   - The kernel keeps a backend's name until the device is disconnected, and refuses to reconfigure the device for another one.
package kernel

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"time"

	"github.com/mdlayher/genetlink"
	"github.com/mdlayher/netlink"
	"golang.org/x/sys/unix"
)

const (
	// RequestTimeout is how long the kernel waits for an answer before it repeats a request on another connection: as long as a device
	// stands still after its process was killed, at least. Requests that take longer are repeated more than once.
	RequestTimeout = 5 * time.Second
	// DeadTimeout is how long requests wait for a new connection before they fail: as good as for ever. A device without a process is
	// like a disk that does not answer, and not like one that is broken.
	DeadTimeout = 10 * 365 * 24 * time.Hour
	// blockBytes is the device's logical block.
	blockBytes = 4096
	// callTimeout bounds a call. All users of generic netlink share one lock in the kernel, and DRBD may hold it.
	callTimeout = 30 * time.Second
)

var (
	// ErrNoDriver means that the kernel has no NBD driver.
	ErrNoDriver = errors.New("the kernel has no NBD driver (load the module nbd)")
	// ErrNotConnected means that the kernel has no connected device of that number and backend.
	ErrNotConnected = errors.New("the device is not connected")
	// ErrOpen means that somebody has the device open.
	ErrOpen = errors.New("the device is open")
)

// Device is what a new device is to be.
type Device struct {
	// Backend names what the device is of. It is a single line.
	Backend string
	Bytes   int64
	// Flags are those of the server: nbd.Flags.
	Flags uint64
	// Sockets are descriptors of this process. The kernel has its own reference to them.
	Sockets []int
}

// Driver is the kernel's driver. Its methods may be called at the same time.
type Driver struct {
	conn   *genetlink.Conn
	family genetlink.Family
	files  files
}

// Open finds the driver. The kernel loads its module if it can.
func Open() (*Driver, error) {
	conn, err := genetlink.Dial(nil)
	if err != nil {
		return nil, fmt.Errorf("open generic netlink: %w", err)
	}
	return newDriver(conn, files{sys: "/sys/block", dev: "/dev"})
}

func newDriver(conn *genetlink.Conn, f files) (*Driver, error) {
	family, err := conn.GetFamily(familyName)
	if errors.Is(err, fs.ErrNotExist) {
		err = ErrNoDriver
	}
	if err != nil {
		return nil, errors.Join(fmt.Errorf("look for the NBD driver: %w", err), conn.Close())
	}
	return &Driver{conn: conn, family: family, files: f}, nil
}

// Close ends the connection to the driver, and no device.
func (d *Driver) Close() error { return d.conn.Close() }

// Connect makes a device, and returns its number.
func (d *Driver) Connect(ctx context.Context, dev Device) (index int, err error) {
	data, err := connectRequest(dev)
	if err != nil {
		return 0, err
	}
	// Without an error the kernel replies, and with an acknowledgement it would answer twice.
	replies, err := d.call(ctx, cmdConnect, data, netlink.Request)
	if err != nil {
		return 0, fmt.Errorf("connect an NBD device of %d bytes: %w", dev.Bytes, err)
	}
	return indexIn(replies)
}

// Reconnect gives a device sockets in place of lost connections. Those that it does not need are dropped without an error: their other
// ends are closed then. It returns ErrNotConnected if there is no such device.
func (d *Driver) Reconnect(ctx context.Context, index int, backend string, sockets []int) error {
	return d.reconfigure(ctx, index, backend, change{sockets: sockets})
}

// Resize sets the size of a device.
func (d *Driver) Resize(ctx context.Context, index int, backend string, bytes int64) error {
	return d.reconfigure(ctx, index, backend, change{bytes: bytes})
}

func (d *Driver) reconfigure(ctx context.Context, index int, backend string, c change) error {
	data, err := reconfigureRequest(index, backend, c)
	if err != nil {
		return err
	}
	_, err = d.call(ctx, cmdReconfigure, data, netlink.Request|netlink.Acknowledge)
	if errors.Is(err, unix.EINVAL) { // also if it is another backend's
		err = fmt.Errorf("%w: %w", ErrNotConnected, err)
	}
	if err != nil {
		return fmt.Errorf("reconfigure nbd%d: %w", index, err)
	}
	return nil
}

// Disconnect removes a device, whoever has it open: requests fail. It does nothing to one that is not connected.
func (d *Driver) Disconnect(ctx context.Context, index int) error {
	data, err := indexRequest(index)
	if err != nil {
		return err
	}
	if _, err := d.call(ctx, cmdDisconnect, data, netlink.Request|netlink.Acknowledge); err != nil && !errors.Is(err, unix.EINVAL) {
		return fmt.Errorf("disconnect nbd%d: %w", index, err)
	}
	return nil
}

// Connected reports whether a device is connected.
func (d *Driver) Connected(ctx context.Context, index int) (bool, error) {
	data, err := indexRequest(index)
	if err != nil {
		return false, err
	}
	replies, err := d.call(ctx, cmdStatus, data, netlink.Request)
	if err != nil {
		return false, fmt.Errorf("ask for the state of nbd%d: %w", index, err)
	}
	return connectedIn(replies, index)
}

// DisconnectUnused disconnects a device that nobody has open, and returns ErrOpen if someone has. The kernel has no count of a device's
// users. But it can be told to disconnect a device when its last user closes it; so this opens it, and closes it again. A user that is
// there may be the last one meanwhile. Then the device is disconnected, too.
func (d *Driver) DisconnectUnused(ctx context.Context, index int, backend string) error {
	onClose, keep := uint64(disconnectOnClose), uint64(0)
	if err := d.reconfigure(ctx, index, backend, change{client: &onClose}); err != nil {
		return err
	}
	failed := within(ctx, func() error { return d.files.touch(index) })
	there, err := d.Connected(ctx, index)
	if err == nil && !there {
		return nil
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), callTimeout)
	defer cancel()
	err = errors.Join(failed, err, d.reconfigure(ctx, index, backend, change{client: &keep}))
	switch {
	case errors.Is(err, ErrNotConnected):
		return nil // its last user has gone meanwhile
	case err != nil:
		return err
	}
	return fmt.Errorf("nbd%d: %w", index, ErrOpen)
}

func (d *Driver) call(ctx context.Context, command uint8, data []byte, flags netlink.HeaderFlags) ([]genetlink.Message, error) {
	type result struct {
		replies []genetlink.Message
		err     error
	}
	done := make(chan result, 1)
	err := within(ctx, func() error {
		m := genetlink.Message{Header: genetlink.Header{Command: command, Version: d.family.Version}, Data: data}
		replies, err := d.conn.Execute(m, d.family.ID, flags)
		done <- result{replies, err}
		return err
	})
	select {
	case r := <-done:
		return r.replies, r.err
	default:
		return nil, err
	}
}

// within stops waiting for f when ctx ends, or after callTimeout. The kernel cannot be interrupted in it.
func within(ctx context.Context, f func() error) error {
	ctx, cancel := context.WithTimeout(ctx, callTimeout)
	defer cancel()
	done := make(chan error, 1)
	go func() { done <- f() }()
	select {
	case err := <-done:
		return err
	case <-ctx.Done():
		return fmt.Errorf("the kernel does not answer: %w", ctx.Err())
	}
}
