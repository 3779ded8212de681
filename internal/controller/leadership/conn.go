package leadership

import (
	"context"
	"fmt"
	"net"
	"syscall"

	"golang.org/x/sys/unix"
)

// Dial is for the clients that write objects and call hosts. A request passes Check long before it is sent, in a process that is paused in
// between perhaps half a minute; so what it has written is checked again where it leaves the process. And it does not stay on its way: what
// has not arrived when another may lead, or when the call is given up, is thrown away by the kernel, which would send it for minutes.
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

// bound sets how long the kernel tries to deliver data: while the process has the socket (TCP_USER_TIMEOUT, see tcp(7)), and not at all
// when it has closed it (SO_LINGER, see socket(7)).
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
		return fmt.Errorf("bound how long a call is on its way: %w", err)
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
