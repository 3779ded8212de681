package cachetest

import (
	"context"
	"fmt"
	"maps"

	"github.com/escache/escache-csi/internal/escached/cache"
)

// WriteBack implements cache.Engine.
func (f *Fake) WriteBack(_ context.Context, name string) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	c, err := f.cache(name)
	if err != nil {
		return err
	}
	if err := f.change("write back " + name); err != nil {
		return err
	}
	return f.writeBack(c)
}

func (f *Fake) writeBack(c *assembled) error {
	if c.state.Failed = c.state.Failed || f.refuse && len(c.disk.dirty) > 0; c.state.Failed {
		return cache.ErrFailed
	}
	maps.Copy(f.origins[c.origin], c.disk.dirty)
	c.disk.dirty = map[int64][]byte{}
	return nil
}

// Retry implements cache.Engine.
func (f *Fake) Retry(_ context.Context, name string) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	c, err := f.cache(name)
	if err != nil || !c.state.Failed {
		return err
	}
	return f.reload(name, c, func(*cache.State) {})
}

// reload changes a cache while its I/O is suspended, and clears a failure.
func (f *Fake) reload(name string, c *assembled, alter func(*cache.State)) error {
	f.mu.Unlock()
	f.Suspending(name)
	f.mu.Lock()
	if err := f.change("suspend " + name); err != nil {
		return err
	}
	c.state.Held = true
	err := f.change("reload " + name)
	if err == nil {
		alter(&c.state)
	}
	f.goOn(c)
	return err
}

func (f *Fake) goOn(c *assembled) {
	c.state.Held, c.state.Failed, c.paused = false, false, false
	f.resumed.Broadcast()
}

// SetMode implements cache.Engine. A write-back that write-through begins stops at once.
func (f *Fake) SetMode(_ context.Context, name string, m cache.Mode) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	c, err := f.cache(name)
	if err != nil {
		return err
	}
	if c.state.Options.Mode == m {
		if m == cache.Writethrough {
			_ = f.writeBack(c) // nobody waits for it
		}
		return nil
	}
	return f.reload(name, c, func(s *cache.State) { s.Options.Mode = m })
}

// SetOptions implements cache.Engine.
func (f *Fake) SetOptions(_ context.Context, name string, o cache.Options) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	c, err := f.cache(name)
	if err != nil {
		return err
	}
	o.Mode = c.state.Options.Mode
	if o == c.state.Options {
		return nil
	}
	return f.reload(name, c, func(s *cache.State) { s.Options = o })
}

// Resize implements cache.Engine.
func (f *Fake) Resize(_ context.Context, name string, bytes int64) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	c, err := f.cache(name)
	if err != nil {
		return err
	}
	if bytes > c.state.Bytes {
		if err := f.reload(name, c, func(s *cache.State) { s.Bytes = bytes }); err != nil {
			return err
		}
	}
	return f.complete(name, c)
}

// Hold implements cache.Engine.
func (f *Fake) Hold(_ context.Context, name string, pause bool) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	c, err := f.cache(name)
	if err != nil {
		return err
	}
	if err := f.change("hold " + name); err != nil {
		return err
	}
	c.state.Held, c.paused = true, pause
	return f.writeBack(c)
}

// Revive implements cache.Engine.
func (f *Fake) Revive(_ context.Context, name string) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	c, err := f.cache(name)
	if err != nil {
		return err
	}
	return f.revive(name, c)
}

func (f *Fake) revive(name string, c *assembled) error {
	if c.state.Unserved == "" {
		return nil
	}
	if f.RecoversLong {
		return fmt.Errorf("%w: %w", cache.ErrUnserved, cache.ErrRecovering)
	}
	if err := f.change("revive " + name); err != nil {
		return err
	}
	c.state.Unserved, c.state.Known = "", true
	return nil
}

// Resume implements cache.Engine.
func (f *Fake) Resume(_ context.Context, name string) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	c, err := f.cache(name)
	if err != nil {
		return err
	}
	if err := f.revive(name, c); err != nil {
		return err
	}
	if c.state.Held {
		if err := f.change("resume " + name); err != nil {
			return err
		}
		f.Resumed(&c.state)
		f.goOn(c)
	}
	return f.complete(name, c)
}
