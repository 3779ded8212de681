package writecache

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"math"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/escache/escache-csi/internal/escached/cache"
	"github.com/escache/escache-csi/internal/escached/cache/cachetest"
	"github.com/escache/escache-csi/internal/escached/devmapper"
)

// host has a kernel as far as this engine sees it: device-mapper with the targets linear and
// writecache, loop devices, one disk and one origin. It does what the kernel does, also where that
// is surprising: see resume.
type host struct {
	cachetest.Stops

	t       *testing.T
	mu      sync.Mutex
	resumed *sync.Cond

	devices map[string]*dmDevice
	loops   map[string]int64 // size of the loop device, by what it is on
	disk    []byte
	data    map[int64][]byte // what the disk has for an offset of the origin
	origin  map[int64][]byte
	size    int64 // of the origin
	refuse  bool

	steps []string
}

type dmDevice struct {
	target, table  string
	sectors        int64
	nextTable      string
	open           int
	suspended      bool
	failed         bool // dm-writecache's sticky error
	flushOnSuspend bool
}

const (
	volume       = "escache-v"
	diskPath     = "/dev/drbd100"
	originPath   = "/dev/rbd0"
	diskNumber   = "147:100"
	originNumber = "252:0"
	loopPath     = "/dev/loop7"
	cacheBlocks  = 100
)

func newHost(t *testing.T) *host {
	h := &host{
		t: t, devices: map[string]*dmDevice{}, loops: map[string]int64{}, disk: make([]byte, 2<<20),
		data: map[int64][]byte{}, origin: map[int64][]byte{}, size: 1 << 20,
	}
	h.resumed = sync.NewCond(&h.mu)
	return h
}

func (h *host) Engine() cache.Engine { return New(h, (*hostLoops)(h), (*hostDisks)(h)) }

func (h *host) Spec() cache.Spec {
	return cache.Spec{Disk: cache.Disk{Name: volume, Path: diskPath}, Origin: originPath, Bytes: h.size}
}

func (h *host) OriginNumber() string { return originNumber }
func (h *host) Refuse(refuse bool)   { h.refuse = refuse }
func (h *host) Grow(bytes int64)     { h.size = bytes }

// step is called before every change.
func (h *host) step(format string, args ...any) error {
	h.steps = append(h.steps, fmt.Sprintf(format, args...))
	return h.NextChange()
}

// The disk as dm-writecache has it: an entry is dirty if its sequence number is below the
// superblock's, and free if its sector is all ones.

func (h *host) entry(i int) []byte {
	return h.disk[superblockAt+entriesOffset+i*entryBytes:][:entryBytes]
}

func (h *host) format() {
	le, sb := binary.LittleEndian, h.disk[superblockAt:]
	le.PutUint32(sb, superblockMagic)
	le.PutUint32(sb[4:], superblockVersion)
	le.PutUint32(sb[8:], cache.BlockBytes)
	le.PutUint64(sb[16:], cacheBlocks)
	le.PutUint64(sb[24:], 1)
	for i := range cacheBlocks {
		h.free(i)
	}
}

func (h *host) free(i int) { binary.LittleEndian.PutUint64(h.entry(i), math.MaxUint64) }

// find returns the entry of an offset of the origin, or a free one.
func (h *host) find(at int64) (entry int, dirty bool) {
	for i := range cacheBlocks {
		switch binary.LittleEndian.Uint64(h.entry(i)) {
		case uint64(at / devmapper.SectorBytes):
			return i, true
		case math.MaxUint64:
			entry = i
		}
	}
	return entry, false
}

func (h *host) dirtyBlocks() int {
	n, err := countDirty(bytes.NewReader(h.disk), superblockAt)
	if err != nil {
		h.t.Fatal(err)
	}
	return int(n / cache.BlockBytes)
}

// writeBack is what the kernel does for a flush: an origin that refuses sets the sticky error.
func (h *host) writeBack(d *dmDevice) error {
	for i := range cacheBlocks {
		sector := binary.LittleEndian.Uint64(h.entry(i))
		if sector == math.MaxUint64 {
			continue
		}
		if d.failed = d.failed || h.refuse; d.failed {
			return errors.New("message ioctl failed: Input/output error")
		}
		h.origin[int64(sector)*devmapper.SectorBytes] = h.data[int64(sector)*devmapper.SectorBytes]
		h.free(i)
	}
	return nil
}

// hostDisks is the disk below the cache.
type hostDisks host

func (h *hostDisks) Read(_ context.Context, _, _ string, offsets ...int64) ([][]byte, error) {
	var blocks [][]byte
	for _, offset := range offsets {
		blocks = append(blocks, bytes.Clone(h.disk[offset:][:cache.BlockBytes]))
	}
	return blocks, nil
}

