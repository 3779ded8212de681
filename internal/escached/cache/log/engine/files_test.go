package engine

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"strings"
	"time"

	"github.com/escache/escache-csi/internal/escached/cache"
	"github.com/escache/escache-csi/internal/escached/cache/cachetest"
	"github.com/escache/escache-csi/internal/escached/cache/log/process"
	"github.com/escache/escache-csi/internal/escached/devmapper"
)

// Open implements cachetest.Host.
func (h *host) Open(path string) (cachetest.File, error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	switch path {
	case diskPath:
		return plain{
			h: h, read: func(p []byte, at int64) { copy(p, h.disk[at:]) }, write: func(p []byte, at int64) { copy(h.disk[at:], p) },
		}, nil
	case originPath:
		return plain{
			h: h, read: func(p []byte, at int64) { clear(p); copy(p, h.origin[at]) }, write: func(p []byte, at int64) { h.origin[at] = bytes.Clone(p) },
		}, nil
	}
	name := strings.TrimPrefix(path, devmapper.Node(""))
	d := h.fronts[name]
	if d == nil {
		return nil, fmt.Errorf("%s is no device for users", path)
	}
	d.open++
	return &userFile{h: h, front: d, name: strings.TrimSuffix(name, frontSuffix)}, nil
}

type plain struct {
	h           *host
	read, write func(p []byte, at int64)
}

func (f plain) ReadAt(p []byte, at int64) (int, error) {
	f.h.mu.Lock()
	defer f.h.mu.Unlock()
	f.read(p, at)
	return len(p), nil
}

func (f plain) WriteAt(p []byte, at int64) (int, error) {
	f.h.mu.Lock()
	defer f.h.mu.Unlock()
	f.write(p, at)
	return len(p), nil
}

func (plain) Close() error { return nil }

// userFile is the device in front, open. I/O waits while nothing serves the device, until that is disconnected.
type userFile struct {
	h     *host
	front *dmDevice
	name  string
}

// server is the process that serves a request, which is under way until done.
func (u *userFile) server(p []byte, at int64) (server *fakeProcess, done func(), err error) {
	for {
		u.h.mu.Lock()
		server, end, ready := u.h.processes[u.name], u.front.sectors*devmapper.SectorBytes, !u.front.suspended
		_, connected := u.h.nbd[process.Backend(u.name)]
		serves := ready && connected && server != nil
		if serves {
			u.front.underWay++
		}
		u.h.mu.Unlock()
		switch {
		case serves && at+int64(len(p)) <= end:
			return server, u.done, nil
		case serves:
			u.done()
			return nil, nil, io.EOF
		case ready && !connected:
			return nil, nil, errRefused
		}
		time.Sleep(time.Millisecond)
	}
}

func (u *userFile) done() {
	u.h.mu.Lock()
	defer u.h.mu.Unlock()
	u.front.underWay--
}

func (u *userFile) ReadAt(p []byte, at int64) (int, error) {
	server, done, err := u.server(p, at)
	if err != nil {
		return 0, err
	}
	defer done()
	return len(p), server.device.Read(uint64(at/cache.BlockBytes), p)
}

func (u *userFile) WriteAt(p []byte, at int64) (int, error) {
	server, done, err := u.server(p, at)
	if err != nil {
		return 0, err
	}
	defer done()
	if err := server.device.Write(uint64(at/cache.BlockBytes), p); err != nil {
		return 0, err
	}
	return len(p), server.device.Flush() // O_SYNC
}

func (u *userFile) Close() error {
	u.h.mu.Lock()
	defer u.h.mu.Unlock()
	u.front.open--
	return nil
}

// disk is the log's part of the host's disk, as a process sees it.
type disk host

func (d *disk) ReadAt(p []byte, at int64) (int, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	return copy(p, d.disk[cache.HeaderBytes+at:]), nil
}

func (d *disk) WriteStable(p []byte, at int64) error {
	d.mu.Lock()
	defer d.mu.Unlock()
	copy(d.disk[cache.HeaderBytes+at:], p)
	return nil
}

// image is the origin.
type image host

var errRefused = errors.New("input/output error")

func (i *image) ReadAt(p []byte, at int64) (int, error) {
	i.mu.Lock()
	defer i.mu.Unlock()
	clear(p)
	for n := int64(0); n < int64(len(p)); n += cache.BlockBytes {
		copy(p[n:], i.origin[at+n])
	}
	return len(p), nil
}

func (i *image) WriteAt(p []byte, at int64) (int, error) {
	i.mu.Lock()
	defer i.mu.Unlock()
	if i.refuse {
		return 0, errRefused
	}
	for n := int64(0); n < int64(len(p)); n += cache.BlockBytes {
		i.origin[at+n] = bytes.Clone(p[n:][:cache.BlockBytes])
	}
	return len(p), nil
}

func (i *image) Zero(at, n int64, _ bool) error {
	_, err := i.WriteAt(make([]byte, n), at)
	return err
}
