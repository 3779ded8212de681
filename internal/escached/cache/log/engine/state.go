package engine

import (
	"context"
	"sync"

	"github.com/escache/escache-csi/internal/escached/cache"
	"github.com/escache/escache-csi/internal/escached/cache/log/control"
	"github.com/escache/escache-csi/internal/escached/devmapper"
)

// States implements cache.Engine. It asks all processes at once, and waits for one that does not answer
// no longer than statusTimeout.
func (e *Engine) States(ctx context.Context, prefix string) (map[string]cache.State, error) {
	all, err := e.plans.all(prefix)
	if err != nil || len(all) == 0 {
		return map[string]cache.State{}, err
	}
	fronts, err := e.fronts(ctx, prefix)
	if err != nil {
		return nil, err
	}
	var (
		asking sync.WaitGroup
		mu     sync.Mutex
		out    = make(map[string]cache.State, len(all))
	)
	for name, p := range all {
		asking.Go(func() {
			status, err := control.Status{}, error(nil)
			if p.damage == "" {
				status, err = e.status(ctx, name)
			}
			d, exposed := fronts[name]
			state := p.state(name, status, err)
			if p.damage == "" && deaf(err) {
				if running, err := e.processes.Running(name); err == nil && running {
					state.Unserved = reading
				}
			}
			state.Open = d.Open
			state.Held = state.Held || !exposed || d.Suspended
			rests := p.Paused && d.Suspended && (state.Unserved != "" || status.Held)
			state.GoesOn = state.Held && !rests
			mu.Lock()
			defer mu.Unlock()
			out[name] = state
		})
	}
	asking.Wait()
	return out, nil
}

// state is what is in the plan, and what the process says if it answers. A process that has other options than the plan has not heard of a
// change yet, or was alone to hear of one that has failed for its caller: it does what it has until Resume.
func (r plan) state(name string, status control.Status, err error) cache.State {
	s := cache.State{
		Path: devmapper.Node(front(name)), Origin: r.Origin, Bytes: r.Bytes, Options: r.Options, Held: r.Holding,
		Unserved: unserved(status, err),
	}
	if r.damage != "" {
		s.Unserved = r.damage + "; if that stays so, reboot this host"
	}
	if s.Unserved != "" {
		return s
	}
	now := status.State()
	if !same(status.Options, control.Of(r.Options)) {
		s.Options, s.Held = now.Options, true
	}
	s.Known, s.Dirty, s.Free, s.WritingBack = now.Known, now.Dirty, now.Free, now.WritingBack
	s.Failed, s.Counters, s.Measures = now.Failed, now.Counters, now.Measures
	return s
}
