// Package nbdtest is a client of the NBD protocol that does what the kernel's does: when it loses its connection, it
// repeats on the next one whatever was not answered.
package nbdtest

import (
	"encoding/binary"
	"fmt"
	"io"
	"net"
	"os"
	"slices"
	"sync"

	"golang.org/x/sys/unix"

	"github.com/escache/escache-csi/internal/escached/cache/log/nbd"
)

// tags is how many requests the kernel has under way.
const tags = 128

// Client is safe for concurrent use.
type Client struct {
	free chan uint32 // tags

	sending sync.Mutex // before mu; answers are taken while somebody sends

	mu    sync.Mutex // for what follows
	conn  net.Conn   // nil while there is none
	asked [tags]*call
	wrong error // what the server has answered that the kernel would not take
}

type call struct {
	request nbd.Request
	sent    uint32 // how often
	data    []byte
	answer  chan error
}

// NewClient returns a client without a connection. Its calls wait until it has one.
func NewClient() *Client {
	c := &Client{free: make(chan uint32, tags)}
	for tag := range uint32(tags) {
		c.free <- tag
	}
	return c
}

// Connect repeats on a connection what was not answered on the last one, and goes on with it.
func (c *Client) Connect(conn net.Conn) {
	c.sending.Lock()
	defer c.sending.Unlock()
	c.mu.Lock()
	if c.conn != nil {
		_ = c.conn.Close()
	}
	c.conn = conn
	var again []nbd.Request
	var data [][]byte
	for tag, a := range c.asked {
		if a != nil {
			again, data = append(again, a.next(uint32(tag))), append(data, a.data)
		}
	}
	c.mu.Unlock()
	go c.answers(conn)
	for i, r := range again {
		send(conn, r, data[i])
	}
}

// next is what is sent next: each time the cookie is another one, as the kernel's is.
func (a *call) next(tag uint32) nbd.Request {
	a.sent++
	a.request.Cookie = uint64(a.sent)<<32 | uint64(tag)
	return a.request
}

// send sends data in pages, as the kernel does. It does not tell of errors: the next connection gets it again.
func send(conn net.Conn, r nbd.Request, data []byte) {
	if _, err := conn.Write(r.Encode()); err != nil || r.Command != nbd.Write {
		return
	}
	for page := range slices.Chunk(data, 4096) {
		if _, err := conn.Write(page); err != nil {
			return
		}
	}
}

// Do sends a request and returns when it was answered. Data is what is written, or where to read to.
func (c *Client) Do(r nbd.Request, data []byte) error {
	tag := <-c.free
	a := &call{request: r, data: data, answer: make(chan error, 1)}
	if err := c.ask(tag, a); err != nil {
		return err
	}
	err := <-a.answer
	c.free <- tag
	return err
}

func (c *Client) ask(tag uint32, a *call) error {
	c.sending.Lock()
	defer c.sending.Unlock()
	c.mu.Lock()
	if c.wrong != nil {
		defer c.mu.Unlock()
		return c.wrong
	}
	c.asked[tag] = a
	conn := c.conn
	var r nbd.Request
	if conn != nil {
		r = a.next(tag)
	}
	c.mu.Unlock()
	if conn != nil {
		send(conn, r, a.data)
	}
	return nil
}

// Disconnect tells the server that the device is closed.
func (c *Client) Disconnect() {
	c.sending.Lock()
	defer c.sending.Unlock()
	send(c.conn, nbd.Request{Command: nbd.Close}, nil)
}

func (c *Client) answers(conn net.Conn) {
	for {
		if err := c.answer(conn); err != nil {
			return // Connect comes with the next one
		}
	}
}

func (c *Client) answer(conn net.Conn) error {
	header := make([]byte, 16)
	if _, err := io.ReadFull(conn, header); err != nil {
		return err
	}
	cookie := binary.BigEndian.Uint64(header[8:])
	a := c.under(cookie, conn)
	if a == nil || binary.BigEndian.Uint32(header) != 0x67446698 {
		return c.giveUp(conn, fmt.Errorf("the server's reply %x is to no request that is under way", header))
	}
	errno := nbd.Errno(binary.BigEndian.Uint32(header[4:]))
	var data []byte
	if a.request.Command == nbd.Read && errno == nbd.OK {
		data = make([]byte, len(a.data))
		if _, err := io.ReadFull(conn, data); err != nil {
			return err // with more than one connection the kernel repeats it
		}
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if conn != c.conn {
		return net.ErrClosed // the next connection answers it
	}
	copy(a.data[:len(data)], data)
	c.asked[uint32(cookie)] = nil
	if errno != nbd.OK {
		a.answer <- Error(errno)
	} else {
		a.answer <- nil
	}
	return nil
}

// under returns the request with a cookie that is under way on a connection, or nil.
func (c *Client) under(cookie uint64, conn net.Conn) *call {
	c.mu.Lock()
	defer c.mu.Unlock()
	tag := uint32(cookie)
	if tag >= tags || conn != c.conn || c.asked[tag] == nil || c.asked[tag].request.Cookie != cookie {
		return nil
	}
	return c.asked[tag]
}

// giveUp ends all calls, unless the connection is an old one.
func (c *Client) giveUp(conn net.Conn, err error) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if conn != c.conn {
		return err
	}
	c.wrong = err
	for tag, a := range c.asked {
		if a != nil {
			a.answer <- err
			c.asked[tag] = nil
		}
	}
	return err
}

// Error is the error in a reply.
type Error nbd.Errno

func (e Error) Error() string { return fmt.Sprintf("the server answers error %d", uint32(e)) }

// Pair returns a connection and a file with its other end, to be handed to a server.
func Pair() (net.Conn, *os.File, error) {
	fds, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return nil, nil, fmt.Errorf("make a pair of sockets: %w", err)
	}
	mine := os.NewFile(uintptr(fds[0]), "client")
	defer func() { _ = mine.Close() }()
	conn, err := net.FileConn(mine)
	return conn, os.NewFile(uintptr(fds[1]), "server"), err
}
