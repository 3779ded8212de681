package cachetest

import (
	"fmt"
	"io"
	"os"
	"slices"
	"strings"
	"syscall"

	"github.com/escache/escache-csi/internal/escached/cache"
)

// Paths of the disk and the origin that the contract's checks use.
const (
	fakeName   = "escache-fake"
	fakeDisk   = "/dev/disk"
	fakeOrigin = "/dev/origin"
)

// Engine implements Host. It returns the Fake itself, which has no state that a process would lose.
func (f *Fake) Engine() cache.Engine { return f }

// Spec implements Host.
func (f *Fake) Spec() cache.Spec {
	f.mu.Lock()
	defer f.mu.Unlock()
	return cache.Spec{Disk: cache.Disk{Name: fakeName, Path: fakeDisk}, Origin: fakeOrigin, Bytes: f.size}
}

// OriginNumber implements Host.
func (f *Fake) OriginNumber() string { return f.Number(fakeOrigin) }

// Refuse implements Host.
func (f *Fake) Refuse(refuse bool) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.refuse = refuse
}

// Grow implements Host.
func (f *Fake) Grow(bytes int64) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.size = bytes
}

// Open implements Host.
func (f *Fake) Open(path string) (File, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	switch name, isCache := strings.CutPrefix(path, devDir); {
	case isCache:
		c, ok := f.caches[name]
		if !ok || !c.completed {
			return nil, &os.PathError{Op: "open", Path: path, Err: os.ErrNotExist}
		}
		c.state.Open++
		return &fakeFile{f: f, of: c}, nil
	case path == fakeOrigin:
		if f.origins[f.Number(path)] == nil {
			f.origins[f.Number(path)] = map[int64][]byte{}
		}
		return originFile(f.origins[f.Number(path)]), nil
	}
	return rawFile{f.disk(path)}, nil
}

// fakeFile is an open device of a cache.
type fakeFile struct {
	f  *Fake
	of *assembled
}

// ready waits while the cache is held, unless I/O goes on meanwhile.
func (u *fakeFile) ready(p []byte, at int64) error {
	for u.of.state.Held && !u.f.goesOn(u.of) {
		u.f.resumed.Wait()
	}
	switch {
	case u.of.state.Failed:
		return syscall.EIO
	case at%cache.BlockBytes != 0 || len(p) != cache.BlockBytes:
		return fmt.Errorf("%d bytes at %d: the fake takes one block at a time", len(p), at)
	case at+int64(len(p)) > u.of.state.Bytes:
		return io.EOF
	}
	return nil
}

func (u *fakeFile) ReadAt(p []byte, at int64) (int, error) {
	u.f.mu.Lock()
	defer u.f.mu.Unlock()
	if err := u.ready(p, at); err != nil {
		return 0, err
	}
	clear(p)
	block, ok := u.of.disk.dirty[at]
	if !ok {
		block = u.f.origins[u.of.origin][at]
	}
	u.of.state.Counters.Reads++
	copy(p, block)
	return len(p), nil
}

func (u *fakeFile) WriteAt(p []byte, at int64) (int, error) {
	u.f.mu.Lock()
	defer u.f.mu.Unlock()
	if err := u.ready(p, at); err != nil {
		return 0, err
	}
	u.of.state.Counters.Writes++
	switch {
	case u.of.state.Options.Mode == cache.Writeback:
		u.of.disk.dirty[at] = slices.Clone(p)
	case u.f.refuse:
		return 0, syscall.EIO
	default:
		delete(u.of.disk.dirty, at)
		u.f.origins[u.of.origin][at] = slices.Clone(p)
	}
	return len(p), nil
}

func (u *fakeFile) Close() error {
	u.f.mu.Lock()
	defer u.f.mu.Unlock()
	u.of.state.Open--
	return nil
}

type originFile map[int64][]byte

func (o originFile) ReadAt(p []byte, at int64) (int, error) {
	clear(p)
	copy(p, o[at])
	return len(p), nil
}

func (o originFile) WriteAt(p []byte, at int64) (int, error) {
	o[at] = slices.Clone(p)
	return len(p), nil
}

func (o originFile) Close() error { return nil }

type rawFile struct{ d *disk }

func (r rawFile) ReadAt(p []byte, at int64) (int, error)  { return copy(p, r.d.raw[at:]), nil }
func (r rawFile) WriteAt(p []byte, at int64) (int, error) { return copy(r.d.raw[at:], p), nil }
func (r rawFile) Close() error                            { return nil }
