package cachetest

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"time"

	"github.com/escache/escache-csi/internal/escached/cache"
)

// Fake is a host with a cache engine in memory. It passes the contract, so it behaves for its users
// as a real engine does. Reboot removes all caches, but the contents of their disks stay.
type Fake struct {
	Stops

	// Step is called before every change, with a description of the change. If it returns an error,
	// the change does not happen.
	Step func(what string) error
	// Alias returns the one path of a disk that has several.
	Alias func(path string) string
	// Number returns an origin's device number from its path.
	Number func(path string) string
	// Checking is called by Check, which returns its error.
	Checking func(ctx context.Context) error
	// Counting is called by Dirty, which returns its error.
	Counting func(ctx context.Context) error
	// Reads is how long Check and Dirty may take.
	Reads time.Duration
	// RecoversLong means that a cache that is made, or whose process has died, is not served for now: its process reads the disk.
	RecoversLong bool
	// DirtyErr is the error that Dirty returns, if it is not nil.
	DirtyErr error
	// StopErr is the error that Stop returns, if it is not nil: the process of the cache has just died.
	StopErr error
	// GoesOn means that I/O goes on during a hold without a pause, as with the engine log.
	GoesOn bool
	// Suspending is called before a change suspends a cache. While it waits, everybody else may look at the cache.
	Suspending func(name string)
	// Resumed is called when Resume ends a hold or a change that was interrupted.
	Resumed func(*cache.State)
	// NoKernel means that the kernel has not the module of the engine.
	NoKernel bool
	// Scans counts calls of Dirty.
	Scans int

	mu      sync.Mutex
	resumed *sync.Cond
	disks   map[string]*disk
	origins map[string]map[int64][]byte // by number, then by offset
	caches  map[string]*assembled
	refuse  bool
	size    int64
}

// disk is a cache's disk: header and metadata as they are, dirty blocks by offset in the origin.
type disk struct {
	raw   []byte
	dirty map[int64][]byte
}

type assembled struct {
	disk      *disk
	origin    string
	state     cache.State
	completed bool // its device was made
	paused    bool // the hold has I/O rest
}

const (
	rawBytes = 2 << 20
	// fakeBlocks is the number of blocks of a cache.
	fakeBlocks = 1000
	devDir     = "/dev/fake/"
	// MemoryShare says how much memory an assembled cache takes: its size divided by this.
	MemoryShare = 50
)

var metadata = []byte("the fake engine's metadata")

// NewFake returns a host. Every path on it is a blank disk or origin when it is first used.
func NewFake() *Fake {
	f := &Fake{
		Step: func(string) error { return nil }, Suspending: func(string) {}, Resumed: func(*cache.State) {},
		Checking: func(context.Context) error { return nil }, Counting: func(context.Context) error { return nil }, Reads: time.Minute,
		Alias:  func(path string) string { return path },
		Number: func(path string) string { return path }, size: 1 << 20,
		disks: map[string]*disk{}, origins: map[string]map[int64][]byte{}, caches: map[string]*assembled{},
	}
	f.resumed = sync.NewCond(&f.mu)
	return f
}

// change is called before every change.
func (f *Fake) change(what string) error {
	if err := f.NextChange(); err != nil {
		return err
	}
	return f.Step(what)
}

func (f *Fake) disk(path string) *disk {
	path = f.Alias(path)
	if f.disks[path] == nil {
		f.disks[path] = &disk{raw: make([]byte, rawBytes), dirty: map[int64][]byte{}}
	}
	return f.disks[path]
}

func (f *Fake) cache(name string) (*assembled, error) {
	c, ok := f.caches[name]
	if !ok {
		return nil, fmt.Errorf("%s: %w", name, cache.ErrAbsent)
	}
	return c, nil
}

// Raw returns the start of a disk: the MiB of escached's header, then the engine's metadata. The
// caller may change it.
func (f *Fake) Raw(path string) []byte {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.disk(path).raw
}

