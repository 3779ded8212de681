package leadership

import (
	"context"
	"fmt"
	"net"
	"syscall"

	"golang.org/x/sys/unix"
)

// Dial opens connections for the clients that write objects and call hosts. If the process is
// paused, a request may be sent half a minute after it passed Check; so each write to the
// connection checks again. Nor may a request stay in the kernel, which would try to send it for
// minutes: the kernel drops data that is not delivered when another replica may lead, or when the
// call is given up.
func (l *Lease) Dial(ctx context.Context, network, address string) (net.Conn, error) {
	if err := l.Check(); err != nil {
		return nil, err
	}
	conn, err := (&net.Dialer{ControlContext: l.bound}).DialContext(ctx, network, address)
	if err != nil {
		return nil, err
	}
	return guardedConn{conn, l}, nil
}

// bound limits how long the kernel tries to deliver data: to the lease's margin while the socket is
// open (TCP_USER_TIMEOUT, see tcp(7)), and not at all once it is closed (SO_LINGER, see socket(7)).
func (l *Lease) bound(_ context.Context, network, _ string, socket syscall.RawConn) error {
	if network == "unix" {
		return nil
	}
	var failed error
	err := socket.Control(func(fd uintptr) {
		failed = unix.SetsockoptInt(int(fd), unix.IPPROTO_TCP, unix.TCP_USER_TIMEOUT, int(l.margin.Milliseconds()))
		if failed == nil {
			failed = unix.SetsockoptLinger(int(fd), unix.SOL_SOCKET, unix.SO_LINGER, &unix.Linger{Onoff: 1})
		}
	})
	if err == nil {
		err = failed
	}
	if err != nil {
		return fmt.Errorf("limit how long the kernel tries to send a call: %w", err)
	}
	return nil
}

// guardedConn sends only while this process leads.
type guardedConn struct {
	net.Conn

	lease *Lease
}

func (g guardedConn) Write(data []byte) (int, error) {
	if err := g.lease.Check(); err != nil {
		return 0, err
	}
	return g.Conn.Write(data)
}
