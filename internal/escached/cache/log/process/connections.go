package process

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"os"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"github.com/escache/escache-csi/internal/escached/cache/log/nbd"
	"github.com/escache/escache-csi/internal/escached/cache/log/nbd/kernel"
)

// Driver is the kernel's NBD driver: see kernel.Driver.
type Driver interface {
	Find(backend string) (found kernel.Found, there bool, err error)
	Connect(ctx context.Context, d kernel.Device) (index int, err error)
	Reconnect(ctx context.Context, index int, backend string, sockets []int) error
	Resize(ctx context.Context, index int, backend string, bytes int64) error
	DisconnectUnused(ctx context.Context, index int, backend string) error
	WithoutScheduler(index int) error
}

const (
	// connections is how many the kernel has of a device: nbd.Flags says why there are two.
	connections = 2
	// reconnectEvery is the time between two attempts to replace a lost connection.
	reconnectEvery = 100 * time.Millisecond
	// drainTimeout is how long requests that are under way keep a successor waiting.
	drainTimeout = 3 * time.Second
)

// errDisconnected means that the kernel has no device any more.
var errDisconnected = errors.New("the device was disconnected")

// links are the connections of a device. Lost ones are replaced.
type links struct {
	driver  Driver
	backend string
	index   int
	export  *nbd.Export
	log     *slog.Logger

	mu     sync.Mutex // for what follows
	all    [connections]*link
	ending bool // no new ones

	serving sync.WaitGroup
	gone    chan error // why the device is gone: nil if the kernel has closed it
}

// link is one connection.
type link struct {
	conn *net.UnixConn
	left []byte // was read by the process before
}

// connect gives the kernel connections for a device: the one that it has for the backend already, or a new one. With connections that were
// taken over the kernel has them already.
func connect(ctx context.Context, d Driver, c Config, v *volume, taken []*link, log *slog.Logger) (*links, error) {
	l := &links{driver: d, backend: Backend(c.Name), export: nbd.NewExport(v), log: log, gone: make(chan error, connections)}
	found, there, err := d.Find(l.backend)
	if err != nil {
		return nil, err
	}
	if there && len(taken) > 0 {
		v.bytes.Store(found.Bytes)
		l.index = found.Index
		for i := range connections {
			if i < len(taken) {
				l.serve(i, taken[i])
			} else {
				go l.replace(i, errDisconnected)
			}
		}
		return l, nil
	}
	closeLinks(taken)
	ours, theirs, err := pairs(connections)
	if err != nil {
		return nil, err
	}
	defer closeAll(theirs)
	fds := descriptors(theirs)
	if there {
		v.bytes.Store(found.Bytes) // it may have been resized since it was made
		l.index, err = found.Index, d.Reconnect(ctx, found.Index, l.backend, fds)
	} else {
		l.index, err = d.Connect(ctx, kernel.Device{Backend: l.backend, Bytes: v.Bytes(), Flags: nbd.Flags, Sockets: fds})
	}
	if err != nil {
		closeAll(ours)
		return nil, err
	}
	if err := d.WithoutScheduler(l.index); err != nil {
		log.Warn("the device keeps its I/O scheduler; it costs some processor time", "error", err)
	}
	for i, conn := range ours {
		l.serve(i, &link{conn: conn})
	}
	return l, nil
}

// serve begins to serve a connection.
func (l *links) serve(i int, k *link) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.ending {
		_ = k.conn.Close()
		return
	}
	l.all[i] = k
	l.serving.Go(func() {
		err := l.export.Serve(k.conn, k.left)
		if interrupted, ok := errors.AsType[*nbd.InterruptedError](err); ok {
			k.left = interrupted.Left
			return
		}
		_ = k.conn.Close()
		l.mu.Lock()
		l.all[i] = nil
		ending := l.ending
		l.mu.Unlock()
		switch {
		case err == nil:
			l.gone <- nil
		case !ending:
			go l.replace(i, err)
		}
	})
}

// replace gives the kernel another connection in place of a lost one. The kernel also gives a connection up if a request takes long.
func (l *links) replace(i int, why error) {
	l.log.Debug("a connection of the device is lost and is replaced", "error", why)
	for {
		conn, err := l.reconnect()
		switch {
		case err == nil && conn != nil:
			l.serve(i, &link{conn: conn})
			return
		case errors.Is(err, kernel.ErrNotConnected):
			l.gone <- fmt.Errorf("%w: %w", errDisconnected, err)
			return
		case err != nil:
			l.log.Error("a lost connection of the device cannot be replaced; it is tried again", "error", err)
		}
		time.Sleep(reconnectEvery)
		if l.isEnding() {
			return
		}
	}
}

