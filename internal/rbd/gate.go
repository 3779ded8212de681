package rbd

import (
	"context"
	"fmt"
	"sync"
	"time"
)

// gate limits calls into a library that has no contexts. Each call runs on its own goroutine and
// holds one slot until it really ends. The caller returns when its context ends; from then on the
// call counts as stuck. If too many calls are stuck, new ones are refused at once instead of piling
// up. Stuck calls end after the library's own time limits, and then the gate opens again by itself.
type gate struct {
	cluster  string
	timeout  time.Duration // for callers without a deadline of their own
	maxStuck int
	slots    chan struct{}
	names    names

	mu      sync.Mutex
	running map[*flight]struct{}
	stuck   int
}

type flight struct {
	op        string
	since     time.Time
	abandoned bool
	ended     bool
}

func newGate(cluster string, slots, maxStuck int, timeout time.Duration) *gate {
	return &gate{
		cluster: cluster, timeout: timeout, maxStuck: maxStuck,
		slots: make(chan struct{}, slots), running: map[*flight]struct{}{},
		names: names{queues: map[string]*queue{}},
	}
}

// pass runs fn within the gate. fn must not touch what the caller can see: it may outlive the call.
// alone, if not empty, names what no other call may touch until this one has really ended.
func pass[T any](ctx context.Context, g *gate, op, alone string, fn func() (T, error)) (T, error) {
	var none T
	ctx, cancel := context.WithTimeout(ctx, g.timeout)
	defer cancel()
	if err := g.enter(ctx, op, alone); err != nil {
		return none, err
	}
	type answer struct {
		value T
		err   error
	}
	answers := make(chan answer, 1)
	f := g.start(op)
	go func() {
		value, err := fn()
		g.end(f)
		g.names.leave(alone)
		answers <- answer{value, err}
	}()
	select {
	case a := <-answers:
		return a.value, a.err
	case <-ctx.Done():
		select {
		case a := <-answers: // both at once: the answer is worth more
			return a.value, a.err
		default:
		}
		g.abandon(f)
		return none, g.unavailable(ctx, op, fmt.Sprintf("no answer for %s", ago(time.Now(), f.since)))
	}
}

// enter takes a slot, and the name first: a call that waits for a name must not keep others from
// running.
func (g *gate) enter(ctx context.Context, op, alone string) error {
	if reason := g.tooManyStuck(); reason != "" {
		return g.unavailable(ctx, op, reason)
	}
	if ctx.Err() != nil {
		return g.unavailable(ctx, op, "no time left to start it")
	}
	if !g.names.enter(ctx, alone) {
		return g.unavailable(ctx, op, "an earlier call on it has not ended; "+g.oldest())
	}
	select {
	case g.slots <- struct{}{}:
		return nil
	default:
	}
	select {
	case g.slots <- struct{}{}:
		return nil
	case <-ctx.Done():
		g.names.leave(alone)
		return g.unavailable(ctx, op, fmt.Sprintf("%d calls are ahead of it; %s", cap(g.slots), g.oldest()))
	}
}

func (g *gate) start(op string) *flight {
	g.mu.Lock()
	defer g.mu.Unlock()
	f := &flight{op: op, since: time.Now()}
	g.running[f] = struct{}{}
	return f
}

func (g *gate) end(f *flight) {
	g.mu.Lock()
	defer g.mu.Unlock()
	delete(g.running, f)
	f.ended = true
	if f.abandoned {
		g.stuck--
	}
	<-g.slots
}

func (g *gate) abandon(f *flight) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if !f.ended && !f.abandoned {
		f.abandoned = true
		g.stuck++
	}
}

func (g *gate) tooManyStuck() string {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.stuck < g.maxStuck {
		return ""
	}
	return fmt.Sprintf("%d calls hang, no new ones until one ends; %s", g.stuck, g.oldestLocked())
}

func (g *gate) oldest() string {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.oldestLocked()
}

func (g *gate) oldestLocked() string {
	f := g.oldestFlight()
	if f == nil {
		return "none is running now"
	}
	return fmt.Sprintf("the oldest is %s, for %s", f.op, ago(time.Now(), f.since))
}

func (g *gate) oldestFlight() *flight {
	var oldest *flight
	for f := range g.running {
		if oldest == nil || f.since.Before(oldest.since) {
			oldest = f
		}
	}
	return oldest
}

func (g *gate) unavailable(ctx context.Context, op, reason string) error {
	e := &UnavailableError{Cluster: g.cluster, Op: op, Reason: reason}
	if cause := context.Cause(ctx); cause != nil && ctx.Err() == context.Canceled {
		e.Cause = cause
	}
	return e
}
