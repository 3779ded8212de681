package leadership

import (
	"context"
	"net"
)

// Dial is for the client that writes objects. A request passes Check long before it is sent, in a process that is paused in between
// perhaps half a minute; so what it has written is checked again where it leaves the process.
func (l *Lease) Dial(ctx context.Context, network, address string) (net.Conn, error) {
	if err := l.Check(); err != nil {
		return nil, err
	}
	conn, err := (&net.Dialer{}).DialContext(ctx, network, address)
	if err != nil {
		return nil, err
	}
	return guardedConn{conn, l}, nil
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
