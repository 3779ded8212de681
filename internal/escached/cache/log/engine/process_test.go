package engine

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net/http"
	"os"
	"strconv"
	"sync"
	"time"

	"github.com/escache/escache-csi/internal/escached/cache"
	"github.com/escache/escache-csi/internal/escached/cache/log/control"
	"github.com/escache/escache-csi/internal/escached/cache/log/device"
	"github.com/escache/escache-csi/internal/escached/cache/log/memory"
	"github.com/escache/escache-csi/internal/escached/cache/log/nbd/kernel"
	"github.com/escache/escache-csi/internal/escached/cache/log/process"
	"github.com/escache/escache-csi/internal/unixsocket"
)

// fakeProcess is a process of the host: the real device of the log behind the real protocol, on the host's
// disk and origin.
type fakeProcess struct {
	h      *host
	flags  map[string]string
	device *device.Device
	memory *memory.Memory
	server *http.Server

	mu      sync.Mutex
	options control.Options
	bytes   int64
	broken  string
}

// serve does what the program does after its start.
func serve(h *host, flags map[string]string) (*fakeProcess, error) {
	p := &fakeProcess{h: h, flags: flags}
	number := func(flag string) int { n, _ := strconv.Atoi(flags[flag]); return n }
	p.options = control.Options{
		Mode: cache.Mode(flags["--mode"]), HighWatermark: number("--high-watermark"), LowWatermark: number("--low-watermark"),
		MaxAgeSeconds: number("--max-age-seconds"), Order: control.Order(flags["--order"]),
	}
	p.bytes = int64(number("--bytes"))
	id := cache.Identity{Pool: flags["--pool"], Image: flags["--image"], ImageID: flags["--image-id"]}
	h.mu.Lock()
	_, err := id.Judge(h.disk[:cache.BlockBytes], true)
	h.mu.Unlock()
	if err != nil {
		return nil, err
	}
	if flags["--disk"] != diskPath || flags["--origin"] != originIs {
		return nil, fmt.Errorf("it serves %s and %s", flags["--disk"], flags["--origin"])
	}
	if p.memory, err = memory.Open(flags["--memory"]); err != nil {
		return nil, err
	}
	opened, losses, err := device.Open((*disk)(h), (*image)(h), p.memory)
	if err == nil && len(losses) > 0 {
		opened.Close()
		err = fmt.Errorf("%v: %w", losses, process.ErrLosses)
	}
	if err != nil {
		return nil, errors.Join(err, p.memory.Close())
	}
	p.device = opened
	if _, goesOn := h.connected(process.Backend(flags["--name"])); goesOn {
		p.options = h.saved[flags["--name"]]
	}
	p.apply(p.options)
	if h.readsLong {
		return p, nil
	}
	return p, p.listen()
}

