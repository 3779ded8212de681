package command

import "sync"

// Breaker remembers which volumes have a child process that is stuck in the kernel, and refuses to
// start more of them. It closes by itself when the child ends.
type Breaker struct {
	mu    sync.Mutex
	stuck map[breakerKey]*StuckError
}

// A stuck query blocks further queries, but a stuck change does not: status must still answer.
type breakerKey struct {
	volume string
	query  bool
}

// NewBreaker returns a closed breaker.
func NewBreaker() *Breaker { return &Breaker{stuck: map[breakerKey]*StuckError{}} }

// Allow returns the *StuckError of the volume's stuck child, or nil. Commands without a volume are
// always allowed.
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

// Trip opens the breaker until something arrives on done.
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

// Stuck returns the stuck children by volume.
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