// reconnect returns a new connection, or nil if the kernel has not noticed yet that one is lost.
func (l *links) reconnect() (*net.UnixConn, error) {
	ours, theirs, err := pairs(1)
	if err != nil {
		return nil, err
	}
	err = l.driver.Reconnect(context.Background(), l.index, l.backend, descriptors(theirs)) // the driver has a deadline of its own
	closeAll(theirs)
	if err != nil || hungUp(ours[0]) {
		closeAll(ours)
		return nil, err
	}
	return ours[0], nil
}

func (l *links) isEnding() bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.ending
}

// interrupt ends serving at a border between requests, and returns what can go on in another process. Connections with requests that
// take longer than drainTimeout are closed: the kernel repeats those later.
func (l *links) interrupt(ctx context.Context) []*link {
	ctx, cancel := context.WithTimeout(ctx, drainTimeout)
	defer cancel()
	l.mu.Lock()
	l.ending = true
	for _, k := range l.all {
		if k != nil {
			_ = k.conn.SetReadDeadline(time.Now())
		}
	}
	l.mu.Unlock()
	drained := make(chan struct{})
	go func() { l.serving.Wait(); close(drained) }()
	select {
	case <-drained:
	case <-ctx.Done():
		l.close()
		return nil
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	var left []*link
	for _, k := range l.all {
		if k != nil {
			left = append(left, k)
		}
	}
	return left
}

// end begins no connection any more.
func (l *links) end() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.ending = true
}

// resume takes end back.
func (l *links) resume() {
	l.mu.Lock()
	l.ending = false
	var lost []int
	for i, k := range l.all {
		if k == nil {
			lost = append(lost, i)
		}
	}
	l.mu.Unlock()
	for _, i := range lost {
		go l.replace(i, errDisconnected)
	}
}

// close closes all connections. The kernel repeats what is not answered on those of a successor.
func (l *links) close() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.ending = true
	for i, k := range l.all {
		if k != nil {
			_ = k.conn.Close()
			l.all[i] = nil
		}
	}
}

// pairs makes pairs of sockets.
func pairs(n int) (ours []*net.UnixConn, theirs []*os.File, err error) {
	for range n {
		fds, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
		if err != nil {
			closeAll(ours)
			closeAll(theirs)
			return nil, nil, fmt.Errorf("make a pair of sockets: %w", err)
		}
		theirs = append(theirs, os.NewFile(uintptr(fds[1]), "kernel"))
		conn, err := connOf(fds[0])
		if err != nil {
			closeAll(ours)
			closeAll(theirs)
			return nil, nil, err
		}
		ours = append(ours, conn)
	}
	return ours, theirs, nil
}

// connOf takes a descriptor over.
func connOf(fd int) (*net.UnixConn, error) {
	file := os.NewFile(uintptr(fd), "nbd")
	defer func() { _ = file.Close() }() // FileConn has its own
	conn, err := net.FileConn(file)
	if err != nil {
		return nil, fmt.Errorf("use a socket: %w", err)
	}
	socket, ok := conn.(*net.UnixConn)
	if !ok {
		return nil, errors.Join(fmt.Errorf("a %s is not a unix socket", conn.LocalAddr().Network()), conn.Close())
	}
	return socket, nil
}

func descriptors(files []*os.File) []int {
	fds := make([]int, len(files))
	for i, f := range files {
		fds[i] = int(f.Fd())
	}
	return fds
}

func closeAll[T interface{ Close() error }](all []T) {
	for _, c := range all {
		_ = c.Close()
	}
}

// hungUp reports whether the other end of a connection is closed.
func hungUp(conn *net.UnixConn) bool {
	raw, err := conn.SyscallConn()
	if err != nil {
		return true
	}
	poll := []unix.PollFd{{}}
	err = raw.Control(func(fd uintptr) {
		poll[0].Fd = int32(fd)
		_, _ = unix.Poll(poll, 0)
	})
	return err != nil || poll[0].Revents&unix.POLLHUP != 0
}
