package cachetest

import (
	"errors"
	"time"

	"github.com/escache/escache-csi/internal/escached/cache"
)

func writesBack(s *suite) {
	s.assembled()
	s.write(1, 1)
	s.write(2, 2)
	s.dirty("after two writes", 2*cache.BlockBytes)
	if s.state().Clean() {
		s.Errorf("it is clean")
	}
	s.must("WriteBack", s.e.WriteBack(s.Context(), s.name()))
	s.dirty("after WriteBack", 0)
	s.holds("the origin", s.spec.Origin, 1, 1)
	s.holds("the origin", s.spec.Origin, 2, 2)
	s.holds("the device", s.state().Path, 2, 2)
}

func writesThrough(s *suite) {
	s.assembled()
	s.write(1, 1)
	s.must("SetMode", s.e.SetMode(s.Context(), s.name(), cache.Writethrough))
	if got := s.state(); got.Options.Mode != cache.Writethrough || got.Held {
		s.Errorf("it is %+v", got)
	}
	s.drained()
	s.write(2, 2)
	s.dirty("in write-through", 0)
	s.holds("the origin", s.spec.Origin, 1, 1)
	s.holds("the origin", s.spec.Origin, 2, 2)
	s.must("SetMode", s.e.SetMode(s.Context(), s.name(), cache.Writeback))
	s.write(3, 3)
	s.dirty("in write-back again", cache.BlockBytes)
}

// drainLimit bounds the write-back of a few blocks in write-through, and drainPoll is how often it is told to go on.
const (
	drainLimit = 10 * time.Second
	drainPoll  = 10 * time.Millisecond
)

// drained waits until a cache in write-through has written everything back.
func (s *suite) drained() {
	s.Helper()
	for range drainLimit / drainPoll {
		if s.state().Clean() {
			return
		}
		s.must("SetMode", s.e.SetMode(s.Context(), s.name(), cache.Writethrough))
		time.Sleep(drainPoll)
	}
	s.Fatalf("in write-through it is %+v after %s", s.state(), drainLimit)
}

func setsOptions(s *suite) {
	s.assembled()
	s.write(1, 1)
	f, err := s.h.Open(s.state().Path)
	s.must("open", err)
	given := []cache.Options{{HighWatermark: 60, LowWatermark: 40, MaxAgeSeconds: 3600}}
	if strict := (cache.Options{StrictOrder: true}); s.e.CheckOptions(strict) == nil {
		given = append(given, strict)
	}
	// What is left out has the default again.
	for _, o := range append(given, cache.Options{HighWatermark: 70, LowWatermark: 40}, cache.Options{}) {
		for range 2 { // the second time it has them already
			s.must("SetOptions", s.e.SetOptions(s.Context(), s.name(), o))
		}
		want := o
		want.Mode = cache.Writeback
		if got := s.state(); got.Options != want || got.Held {
			s.Errorf("it is %+v, and was given %+v", got, o)
		}
	}
	s.must("close", f.Close())
	s.dirty("after SetOptions", cache.BlockBytes)
	s.holds("the device", s.state().Path, 1, 1)
	s.must("SetMode", s.e.SetMode(s.Context(), s.name(), cache.Writethrough))
	s.must("SetOptions", s.e.SetOptions(s.Context(), s.name(), cache.Options{Mode: cache.Writeback, HighWatermark: 60, LowWatermark: 40}))
	if got := s.state().Options; got != (cache.Options{Mode: cache.Writethrough, HighWatermark: 60, LowWatermark: 40}) {
		s.Errorf("in write-through it has %+v", got)
	}
}

func outlives(s *suite) {
	s.assembled()
	s.write(1, 1)
	s.remove()
	s.restart()
	s.onDisk("after Remove", cache.BlockBytes)
	s.assemble()
	s.dirty("assembled again", cache.BlockBytes)
	s.holds("the device", s.state().Path, 1, 1)
	s.must("WriteBack", s.e.WriteBack(s.Context(), s.name()))
	s.holds("the origin", s.spec.Origin, 1, 1)
	s.remove()
	s.onDisk("after WriteBack", 0)
}

func retries(s *suite) {
	s.assembled()
	s.write(1, 1)
	s.must("Retry without a failure", s.e.Retry(s.Context(), s.name()))
	s.h.Refuse(true)
	for _, try := range []string{"the first", "one after Retry"} {
		if err := s.e.WriteBack(s.Context(), s.name()); err == nil {
			s.Errorf("%s: WriteBack to an origin that refuses succeeds", try)
		}
		if got := s.state(); !got.Failed || got.Clean() || got.Dirty != cache.BlockBytes {
			s.Errorf("%s: it is %+v", try, got)
		}
		s.must("Retry", s.e.Retry(s.Context(), s.name()))
		if got := s.state(); got.Failed || got.Held || got.Dirty != cache.BlockBytes {
			s.Errorf("%s: after Retry it is %+v", try, got)
		}
	}
	s.h.Refuse(false)
	s.must("WriteBack", s.e.WriteBack(s.Context(), s.name()))
	s.dirty("after the origin is back", 0)
	s.holds("the origin", s.spec.Origin, 1, 1)
}

