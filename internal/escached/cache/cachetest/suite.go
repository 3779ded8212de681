package cachetest

import (
	"bytes"
	"errors"
	"slices"

	"github.com/escache/escache-csi/internal/escached/cache"
)

// suite runs one check: it has a host, an engine on it, and the steps that checks share.
type suite struct {
	T

	h    Host
	e    cache.Engine
	spec cache.Spec
	id   cache.Identity
}

func newSuite(t T, h Host) *suite {
	return &suite{
		T: t, h: h, e: h.Engine(), spec: h.Spec(),
		id: cache.Identity{Pool: "rbd", Image: "image", ImageID: "10ab"},
	}
}

func (s *suite) name() string { return s.spec.Disk.Name }

// must ends the check if err is an error.
func (s *suite) must(what string, err error) {
	s.Helper()
	if err != nil {
		s.Fatalf("%s: %v", what, err)
	}
}

// refused fails the check unless err is the error wanted.
func (s *suite) refused(what string, err, want error) {
	s.Helper()
	if !errors.Is(err, want) {
		s.Errorf("%s: got %v, want %v", what, err, want)
	}
}

// prepared wipes and prepares the disk.
func (s *suite) prepared() {
	s.Helper()
	s.must("Wipe", s.e.Wipe(s.Context(), s.spec.Disk))
	s.must("Prepare", s.e.Prepare(s.Context(), s.spec, s.id, false))
}

func (s *suite) assemble() {
	s.Helper()
	_, err := s.e.Assemble(s.Context(), s.spec)
	s.must("Assemble", err)
}

// assembled prepares and assembles a new cache.
func (s *suite) assembled() {
	s.Helper()
	s.prepared()
	s.assemble()
}

func (s *suite) remove() {
	s.Helper()
	s.must("Remove", s.e.Remove(s.Context(), s.name()))
}

func (s *suite) find() (cache.State, bool) {
	s.Helper()
	all, err := s.e.States(s.Context(), s.name())
	s.must("States", err)
	state, ok := all[s.name()]
	return state, ok
}

// state returns the state of the cache. It ends the check if there is none.
func (s *suite) state() cache.State {
	s.Helper()
	state, ok := s.find()
	if !ok {
		s.Fatalf("there is no cache")
	}
	return state
}

// dirty checks how many bytes the engine says are dirty.
func (s *suite) dirty(when string, want int64) {
	s.Helper()
	if got := s.state(); !got.Known || got.Dirty != want {
		s.Errorf("%s %d bytes are dirty (known: %v), not %d", when, got.Dirty, got.Known, want)
	}
}

func (s *suite) onDisk(when string, want int64) {
	s.Helper()
	got, err := s.e.Dirty(s.Context(), s.spec.Disk)
	s.must("Dirty", err)
	if got != want {
		s.Errorf("%s %d bytes are dirty on the disk, not %d", when, got, want)
	}
}

func filled(with byte) []byte { return bytes.Repeat([]byte{with}, cache.BlockBytes) }

// try writes one block to a device and returns the error of the write.
func (s *suite) try(path string, number int64, with byte) error {
	s.Helper()
	f, err := s.h.Open(path)
	s.must("open", err)
	_, err = f.WriteAt(filled(with), number*cache.BlockBytes)
	return errors.Join(err, f.Close())
}

func (s *suite) write(number int64, with byte) {
	s.Helper()
	s.must("write", s.try(s.state().Path, number, with))
}

// holds checks the content of one block of the cache's device, the disk or the origin.
func (s *suite) holds(what, path string, number int64, want byte) {
	s.Helper()
	if got := s.block(path, number); !slices.Equal(got, filled(want)) {
		s.Errorf("%s has %#x in block %d, not %#x", what, got[0], number, want)
	}
}

func (s *suite) block(path string, number int64) []byte {
	s.Helper()
	f, err := s.h.Open(path)
	s.must("open", err)
	got := make([]byte, cache.BlockBytes)
	_, err = f.ReadAt(got, number*cache.BlockBytes)
	s.must("read", errors.Join(err, f.Close()))
	return got
}

// put overwrites one block of the disk.
func (s *suite) put(number int64, block []byte) {
	s.Helper()
	f, err := s.h.Open(s.spec.Disk.Path)
	s.must("open", err)
	_, err = f.WriteAt(block, number*cache.BlockBytes)
	s.must("write to the disk", errors.Join(err, f.Close()))
}

// restart replaces the engine by a new one, as after a restart of the process.
func (s *suite) restart() { s.e = s.h.Engine() }