// SetDirty writes a cache with this many dirty bytes to a disk.
func (f *Fake) SetDirty(path string, bytes int64) {
	f.mu.Lock()
	defer f.mu.Unlock()
	d := f.disk(path)
	copy(d.metadata(), metadata)
	d.dirty = map[int64][]byte{}
	for at := int64(0); at < bytes; at += cache.BlockBytes {
		d.dirty[at] = make([]byte, cache.BlockBytes)
	}
}

// Alter changes the state that States returns for a cache.
func (f *Fake) Alter(name string, alter func(*cache.State)) {
	f.mu.Lock()
	defer f.mu.Unlock()
	alter(&f.caches[name].state)
}

// Assembled returns the names of all caches.
func (f *Fake) Assembled() []string {
	f.mu.Lock()
	defer f.mu.Unlock()
	var names []string
	for name := range f.caches {
		names = append(names, name)
	}
	return names
}

// Reboot removes all caches at once.
func (f *Fake) Reboot() {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.caches = map[string]*assembled{}
}

// Wipe implements cache.Engine.
func (f *Fake) Wipe(_ context.Context, d cache.Disk) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	if err := f.change("wipe " + d.Name); err != nil {
		return err
	}
	on := f.disk(d.Path)
	clear(on.raw[:cache.HeaderBytes+cache.BlockBytes])
	on.dirty = map[int64][]byte{}
	return nil
}

func (d *disk) metadata() []byte {
	return d.raw[cache.HeaderBytes : cache.HeaderBytes+cache.BlockBytes]
}

// Unused implements cache.Engine.
func (f *Fake) Unused(_ context.Context, d cache.Disk) (bool, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	on := f.disk(d.Path)
	return cache.Blank(on.raw[:cache.BlockBytes]) && cache.Blank(on.metadata()), nil
}

// Dirty implements cache.Engine.
func (f *Fake) Dirty(ctx context.Context, d cache.Disk) (int64, error) {
	if err := f.Counting(ctx); err != nil {
		return 0, err
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	f.Scans++
	on := f.disk(d.Path)
	formatted, err := cache.Formatted(on.raw[:cache.BlockBytes])
	switch {
	case f.DirtyErr != nil:
		return 0, f.DirtyErr
	case err != nil:
		return 0, err
	case formatted && !on.formatted():
		return 0, fmt.Errorf("%w: its metadata is not the fake engine's", cache.ErrCorrupt)
	case cache.Blank(on.metadata()):
		return 0, nil
	case !on.formatted():
		return 0, fmt.Errorf("%w: its metadata is not the fake engine's", cache.ErrCorrupt)
	}
	return int64(len(on.dirty)) * cache.BlockBytes, nil
}

func (d *disk) formatted() bool { return string(d.metadata()[:len(metadata)]) == string(metadata) }

// CheckOptions implements cache.Engine.
func (f *Fake) CheckOptions(o cache.Options) error {
	if o.HighWatermark > 0 && o.LowWatermark > o.HighWatermark {
		return errors.New("lowWatermark is above highWatermark")
	}
	return nil
}

// Check implements cache.Engine.
func (f *Fake) Check(ctx context.Context, d cache.Disk, id cache.Identity, usedHere bool) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	if err := f.Checking(ctx); err != nil {
		return err
	}
	_, err := f.disk(d.Path).judge(id, usedHere)
	return err
}

func (d *disk) judge(id cache.Identity, usedHere bool) (format bool, err error) {
	format, err = id.Judge(d.raw[:cache.BlockBytes], usedHere)
	if err == nil && !format && !d.formatted() {
		err = fmt.Errorf("%w: its metadata is not the fake engine's", cache.ErrCorrupt)
	}
	return format, err
}

// Prepare implements cache.Engine.
func (f *Fake) Prepare(_ context.Context, s cache.Spec, id cache.Identity, usedHere bool) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	on := f.disk(s.Disk.Path)
	format, err := on.judge(id, usedHere)
	if err != nil || !format {
		return err
	}
	for _, formatted := range []bool{false, true} {
		block, err := cache.Header{Identity: id, Formatted: formatted}.Block()
		if err != nil {
			return err
		}
		if err := f.change("write header of " + s.Disk.Name); err != nil {
			return err
		}
		copy(on.raw, block)
		if formatted {
			return nil
		}
		if err := f.change("format " + s.Disk.Name); err != nil {
			return err
		}
		on.dirty = map[int64][]byte{}
		copy(on.metadata(), metadata)
	}
	return nil
}