func retriesThrough(s *suite) {
	s.assembled()
	s.write(1, 1)
	s.h.Refuse(true)
	s.must("SetMode", s.e.SetMode(s.Context(), s.name(), cache.Writethrough))
	f, err := s.h.Open(s.state().Path)
	s.must("open", err)
	written := make(chan error, 1)
	go func() { // it fails, or waits for Retry
		_, err := f.WriteAt(filled(2), 2*cache.BlockBytes)
		written <- errors.Join(err, f.Close())
	}()
	time.Sleep(stillHeld)
	if err := s.e.WriteBack(s.Context(), s.name()); err == nil {
		s.Errorf("WriteBack to an origin that refuses succeeds")
	}
	if got := s.state(); !got.Failed || got.Clean() || got.Dirty == 0 {
		s.Errorf("it is %+v", got)
	}
	s.h.Refuse(false)
	s.must("Retry", s.e.Retry(s.Context(), s.name()))
	done := <-written == nil
	s.must("WriteBack", s.e.WriteBack(s.Context(), s.name()))
	s.dirty("after the origin is back", 0)
	s.holds("the origin", s.spec.Origin, 1, 1)
	if done {
		s.holds("the origin", s.spec.Origin, 2, 2)
	}
}

// stillHeld is how long a write gets to reach an origin that must not change.
const stillHeld = 50 * time.Millisecond

func holdsStill(s *suite) {
	s.assembled()
	s.write(1, 1)
	s.must("Hold", s.e.Hold(s.Context(), s.name(), false))
	path := s.state().Path
	if !s.state().Held {
		s.Errorf("it is not held")
	}
	s.holds("the held origin", s.spec.Origin, 1, 1)
	f, err := s.h.Open(path)
	s.must("open", err)
	written := make(chan error, 1)
	go func() {
		_, err := f.WriteAt(filled(2), cache.BlockBytes)
		written <- errors.Join(err, f.Close())
	}()
	time.Sleep(stillHeld)
	s.holds("the held origin", s.spec.Origin, 1, 1)
	if len(written) > 0 && !s.state().GoesOn {
		s.Errorf("a write does not wait, and the state does not say so")
	}
	s.must("Resume", s.e.Resume(s.Context(), s.name()))
	s.must("the write that waited", <-written)
	if got := s.state(); got.Held || got.GoesOn {
		s.Errorf("after Resume it is %+v", got)
	}
	s.holds("the device", path, 1, 2)
	s.must("WriteBack", s.e.WriteBack(s.Context(), s.name()))
	s.holds("the origin", s.spec.Origin, 1, 2)
}

func pauses(s *suite) {
	s.assembled()
	s.write(1, 1)
	s.must("Hold", s.e.Hold(s.Context(), s.name(), true))
	path := s.state().Path
	f, err := s.h.Open(path)
	s.must("open", err)
	written := make(chan error, 1)
	go func() {
		_, err := f.WriteAt(filled(2), cache.BlockBytes)
		written <- errors.Join(err, f.Close())
	}()
	for range 2 { // also after a restart
		time.Sleep(stillHeld)
		if got := s.state(); len(written) > 0 || !got.Held || got.GoesOn {
			s.Errorf("in a pause a write is done: %v; it is %+v", len(written) > 0, got)
		}
		s.holds("the held origin", s.spec.Origin, 1, 1)
		s.restart()
	}
	s.must("Resume", s.e.Resume(s.Context(), s.name()))
	s.must("the write that waited", <-written)
	if got := s.state(); got.Held || got.GoesOn {
		s.Errorf("after Resume it is %+v", got)
	}
	s.holds("the device", path, 1, 2)
	s.h.Refuse(true)
	s.refused("Hold with a pause over an origin that refuses", s.e.Hold(s.Context(), s.name(), true), cache.ErrFailed)
	s.h.Refuse(false)
	s.must("Resume", s.e.Resume(s.Context(), s.name()))
	s.write(1, 3)
}

func holdFails(s *suite) {
	s.assembled()
	s.write(1, 1)
	s.h.Refuse(true)
	s.refused("Hold over an origin that refuses", s.e.Hold(s.Context(), s.name(), false), cache.ErrFailed)
	s.h.Refuse(false)
	s.must("Resume", s.e.Resume(s.Context(), s.name()))
	if got := s.state(); got.Held || got.Failed || got.Dirty != cache.BlockBytes {
		s.Errorf("after Resume it is %+v", got)
	}
	s.must("Hold", s.e.Hold(s.Context(), s.name(), false))
	s.holds("the held origin", s.spec.Origin, 1, 1)
	s.must("Resume", s.e.Resume(s.Context(), s.name()))
}

func holdOutlives(s *suite) {
	s.assembled()
	s.must("Hold", s.e.Hold(s.Context(), s.name(), false))
	s.restart()
	if !s.state().Held {
		s.Errorf("a new process does not find it held")
	}
	s.must("Resume", s.e.Resume(s.Context(), s.name()))
	if s.state().Held {
		s.Errorf("a new process cannot end the hold")
	}
}