// listen ends the recovery.
func (p *fakeProcess) listen() error {
	h, flags := p.h, p.flags
	listener, err := unixsocket.Listen(flags["--socket"], unixsocket.Modes{Directory: 0o700, Socket: 0o600})
	if err != nil {
		return err
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	backend := process.Backend(flags["--name"])
	if found, there := h.nbd[backend]; there {
		p.bytes = found.Bytes
	} else {
		h.nbd[backend] = kernel.Found{Index: nbdIndex, Bytes: p.bytes}
	}
	p.server = &http.Server{Handler: control.Handler(p), ReadHeaderTimeout: time.Second}
	go func() { _ = p.server.Serve(listener) }()
	return nil
}

// die ends the process at once. What it has answered stays in its memory.
func (p *fakeProcess) die() {
	if p.server != nil {
		_ = p.server.Close()
	}
	p.device.Close()
	p.device.Wait()
	_ = p.memory.Close()
	p.h.mu.Lock()
	defer p.h.mu.Unlock()
	delete(p.h.processes, p.flags["--name"])
}

func (p *fakeProcess) Status() control.Status {
	s := p.device.State()
	p.mu.Lock()
	defer p.mu.Unlock()
	return control.Status{
		Name: p.flags["--name"], Device: kernel.Path(nbdIndex), Origin: originIs, Bytes: p.bytes, Options: p.options,
		Dirty: int64(s.Dirty) * cache.BlockBytes, Free: int64(s.Log.Ring-s.Log.Live) * cache.BlockBytes, Failed: s.Refused != nil, Held: s.Held,
		Broken: p.broken, Log: control.Log{Bytes: int64(s.Log.Ring) * cache.BlockBytes},
	}
}

func verdict(err error) error {
	switch {
	case errors.Is(err, device.ErrRefused):
		return fmt.Errorf("%w: %w", cache.ErrFailed, err)
	case errors.Is(err, device.ErrHeld):
		return control.ErrHeld
	}
	return err
}

func (p *fakeProcess) WriteBack(ctx context.Context) error { return verdict(p.device.WriteBack(ctx)) }
func (p *fakeProcess) Retry() error                        { p.device.Retry(); return nil }

// SetMode writes back what is dirty before it returns. The real process does that later.
func (p *fakeProcess) SetMode(ctx context.Context, m cache.Mode) error {
	if err := p.set(func(o control.Options) control.Options { o.Mode = m; return o }); err != nil || m == cache.Writeback {
		return err
	}
	_ = p.device.WriteBack(ctx) // nobody waits for it
	return nil
}

func (p *fakeProcess) SetOptions(next control.Options) error {
	return p.set(func(o control.Options) control.Options {
		next.Mode, next.Order = cmp.Or(next.Mode, o.Mode), cmp.Or(next.Order, o.Order)
		return next
	})
}

func (p *fakeProcess) set(change func(control.Options) control.Options) error {
	before, after := p.h.setting()
	before()
	p.mu.Lock()
	p.apply(change(p.options))
	p.mu.Unlock()
	after(p)
	return nil
}

// apply puts options into effect, and saves them for the next process.
func (p *fakeProcess) apply(o control.Options) {
	p.options = o
	p.h.mu.Lock()
	p.h.saved[p.flags["--name"]] = o
	p.h.mu.Unlock()
	p.device.WriteThrough(o.Mode == cache.Writethrough)
}

func (p *fakeProcess) Resize(n int64) error {
	p.h.mu.Lock()
	defer p.h.mu.Unlock()
	if n > p.h.size {
		return control.ErrInvalid
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	p.bytes = max(p.bytes, n)
	p.h.nbd[process.Backend(p.flags["--name"])] = kernel.Found{Index: nbdIndex, Bytes: p.bytes}
	return nil
}

func (p *fakeProcess) Hold(ctx context.Context, limit time.Duration) error {
	return verdict(p.device.Hold(ctx, limit))
}

func (p *fakeProcess) Resume() (control.Resumed, error) {
	return control.Resumed{Held: p.device.Resume()}, nil
}

func (p *fakeProcess) Stop(context.Context) error {
	p.mu.Lock()
	broken := p.broken
	p.mu.Unlock()
	if broken != "" {
		return fmt.Errorf("%w: %s", control.ErrBroken, broken)
	}
	if err := p.device.Flush(); err != nil {
		return err
	}
	p.h.mu.Lock()
	delete(p.h.nbd, process.Backend(p.flags["--name"]))
	p.h.mu.Unlock()
	err := os.Remove(p.flags["--memory"])
	go p.leave()
	return err
}

// A successor ends the process before by itself: see hostProcesses.Start.
func (*fakeProcess) HandOver(context.Context) (control.Handed, error) {
	return control.Handed{}, control.ErrOther
}

func (*fakeProcess) Leave() error { return control.ErrInvalid }

// breakLog is what the process says after the log's disk has refused a write.
func (p *fakeProcess) breakLog() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.broken = "input/output error"
}

// leave ends the process after its last answer.
func (p *fakeProcess) leave() {
	_ = p.server.Shutdown(context.Background())
	p.die()
}
