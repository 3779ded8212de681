package rbd

import (
	"errors"
	"fmt"
	"sync"
	"syscall"
	"time"

	"github.com/ceph/go-ceph/rados"
)

// redialPause is how long a failed dial's error is given to others before the next dial: with Ceph
// away, they would only queue.
const redialPause = time.Second

// link is one connection of a cluster: dialled by the first call that needs it, dialled again when
// broken.
type link struct {
	dial sync.Mutex // held while dialling: others wait for the same connection

	mu       sync.Mutex
	conn     *client
	failed   error
	failedAt time.Time
}

// client is a connected librados client, shut down when it is retired and its last call has ended.
type client struct {
	conn *rados.Conn
	from settings

	mu      sync.Mutex
	users   int
	retired bool
}

// timeouts end calls within librados, so that a call that nobody waits for any more ends at last.
type timeouts struct {
	connect time.Duration
	op      time.Duration
}

// use returns the connected client and counts the caller in; done counts it out.
func (l *link) use(want settings, dial func(settings) (*rados.Conn, error)) (*client, error) {
	if c, known, err := l.ready(want); known {
		return c, err
	}
	l.dial.Lock()
	defer l.dial.Unlock()
	if c, known, err := l.ready(want); known {
		return c, err
	}
	conn, err := dial(want)
	l.mu.Lock()
	defer l.mu.Unlock()
	if err != nil {
		l.failed, l.failedAt = err, time.Now()
		return nil, err
	}
	l.conn, l.failed = &client{conn: conn, from: want, users: 1}, nil
	return l.conn, nil
}

// ready returns the client if there is a good one, or the error of a dial that failed just now;
// known is false if there is neither.
func (l *link) ready(want settings) (c *client, known bool, err error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.conn != nil && l.conn.from.sum == want.sum && l.conn.enter() {
		return l.conn, true, nil
	}
	if l.conn != nil {
		l.conn.retire()
		l.conn = nil
	}
	if l.failed != nil && time.Since(l.failedAt) < redialPause {
		return nil, true, l.failed
	}
	return nil, false, nil
}

func (l *link) forgetFailure() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.failed = nil
}

func (l *link) close() {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.conn != nil {
		l.conn.retire()
		l.conn = nil
	}
}

func (l *link) connected() bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.conn != nil
}

func (c *client) enter() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.retired {
		return false
	}
	c.users++
	return true
}

// done ends a use. A client whose session is dead for good is retired: librados reconnects by
// itself after everything else.
func (c *client) done(err error) {
	c.mu.Lock()
	c.users--
	broken := !c.retired && dead(err)
	last := c.users == 0 && (c.retired || broken)
	c.retired = c.retired || broken
	c.mu.Unlock()
	if last {
		go c.conn.Shutdown() // it may wait for Ceph, and the answer is here already
	}
}

func (c *client) retire() {
	c.mu.Lock()
	idle := !c.retired && c.users == 0
	c.retired = true
	c.mu.Unlock()
	if idle {
		// The callers of retire hold locks, and a shutdown may wait for Ceph.
		go c.conn.Shutdown()
	}
}

// dead: the client is on the blocklist, or was shut down.
func dead(err error) bool {
	return errno(err) == syscall.ESHUTDOWN || errno(err) == syscall.ENOTCONN
}

func connect(s settings, limit timeouts) (*rados.Conn, error) {
	conn, err := rados.NewConnWithClusterAndUser("ceph", s.user)
	if err != nil {
		return nil, fmt.Errorf("%w: %s", ErrCeph, err.Error())
	}
	if err := configure(conn, s, limit); err != nil {
		conn.Shutdown()
		return nil, err
	}
	if err := conn.Connect(); err != nil {
		conn.Shutdown()
		return nil, connectError(err, s)
	}
	return conn, nil
}

func configure(conn *rados.Conn, s settings, limit timeouts) error {
	if err := conn.ReadConfigFile(s.confPath); err != nil {
		return fmt.Errorf("%w: read %s: %s", ErrConfig, s.confPath, err.Error())
	}
	seconds := func(d time.Duration) string { return fmt.Sprint(max(1, int(d.Seconds()))) }
	for _, option := range [][2]string{
		{"key", s.key},
		{"client_mount_timeout", seconds(limit.connect)},
		{"rados_mon_op_timeout", seconds(limit.op)},
		{"rados_osd_op_timeout", seconds(limit.op)},
		// A library must not write to the process's stderr or make files because of an option meant
		// for daemons.
		{"log_file", ""}, {"log_to_stderr", "false"}, {"err_to_stderr", "false"}, {"admin_socket", ""},
		// Control calls write no data: a cache per open image would only cost memory.
		{"rbd_cache", "false"},
	} {
		if err := conn.SetConfigOption(option[0], option[1]); err != nil {
			return fmt.Errorf("%w: option %s: %s", ErrConfig, option[0], err.Error())
		}
	}
	return nil
}

func connectError(err error, s settings) error {
	switch sentinel := translate(err); {
	case errors.Is(sentinel, ErrPermission):
		return fmt.Errorf("connect as %s: check the key and its capabilities (mon and osd 'profile rbd'): %w", s.user, sentinel)
	default:
		return fmt.Errorf("connect as %s: check mon_host in %s and the way to it: %w: %s", s.user, s.confPath, ErrUnavailable, err.Error())
	}
}
