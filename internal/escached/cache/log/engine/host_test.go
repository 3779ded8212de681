package engine

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"maps"
	"os"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/escache/escache-csi/internal/escached/cache"
	"github.com/escache/escache-csi/internal/escached/cache/cachetest"
	"github.com/escache/escache-csi/internal/escached/cache/log/control"
	"github.com/escache/escache-csi/internal/escached/cache/log/nbd/kernel"
	"github.com/escache/escache-csi/internal/escached/cache/log/process"
	"github.com/escache/escache-csi/internal/escached/devmapper"
)

// host has what the engine sees of a host: device-mapper with linear devices, NBD devices, processes, one
// disk and one origin. A process has a real log, and a real socket; only the kernel's part is played.
type host struct {
	cachetest.Stops

	t   *testing.T
	dir string // on tmpfs

	mu        sync.Mutex
	disk      []byte
	origin    map[int64][]byte
	size      int64 // of the origin
	refuse    bool
	fronts    map[string]*dmDevice
	processes map[string]*fakeProcess
	nbd       map[string]kernel.Found // by backend
	noKernel  bool
	queryErr  error
	queried   []time.Duration // what the children had
	bytes     int64           // of the disk
	readsLong bool            // a process does not listen before it is told to
	kills     int
	said      map[string]string          // last words
	saved     map[string]control.Options // what a process leaves for the next one of the same device
	beforeSet func()                     // see onSet

	afterSet func(p *fakeProcess)

	starts int
	steps  []string
}

type dmDevice struct {
	sectors          int64
	table, nextTable string
	open             int
	underWay         int // requests
	suspended        bool
}

const (
	volume     = "escache-v"
	diskPath   = "/dev/drbd100"
	originPath = "/dev/rbd0"
	originIs   = "252:0"
	diskBytes  = cache.HeaderBytes + 4<<20
	nbdIndex   = 3
)

func newHost(t *testing.T) *host {
	t.Helper()
	dir, err := os.MkdirTemp("/dev/shm", "engine") //nolint:usetesting // t.TempDir is on a disk, and its paths are too long for a socket
	if err != nil {
		t.Fatal(err)
	}
	h := &host{
		t: t, dir: dir, bytes: diskBytes, disk: make([]byte, diskBytes), origin: map[int64][]byte{}, size: 1 << 20,
		fronts: map[string]*dmDevice{}, processes: map[string]*fakeProcess{}, nbd: map[string]kernel.Found{}, said: map[string]string{},
		saved: map[string]control.Options{}, beforeSet: func() {}, afterSet: func(*fakeProcess) {},
	}
	t.Cleanup(func() {
		for _, p := range maps.Clone(h.processes) {
			p.die()
		}
		os.RemoveAll(dir)
	})
	return h
}

// onSet sets what processes do before they apply options, and before they answer.
func (h *host) onSet(before func(), after func(p *fakeProcess)) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.beforeSet, h.afterSet = before, after
}

func (h *host) setting() (before func(), after func(p *fakeProcess)) {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.beforeSet, h.afterSet
}

func (h *host) connected(backend string) (kernel.Found, bool) {
	h.mu.Lock()
	defer h.mu.Unlock()
	found, there := h.nbd[backend]
	return found, there
}

func (h *host) Engine() cache.Engine { return h.engine() }

func (h *host) engine() *Engine {
	return New(Config{Mapper: h, Disks: (*hostDisks)(h), Processes: (*hostProcesses)(h), Kernel: (*hostKernel)(h), Dir: h.dir, Boot: "this one"})
}

func (h *host) Spec() cache.Spec {
	return cache.Spec{Disk: cache.Disk{Name: volume, Path: diskPath}, Origin: originPath, Bytes: h.size}
}

func (h *host) OriginNumber() string { return originIs }

func (h *host) Refuse(refuse bool) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.refuse = refuse
}

func (h *host) Grow(n int64) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.size = n
}

// step is called before every change.
func (h *host) step(format string, args ...any) error {
	h.steps = append(h.steps, fmt.Sprintf(format, args...))
	return h.NextChange()
}

// Devices implements Mapper, as do the following methods.
func (h *host) Devices(_ context.Context, prefix string, use func(map[string]devmapper.Device) error) error {
	h.mu.Lock()
	out := map[string]devmapper.Device{}
	for name, d := range h.fronts {
		if strings.HasPrefix(name, prefix) {
			out[name] = devmapper.Device{Target: "linear", Sectors: d.sectors, Table: d.table, Open: d.open, Suspended: d.suspended}
		}
	}
	h.mu.Unlock()
	return use(out)
}

// parse reads a table: "0 SECTORS linear MAJOR:MINOR 0".
func (h *host) parse(table string) (sectors int64, rest string) {
	h.t.Helper()
	fields := strings.Fields(table)
	if len(fields) != 5 || fields[2] != "linear" || fields[3] != fmt.Sprintf("43:%d", nbdIndex) {
		h.t.Fatalf("the table is %q", table)
	}
	sectors, err := strconv.ParseInt(fields[1], 10, 64)
	if found := h.nbd[process.Backend(volume)]; err != nil || sectors*devmapper.SectorBytes > found.Bytes {
		h.t.Fatalf("the table %q is longer than the device %+v, %v", table, found, err)
	}
	return sectors, strings.Join(fields[3:], " ")
}

