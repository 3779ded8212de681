package process

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"time"

	"golang.org/x/sys/unix"

	"github.com/escache/escache-csi/internal/crashpoint"
	"github.com/escache/escache-csi/internal/escached/cache/log/control"
)

const (
	// takeOverTimeout bounds how long the process before is given to end.
	takeOverTimeout = 30 * time.Second
	// keepTimeout is how long a process keeps its connections for a successor.
	keepTimeout = 30 * time.Second
)

// takeOver makes a running process of the volume end, and returns the connections of the device that it had. Without them, and also if it
// does not answer, the kernel is given new ones: then it repeats what was not answered after kernel.RequestTimeout.
func takeOver(ctx context.Context, c Config, log *slog.Logger) []*link {
	ctx, cancel := context.WithTimeout(ctx, takeOverTimeout)
	defer cancel()
	if _, err := os.Stat(c.Socket); err != nil {
		return nil
	}
	client := control.NewClient(c.Socket)
	status, err := client.Status(ctx)
	if err != nil {
		return nil // it has died
	}
	log.Info("taking over from a running process", "pid", status.PID, "version", status.Version)
	handed, err := client.HandOver(ctx)
	if err != nil {
		log.Warn("the running process does not hand over; if it does not end, the volume stays with it", "pid", status.PID, "error", err)
		return nil
	}
	var taken []*link
	for _, l := range handed.Links {
		k, err := take(handed.PID, l)
		if err != nil {
			log.Warn("a connection of the device cannot be taken over; requests on it are repeated later", "pid", handed.PID, "error", err)
			continue
		}
		taken = append(taken, k)
	}
	if err := client.Leave(ctx); err != nil {
		log.Warn("the process before does not leave at once", "pid", handed.PID, "error", err)
	}
	return taken
}

// take gets a connection from another process.
func take(pid int, l control.Link) (*link, error) {
	process, err := unix.PidfdOpen(pid, 0)
	if err != nil {
		return nil, fmt.Errorf("open process %d: %w", pid, err)
	}
	defer func() { _ = unix.Close(process) }()
	fd, err := unix.PidfdGetfd(process, l.FD, 0)
	if err != nil {
		return nil, fmt.Errorf("get descriptor %d of process %d: %w", l.FD, pid, err)
	}
	unix.CloseOnExec(fd)
	inode, err := inodeOf(fd)
	if err == nil && inode != l.Inode { // for example if the two processes number processes differently
		err = fmt.Errorf("descriptor %d of process %d is not the connection", l.FD, pid)
	}
	if err != nil {
		return nil, errors.Join(err, unix.Close(fd))
	}
	conn, err := connOf(fd)
	if err != nil {
		return nil, err
	}
	return &link{conn: conn, left: l.Left}, nil
}

func inodeOf(fd int) (uint64, error) {
	var stat unix.Stat_t
	if err := unix.Fstat(fd, &stat); err != nil {
		return 0, fmt.Errorf("look at a descriptor: %w", err)
	}
	return stat.Ino, nil
}

func closeLinks(all []*link) {
	for _, k := range all {
		_ = k.conn.Close()
	}
}

// HandOver implements control.Volume.
func (p *Process) HandOver(ctx context.Context) (control.Handed, error) {
	p.changing.Lock()
	defer p.changing.Unlock()
	handed := control.Handed{PID: os.Getpid()}
	if err := p.ending(); err != nil {
		return handed, err
	}
	for _, k := range p.links.interrupt(ctx) {
		l, err := k.describe()
		if err != nil {
			_ = k.conn.Close()
			continue
		}
		handed.Links = append(handed.Links, l)
	}
	crashpoint.Reach("cache/interrupted")
	err := p.closeLog()
	crashpoint.Reach("cache/handed-over")
	p.log.Info("handed over to a successor", "connections", len(handed.Links), "error", err)
	p.mu.Lock()
	defer p.mu.Unlock()
	p.handed = time.AfterFunc(keepTimeout, func() { p.done <- err })
	return handed, err
}

// describe says how another process gets the connection.
func (k *link) describe() (control.Link, error) {
	l := control.Link{Left: k.left}
	raw, err := k.conn.SyscallConn()
	if err != nil {
		return l, fmt.Errorf("look at a connection: %w", err)
	}
	// Not File: it would make the socket a blocking one, for the successor, too.
	asked := raw.Control(func(fd uintptr) {
		l.FD = int(fd)
		l.Inode, err = inodeOf(l.FD)
	})
	return l, errors.Join(err, asked)
}

// Leave implements control.Volume.
func (p *Process) Leave() error {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.handed == nil {
		return fmt.Errorf("%w: the process has not handed over", control.ErrInvalid)
	}
	if p.handed.Stop() {
		p.done <- nil
	}
	return nil
}
