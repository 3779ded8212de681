package cachetest

import (
	"context"

	"github.com/escache/escache-csi/internal/escached/cache"
)

// lifeStep is one call in the life of a cache.
type lifeStep struct {
	what string
	do   func(ctx context.Context) error
	// held says that the cache is held afterwards.
	held bool
}

// life assembles and removes a cache, and calls every method that changes something. It writes
// three blocks filled with mark. The last is still dirty at the end.
func (s *suite) life(mark byte) []lifeStep {
	name := s.name()
	write := func(number int64) func(context.Context) error {
		return func(context.Context) error { return s.try(s.state().Path, number, mark) }
	}
	mode := func(m cache.Mode) func(context.Context) error {
		return func(ctx context.Context) error { return s.e.SetMode(ctx, name, m) }
	}
	return []lifeStep{
		{what: "Wipe", do: func(ctx context.Context) error { return s.e.Wipe(ctx, s.spec.Disk) }},
		{what: "Prepare and Assemble", do: func(ctx context.Context) error {
			if _, there := s.find(); there {
				return nil // Resume has completed it
			}
			if err := s.e.Prepare(ctx, s.spec, s.id, false); err != nil {
				return err
			}
			_, err := s.e.Assemble(ctx, s.spec)
			return err
		}},
		{what: "write", do: write(1)},
		{what: "SetMode to write-through", do: mode(cache.Writethrough)},
		{what: "SetMode to write-back", do: mode(cache.Writeback)},
		{what: "SetOptions", do: func(ctx context.Context) error {
			return s.e.SetOptions(ctx, name, cache.Options{HighWatermark: 60, LowWatermark: 40})
		}},
		{what: "Resize", do: func(ctx context.Context) error {
			s.h.Grow(s.spec.Bytes * 2)
			return s.e.Resize(ctx, name, s.spec.Bytes*2)
		}},
		{what: "Hold", do: func(ctx context.Context) error { return s.e.Hold(ctx, name, false) }, held: true},
		{what: "Resume", do: func(ctx context.Context) error { return s.e.Resume(ctx, name) }},
		{what: "Hold with a pause", do: func(ctx context.Context) error { return s.e.Hold(ctx, name, true) }, held: true},
		{what: "Resume", do: func(ctx context.Context) error { return s.e.Resume(ctx, name) }},
		{what: "write", do: write(2)},
		{what: "WriteBack to an origin that refuses", do: func(ctx context.Context) error {
			s.h.Refuse(true)
			defer s.h.Refuse(false)
			if s.e.WriteBack(ctx, name) == nil {
				s.Errorf("WriteBack to an origin that refuses succeeds")
			}
			return nil
		}},
		{what: "Retry", do: func(ctx context.Context) error { return s.e.Retry(ctx, name) }},
		{what: "WriteBack", do: func(ctx context.Context) error { return s.e.WriteBack(ctx, name) }},
		{what: "write", do: write(3)},
		{what: "Remove", do: func(ctx context.Context) error { return s.e.Remove(ctx, name) }},
	}
}

// goesOn stops the engine at the n-th change of every step of a life, for every n.
func goesOn(s *suite) {
	b, ok := s.h.(Breaker)
	if !ok {
		return // this host cannot stop an engine half way
	}
	mark := byte(0)
	for _, kill := range []bool{false, true} {
		for n, broke := 1, true; broke; n++ {
			broke = false
			mark++
			for _, step := range s.life(mark) {
				broke = s.stopAt(b, step, n, kill) || broke
			}
			s.onDisk("after a life", cache.BlockBytes)
			s.holds("the origin after a life", s.spec.Origin, 1, mark)
			s.holds("the origin after a life", s.spec.Origin, 2, mark)
		}
	}
}

// stopAt stops one step at its n-th change and repeats it. It returns false if the step has fewer.
func (s *suite) stopAt(b Breaker, step lifeStep, n int, kill bool) bool {
	s.Helper()
	b.BreakAt(n, kill)
	err := survive(func() error { return step.do(s.Context()) })
	broke := b.Broke()
	if err != nil && !broke {
		s.Fatalf("%s: %v", step.what, err)
	}
	if broke {
		s.restart()
		s.afterwards()
		if err := step.do(s.Context()); err != nil {
			s.Fatalf("%s, stopped at its change %d (killed: %v), then repeated: %v", step.what, n, kill, err)
		}
	}
	if got, there := s.find(); there && got.Held != step.held {
		s.Fatalf("after %s, stopped at its change %d (killed: %v), it is %+v", step.what, n, kill, got)
	}
	return broke
}

// afterwards does what a caller must do after an error or a restart.
func (s *suite) afterwards() {
	s.Helper()
	if _, there := s.find(); there {
		s.must("Resume", s.e.Resume(s.Context(), s.name()))
	} else {
		s.must("Remove", s.e.Remove(s.Context(), s.name()))
	}
}

// survive runs a step in which the engine may be killed.
func survive(do func() error) error {
	defer func() {
		if r := recover(); r != nil {
			if _, ok := r.(Killed); !ok {
				panic(r)
			}
		}
	}()
	return do()
}