func (h *host) Create(_ context.Context, _, device, table string) error {
	if err := h.step("create %s", device); err != nil {
		return err
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.fronts[device] != nil {
		return errors.New("device exists")
	}
	sectors, rest := h.parse(table)
	h.fronts[device] = &dmDevice{sectors: sectors, table: rest}
	return nil
}

func (h *host) Remove(_ context.Context, _, device string) error {
	if err := h.step("remove %s", device); err != nil {
		return err
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	if d := h.fronts[device]; d != nil && d.open > 0 {
		return devmapper.ErrOpen
	}
	delete(h.fronts, device)
	return nil
}

func (h *host) change(what, device string, do func(d *dmDevice)) error {
	if err := h.step("%s %s", what, device); err != nil {
		return err
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	do(h.fronts[device])
	return nil
}

// SuspendNoFreeze waits for what is under way.
func (h *host) SuspendNoFreeze(_ context.Context, _, device string) error {
	if err := h.change("pause", device, func(d *dmDevice) { d.suspended = true }); err != nil {
		return err
	}
	for {
		h.mu.Lock()
		underWay := h.fronts[device].underWay
		h.mu.Unlock()
		if underWay == 0 {
			return nil
		}
		time.Sleep(time.Millisecond)
	}
}

func (h *host) SuspendNoFlush(_ context.Context, _, device string) error {
	return h.change("suspend", device, func(d *dmDevice) { d.suspended = true })
}

func (h *host) Load(_ context.Context, _, device, table string) error {
	return h.change("load", device, func(d *dmDevice) { d.nextTable = table })
}

func (h *host) Resume(_ context.Context, _, device string) error {
	return h.change("resume", device, func(d *dmDevice) {
		if d.nextTable != "" {
			d.sectors, d.table = h.parse(d.nextTable)
		}
		d.nextTable, d.suspended = "", false
	})
}

// hostDisks is the disk below the cache.
type hostDisks host

func (h *hostDisks) Read(_ context.Context, _, _ string, offsets ...int64) ([][]byte, error) {
	h.mu.Lock()
	defer h.mu.Unlock()
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
	h.mu.Lock()
	defer h.mu.Unlock()
	copy(h.disk[offset:], data)
	return nil
}

func (h *hostDisks) Query(_ context.Context, _, query, _ string, timeout time.Duration) ([]byte, error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.queried = append(h.queried, timeout)
	if h.queryErr != nil {
		return nil, h.queryErr
	}
	var out bytes.Buffer
	err := Queries()[query](bytes.NewReader(h.disk), &out)
	return out.Bytes(), err
}

// hostKernel is the NBD driver, and the numbers of devices.
type hostKernel host

func (h *hostKernel) Version() (string, error) {
	if h.noKernel {
		return "", nil
	}
	return version, nil
}

func (h *hostKernel) Connected() (map[string]kernel.Found, error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	return maps.Clone(h.nbd), nil
}

func (h *hostKernel) Disconnect(context.Context, int) error {
	if err := (*host)(h).step("disconnect"); err != nil {
		return err
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	clear(h.nbd)
	return nil
}

func (h *hostKernel) Number(path string) (string, error) {
	switch path {
	case originPath, originIs:
		return originIs, nil
	case kernel.Path(nbdIndex):
		return fmt.Sprintf("43:%d", nbdIndex), nil
	}
	return "", fmt.Errorf("there is no %s", path)
}

func (h *hostKernel) Bytes(string) (int64, error) { return h.bytes, nil }

// hostProcesses are the processes of the host.
type hostProcesses host

func (h *hostProcesses) find(name string) *fakeProcess {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.processes[name]
}

func (h *hostProcesses) Start(_ context.Context, name string, args []string) error {
	if err := (*host)(h).step("start %s", name); err != nil {
		return err
	}
	flags := map[string]string{}
	for pair := range slices.Chunk(args, 2) {
		flags[pair[0]] = pair[1]
	}
	h.starts++
	if before := h.find(name); before != nil {
		before.die() // it hands over
	}
	p, err := serve((*host)(h), flags)
	h.mu.Lock()
	defer h.mu.Unlock()
	if err != nil {
		h.said[name] = err.Error()
		return nil // the process was started, and has ended
	}
	h.processes[name] = p
	return nil
}

func (h *hostProcesses) Running(name string) (bool, error) { return h.find(name) != nil, nil }

func (h *hostProcesses) Kill(_ context.Context, name string) error {
	if p := h.find(name); p != nil {
		h.kills++
		p.die()
	}
	return nil
}

func (h *hostProcesses) Gone(ctx context.Context, name string) error {
	for h.find(name) != nil {
		if ctx.Err() != nil {
			return ctx.Err()
		}
		time.Sleep(time.Millisecond)
	}
	return nil
}

func (h *hostProcesses) LastWords(name string) string {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.said[name]
}

func (h *hostProcesses) Forget(name string) error {
	h.mu.Lock()
	defer h.mu.Unlock()
	delete(h.said, name)
	return nil
}
