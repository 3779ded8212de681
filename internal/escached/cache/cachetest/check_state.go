package cachetest

import (
	"github.com/escache/escache-csi/internal/escached/cache"
)

func assembles(s *suite) {
	s.prepared()
	s.spec.Options = cache.Options{Mode: cache.Writethrough, HighWatermark: 60, LowWatermark: 40, MaxAgeSeconds: 30}
	path, err := s.e.Assemble(s.Context(), s.spec)
	s.must("Assemble", err)
	got := s.state()
	want := cache.State{
		Path: path, Origin: s.h.OriginNumber(), Bytes: s.spec.Bytes, Options: s.spec.Options,
		Known: true, Free: got.Free, Counters: got.Counters, Measures: got.Measures, // udev may have read
	}
	if got.Open > 0 { // udev again
		want.Open = got.Open
	}
	if got != want || got.Free <= 0 || !got.Clean() {
		s.Errorf("it is %+v, not %+v", got, want)
	}
	s.remove()
	s.spec.Options = cache.Options{}
	s.assemble()
	if got := s.state().Options.Mode; got != cache.Writeback {
		s.Errorf("without a mode it is %q", got)
	}
}

func filtersStates(s *suite) {
	s.assembled()
	for prefix, want := range map[string]int{s.name()[:4]: 1, s.name(): 1, s.name() + "x": 0, "other": 0} {
		if all, err := s.e.States(s.Context(), prefix); err != nil || len(all) != want {
			s.Errorf("%q: %+v, %v", prefix, all, err)
		}
	}
	s.remove()
	if _, there := s.find(); there {
		s.Errorf("it is there after Remove")
	}
}

func absent(s *suite) {
	ctx, name := s.Context(), s.name()
	s.refused("WriteBack", s.e.WriteBack(ctx, name), cache.ErrAbsent)
	s.refused("Retry", s.e.Retry(ctx, name), cache.ErrAbsent)
	s.refused("SetMode", s.e.SetMode(ctx, name, cache.Writethrough), cache.ErrAbsent)
	s.refused("SetOptions", s.e.SetOptions(ctx, name, cache.Options{MaxAgeSeconds: 1}), cache.ErrAbsent)
	s.refused("Resize", s.e.Resize(ctx, name, s.spec.Bytes), cache.ErrAbsent)
	s.refused("Hold", s.e.Hold(ctx, name, false), cache.ErrAbsent)
	s.refused("Resume", s.e.Resume(ctx, name), cache.ErrAbsent)
}

func removes(s *suite) {
	s.must("Remove of nothing", s.e.Remove(s.Context(), s.name()))
	s.assembled()
	f, err := s.h.Open(s.state().Path)
	s.must("open", err)
	if open := s.state().Open; open != 1 {
		s.Errorf("it is open %d times, not once", open)
	}
	s.refused("Remove while open", s.e.Remove(s.Context(), s.name()), cache.ErrOpen)
	if _, there := s.find(); !there {
		s.Fatalf("it was removed while open")
	}
	s.must("close", f.Close())
	for range 2 {
		s.remove()
	}
}

// programMemory is what an engine may take beside what grows with the cache: a process may serve it.
const programMemory = 512 << 20

func takesMemory(s *suite) {
	var last int64
	for _, size := range []int64{0, 1, cache.BlockBytes, 64 << 20, 64<<20 + 1, 1 << 30, 100 << 30, 1 << 40, 1 << 50} {
		got := s.e.Memory(size)
		if got < last || size > 0 && got > size+programMemory {
			s.Errorf("a cache of %d bytes takes %d bytes of memory, a smaller one %d", size, got, last)
		}
		last = got
	}
}

func takesTimeToRead(s *suite) {
	last := s.e.ReadTime(0)
	if last <= 0 {
		s.Errorf("it has %s to read an empty disk", last)
	}
	for _, size := range []int64{1, cache.BlockBytes, 64 << 20, 64<<20 + 1, 1 << 30, 100 << 30, 1 << 40, 1 << 50} {
		got := s.e.ReadTime(size)
		if got < last {
			s.Errorf("a disk of %d bytes has %s to be read, a smaller one %s", size, got, last)
		}
		last = got
	}
}

func resumesNothing(s *suite) {
	s.assembled()
	s.write(1, 1)
	before := s.state()
	s.must("Resume", s.e.Resume(s.Context(), s.name()))
	after := s.state()
	after.Counters, after.Measures = before.Counters, before.Measures
	if after != before {
		s.Errorf("it was %+v and is %+v", before, after)
	}
	s.h.Refuse(true)
	if err := s.e.WriteBack(s.Context(), s.name()); err == nil {
		s.Errorf("WriteBack to an origin that refuses succeeds")
	}
	s.must("Resume", s.e.Resume(s.Context(), s.name()))
	if !s.state().Failed {
		s.Errorf("Resume cleared a failure of a cache that is not held")
	}
}

func resizes(s *suite) {
	s.assembled()
	s.write(1, 1)
	old := s.state().Bytes
	s.h.Grow(2 * old)
	f, err := s.h.Open(s.state().Path)
	s.must("open", err)
	for range 2 { // the second time it is done already
		s.must("Resize", s.e.Resize(s.Context(), s.name(), 2*old))
	}
	s.must("close", f.Close())
	if got := s.state(); got.Bytes != 2*old || got.Held {
		s.Errorf("it is %+v, not of %d bytes", got, 2*old)
	}
	s.holds("the device", s.state().Path, 1, 1)
	s.write(2*old/cache.BlockBytes-1, 2)
	s.must("Resize to less", s.e.Resize(s.Context(), s.name(), old))
	if got := s.state().Bytes; got != 2*old {
		s.Errorf("it shrank to %d bytes", got)
	}
	s.dirty("after Resize", 2*cache.BlockBytes)
}