func (h *hostDisks) Write(_ context.Context, _, _ string, offset int64, data []byte) error {
	if err := (*host)(h).step("write %d bytes at %d", len(data), offset); err != nil {
		return err
	}
	copy(h.disk[offset:], data)
	return nil
}

func (h *hostDisks) Query(_ context.Context, _, query, _ string, _ time.Duration) ([]byte, error) {
	var out bytes.Buffer
	err := Queries()[query](bytes.NewReader(h.disk), &out)
	return out.Bytes(), err
}

// hostLoops are the loop devices.
type hostLoops host

func (h *hostLoops) Find(backing string) (string, error) {
	if _, there := h.loops[backing]; there {
		return loopPath, nil
	}
	return "", nil
}

func (h *hostLoops) Attach(_ context.Context, _, backing string, size int64) (string, error) {
	below := h.devices[strings.TrimPrefix(backing, devmapper.Node(""))]
	if size/devmapper.SectorBytes != below.sectors {
		h.t.Errorf("a loop device of %d bytes on one of another size", size)
	}
	have, there := h.loops[backing]
	if there && have == size {
		return loopPath, nil
	}
	if err := (*host)(h).step("loop of %d bytes", size); err != nil {
		return "", err
	}
	if !there {
		below.open++
	}
	h.loops[backing] = size
	return loopPath, nil
}

func (h *hostLoops) Detach(_ context.Context, _, backing string) error {
	if _, there := h.loops[backing]; !there {
		return nil
	}
	if err := (*host)(h).step("loop off"); err != nil {
		return err
	}
	h.devices[strings.TrimPrefix(backing, devmapper.Node(""))].open--
	delete(h.loops, backing)
	return nil
}

// Open implements cachetest.Host.
func (h *host) Open(path string) (cachetest.File, error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	switch path {
	case diskPath:
		return memory{read: func(p []byte, at int64) { copy(p, h.disk[at:]) }, write: func(p []byte, at int64) { copy(h.disk[at:], p) }}, nil
	case originPath:
		return memory{
			read:  func(p []byte, at int64) { clear(p); copy(p, h.origin[at]) },
			write: func(p []byte, at int64) { h.origin[at] = bytes.Clone(p) },
		}, nil
	}
	name := strings.TrimPrefix(path, devmapper.Node(""))
	front := h.devices[name]
	if front == nil || !isFront(name) {
		return nil, fmt.Errorf("%s is no device for users", path)
	}
	front.open++
	return &userFile{h: h, front: front, main: h.devices[strings.TrimSuffix(name, frontSuffix)]}, nil
}

type memory struct{ read, write func(p []byte, at int64) }

func (m memory) ReadAt(p []byte, at int64) (int, error)  { m.read(p, at); return len(p), nil }
func (m memory) WriteAt(p []byte, at int64) (int, error) { m.write(p, at); return len(p), nil }
func (m memory) Close() error                            { return nil }

// userFile is the device in front, open.
type userFile struct {
	h           *host
	front, main *dmDevice
}

func (u *userFile) ready(p []byte, at int64) error {
	for u.front.suspended || u.main.suspended {
		u.h.resumed.Wait()
	}
	switch {
	case u.main.failed:
		return errors.New("input/output error")
	case at+int64(len(p)) > u.front.sectors*devmapper.SectorBytes:
		return io.EOF
	}
	return nil
}

func (u *userFile) ReadAt(p []byte, at int64) (int, error) {
	u.h.mu.Lock()
	defer u.h.mu.Unlock()
	if err := u.ready(p, at); err != nil {
		return 0, err
	}
	clear(p)
	if _, dirty := u.h.find(at); dirty {
		return copy(p, u.h.data[at]), nil
	}
	copy(p, u.h.origin[at])
	return len(p), nil
}

func (u *userFile) WriteAt(p []byte, at int64) (int, error) {
	u.h.mu.Lock()
	defer u.h.mu.Unlock()
	if err := u.ready(p, at); err != nil {
		return 0, err
	}
	entry, dirty := u.h.find(at)
	if !dirty && strings.Contains(u.main.table, "cleaner") {
		u.h.origin[at] = bytes.Clone(p)
		return len(p), nil
	}
	binary.LittleEndian.PutUint64(u.h.entry(entry), uint64(at/devmapper.SectorBytes))
	binary.LittleEndian.PutUint64(u.h.entry(entry)[8:], 0)
	u.h.data[at] = bytes.Clone(p)
	return len(p), nil
}

func (u *userFile) Close() error {
	u.h.mu.Lock()
	defer u.h.mu.Unlock()
	u.front.open--
	return nil
}