// Assemble implements cache.Engine.
func (f *Fake) Assemble(_ context.Context, s cache.Spec) (string, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	name := s.Disk.Name
	if _, ok := f.caches[name]; ok {
		return "", fmt.Errorf("%s exists", name)
	}
	if err := f.change("assemble " + name); err != nil {
		return "", err
	}
	number := f.Number(s.Origin)
	if f.origins[number] == nil {
		f.origins[number] = map[int64][]byte{}
	}
	if s.Options.Mode == "" {
		s.Options.Mode = cache.Writeback
	}
	// It says that it measures, so that its users export all there is.
	none := cache.Histogram{Bounds: []float64{1}, Counts: []uint64{0, 0}}
	f.caches[name] = &assembled{disk: f.disk(s.Disk.Path), origin: number, state: cache.State{
		Measures: &cache.Measures{Reads: none, Writes: none, Flushes: none, RecordWrites: none},
		Path:     devDir + name, Origin: number, Bytes: s.Bytes, Options: s.Options, Known: true,
	}}
	if f.RecoversLong {
		state := &f.caches[name].state
		state.Unserved, state.Held, state.Known = "it reads its log", true, false
		return "", fmt.Errorf("%w: %w", cache.ErrUnserved, cache.ErrRecovering)
	}
	if err := f.complete(name, f.caches[name]); err != nil {
		delete(f.caches, name)
		return "", err
	}
	return devDir + name, nil
}

func (f *Fake) complete(name string, c *assembled) error {
	if c.completed {
		return nil
	}
	if err := f.change("make the device of " + name); err != nil {
		return err
	}
	c.completed = true
	return nil
}

// Remove implements cache.Engine.
func (f *Fake) Remove(_ context.Context, name string) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	c, ok := f.caches[name]
	if !ok {
		return nil
	}
	if err := f.change("remove " + name); err != nil {
		return err
	}
	if c.state.Open > 0 {
		return cache.ErrOpen
	}
	delete(f.caches, name)
	return nil
}

// Fail implements cache.Engine. Whoever waits for the process of an unserved device was killed, and ends.
func (f *Fake) Fail(_ context.Context, name string) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	c, ok := f.caches[name]
	if !ok || c.state.Unserved == "" {
		return nil
	}
	if err := f.change("fail the I/O of " + name); err != nil {
		return err
	}
	c.state.Open = 0
	return nil
}

// Stop implements cache.Engine.
func (f *Fake) Stop(ctx context.Context, name string) error {
	if f.StopErr != nil {
		f.Alter(name, func(s *cache.State) { s.Held, s.Known, s.Unserved = true, false, "its process has died" })
		return f.StopErr
	}
	return f.Remove(ctx, name)
}

// States implements cache.Engine.
func (f *Fake) States(_ context.Context, prefix string) (map[string]cache.State, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	out := map[string]cache.State{}
	for name, c := range f.caches {
		if s := c.state; strings.HasPrefix(name, prefix) {
			s.GoesOn = s.Held && f.goesOn(c)
			if s.Known {
				s.Dirty = int64(len(c.disk.dirty)) * cache.BlockBytes
				s.Free = fakeBlocks*cache.BlockBytes - s.Dirty
			}
			out[name] = s
		}
	}
	return out, nil
}

func (f *Fake) goesOn(c *assembled) bool { return f.GoesOn && !c.paused }

// ReadTime implements cache.Engine.
func (f *Fake) ReadTime(diskBytes int64) time.Duration {
	return f.Reads + time.Duration(max(0, diskBytes))
}

// Memory implements cache.Engine.
func (f *Fake) Memory(diskBytes int64) int64 { return max(0, diskBytes) / MemoryShare }

// Version implements cache.Engine.
func (f *Fake) Version(context.Context) (string, error) {
	if f.NoKernel {
		return "", nil
	}
	return "1", nil
}

// Modules implements cache.Engine.
func (f *Fake) Modules() []string { return []string{"fake"} }
