package command

import "sync"

// Breaker remembers which volumes have a child stuck in the kernel, so that no more are piled on top of it. It closes
// by itself when the kernel lets the child go.
type Breaker struct {
	mu    sync.Mutex
	stuck map[breakerKey]*StuckError
}

// A stuck query must stop further queries, but a stuck change must not: status has to answer.
type breakerKey struct {
	volume string
	query  bool
}

// NewBreaker returns a closed breaker.
func NewBreaker() *Breaker { return &Breaker{stuck: map[breakerKey]*StuckError{}} }

// Allow refuses with the stuck child's *StuckError. Commands of no volume are always allowed.
func (b *Breaker) Allow(volume string, query bool) error {
	if volume == "" {
		return nil
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	if e := b.stuck[breakerKey{volume, query}]; e != nil {
		return e
	}
	return nil
}

// Trip opens the breaker until done delivers.
func (b *Breaker) Trip(volume string, query bool, e *StuckError, done <-chan error) {
	if volume == "" {
		return
	}
	key := breakerKey{volume, query}
	b.mu.Lock()
	b.stuck[key] = e
	b.mu.Unlock()
	go func() {
		<-done //nolint:errcheck // that it is gone is all that matters
		b.mu.Lock()
		defer b.mu.Unlock()
		if b.stuck[key] == e {
			delete(b.stuck, key)
		}
	}()
}

// Stuck lists the stuck children by volume.
func (b *Breaker) Stuck() map[string]*StuckError {
	b.mu.Lock()
	defer b.mu.Unlock()
	out := map[string]*StuckError{}
	for key, e := range b.stuck {
		if out[key.volume] == nil || !key.query {
			out[key.volume] = e
		}
	}
	return out
}
