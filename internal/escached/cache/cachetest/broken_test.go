package cachetest

import (
	"context"
	"time"

	"github.com/escache/escache-csi/internal/escached/cache"
)

// mutant is a Fake whose engine breaks one rule.
type mutant struct {
	*Fake

	engine func(f *Fake) cache.Engine
}

func (m *mutant) Engine() cache.Engine { return m.engine(m.Fake) }

// broken is the Fake's engine with some methods replaced.
type broken struct {
	*Fake

	memory       func(int64) int64
	readTime     func(int64) time.Duration
	wipe         func() error
	unused       func(bool) bool
	dirty        func(int64, error) (int64, error)
	checkOptions func() error
	check        func(ctx context.Context, d cache.Disk, id cache.Identity, usedHere bool) error
	prepare      func(ctx context.Context, s cache.Spec, id cache.Identity, usedHere bool) error
	assemble     func(ctx context.Context, s cache.Spec) (string, error)
	remove       func(ctx context.Context, name string) error
	states       func(ctx context.Context, prefix string) (map[string]cache.State, error)
	writeBack    func(ctx context.Context, name string) error
	retry        func(ctx context.Context, name string) error
	setMode      func(ctx context.Context, name string, m cache.Mode) error
	setOptions   func(ctx context.Context, name string, o cache.Options) error
	resize       func(ctx context.Context, name string, bytes int64) error
	hold         func(ctx context.Context, name string, pause bool) error
	resume       func(ctx context.Context, name string) error
}

func (b *broken) Wipe(ctx context.Context, d cache.Disk) error {
	if b.wipe != nil {
		return b.wipe()
	}
	return b.Fake.Wipe(ctx, d)
}

func (b *broken) Unused(ctx context.Context, d cache.Disk) (bool, error) {
	is, err := b.Fake.Unused(ctx, d)
	if b.unused != nil {
		is = b.unused(is)
	}
	return is, err
}

func (b *broken) Check(ctx context.Context, d cache.Disk, id cache.Identity, usedHere bool) error {
	if b.check != nil {
		return b.check(ctx, d, id, usedHere)
	}
	return b.Fake.Check(ctx, d, id, usedHere)
}

func (b *broken) Memory(n int64) int64 {
	if b.memory != nil {
		return b.memory(n)
	}
	return b.Fake.Memory(n)
}

func (b *broken) ReadTime(n int64) time.Duration {
	if b.readTime != nil {
		return b.readTime(n)
	}
	return b.Fake.ReadTime(n)
}

func (b *broken) Dirty(ctx context.Context, d cache.Disk) (int64, error) {
	n, err := b.Fake.Dirty(ctx, d)
	if b.dirty != nil {
		return b.dirty(n, err)
	}
	return n, err
}

func (b *broken) CheckOptions(o cache.Options) error {
	if b.checkOptions != nil {
		return b.checkOptions()
	}
	return b.Fake.CheckOptions(o)
}

func (b *broken) Prepare(ctx context.Context, s cache.Spec, id cache.Identity, usedHere bool) error {
	if b.prepare != nil {
		return b.prepare(ctx, s, id, usedHere)
	}
	return b.Fake.Prepare(ctx, s, id, usedHere)
}

func (b *broken) Assemble(ctx context.Context, s cache.Spec) (string, error) {
	if b.assemble != nil {
		return b.assemble(ctx, s)
	}
	return b.Fake.Assemble(ctx, s)
}

func (b *broken) Remove(ctx context.Context, name string) error {
	if b.remove != nil {
		return b.remove(ctx, name)
	}
	return b.Fake.Remove(ctx, name)
}

func (b *broken) States(ctx context.Context, prefix string) (map[string]cache.State, error) {
	if b.states != nil {
		return b.states(ctx, prefix)
	}
	return b.Fake.States(ctx, prefix)
}

func (b *broken) WriteBack(ctx context.Context, name string) error {
	if b.writeBack != nil {
		return b.writeBack(ctx, name)
	}
	return b.Fake.WriteBack(ctx, name)
}

func (b *broken) Retry(ctx context.Context, name string) error {
	if b.retry != nil {
		return b.retry(ctx, name)
	}
	return b.Fake.Retry(ctx, name)
}

func (b *broken) SetMode(ctx context.Context, name string, m cache.Mode) error {
	if b.setMode != nil {
		return b.setMode(ctx, name, m)
	}
	return b.Fake.SetMode(ctx, name, m)
}

func (b *broken) SetOptions(ctx context.Context, name string, o cache.Options) error {
	if b.setOptions != nil {
		return b.setOptions(ctx, name, o)
	}
	return b.Fake.SetOptions(ctx, name, o)
}

func (b *broken) Resize(ctx context.Context, name string, bytes int64) error {
	if b.resize != nil {
		return b.resize(ctx, name, bytes)
	}
	return b.Fake.Resize(ctx, name, bytes)
}

func (b *broken) Hold(ctx context.Context, name string, pause bool) error {
	if b.hold != nil {
		return b.hold(ctx, name, pause)
	}
	return b.Fake.Hold(ctx, name, pause)
}

func (b *broken) Resume(ctx context.Context, name string) error {
	if b.resume != nil {
		return b.resume(ctx, name)
	}
	return b.Fake.Resume(ctx, name)
}

// alter changes what is known of one cache, if it is there.
func (f *Fake) alter(name string, alter func(*assembled)) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if c, ok := f.caches[name]; ok {
		alter(c)
		f.resumed.Broadcast()
	}
}

// after runs a method and then spoils the cache.
func after(f *Fake, method func(context.Context, string) error, spoil func(*assembled)) func(context.Context, string) error {
	return func(ctx context.Context, name string) error {
		err := method(ctx, name)
		f.alter(name, spoil)
		return err
	}
}

// held is after for Hold.
func held(
	f *Fake, method func(context.Context, string, bool) error, spoil func(*assembled),
) func(context.Context, string, bool) error {
	return func(ctx context.Context, name string, pause bool) error {
		return after(f, func(ctx context.Context, name string) error { return method(ctx, name, pause) }, spoil)(ctx, name)
	}
}

func noHold(context.Context, string, bool) error { return nil }

func nothing(context.Context, string) error { return nil }

func drop(c *assembled) { c.disk.dirty = map[int64][]byte{} }

func resumed(c *assembled) { c.state.Held = false }

// seen spoils what States says.
func seen(f *Fake, spoil func(*cache.State)) func(context.Context, string) (map[string]cache.State, error) {
	return func(ctx context.Context, prefix string) (map[string]cache.State, error) {
		all, err := f.States(ctx, prefix)
		for name, state := range all {
			spoil(&state)
			all[name] = state
		}
		return all, err
	}
}

// formatAlways formats whatever is on the disk when Prepare refuses it, or always.
func formatAlways(f *Fake, when func(error) bool) func(context.Context, cache.Spec, cache.Identity, bool) error {
	return func(ctx context.Context, s cache.Spec, id cache.Identity, usedHere bool) error {
		err := f.Prepare(ctx, s, id, usedHere)
		if !when(err) {
			return err
		}
		if err := f.Wipe(ctx, s.Disk); err != nil {
			return err
		}
		return f.Prepare(ctx, s, id, false)
	}
}
