package cachetest

import (
	"bytes"
	"context"
	"errors"
	"strings"
	"time"

	"github.com/escache/escache-csi/internal/escached/cache"
)

// mutants are engines that break one rule, each under the check that must catch it.
var mutants = map[string]map[string]func(f *Fake, b *broken){
	"a wiped disk is unused and clean": {
		"Wipe does nothing":   func(_ *Fake, b *broken) { b.wipe = func() error { return nil } },
		"no disk is unused":   func(_ *Fake, b *broken) { b.unused = func(bool) bool { return false } },
		"every disk is clean": func(_ *Fake, b *broken) { b.unused = func(bool) bool { return true } },
		"a blank disk is dirty": func(_ *Fake, b *broken) {
			b.dirty = func(n int64, err error) (int64, error) { return n + cache.BlockBytes, err }
		},
	},
	"Prepare leaves a disk that is used, and keeps what is on it": {
		"Prepare does nothing": func(_ *Fake, b *broken) {
			b.prepare = func(context.Context, cache.Spec, cache.Identity, bool) error { return nil }
		},
		"Check changes the disk": func(f *Fake, b *broken) {
			b.check = func(ctx context.Context, d cache.Disk, id cache.Identity, usedHere bool) error {
				return f.Prepare(ctx, cache.Spec{Disk: d}, id, usedHere)
			}
		},
		"Prepare formats again": func(f *Fake, b *broken) {
			b.prepare = formatAlways(f, func(error) bool { return true })
		},
	},
	"Prepare refuses the cache of another image": {
		"identities are not compared": func(f *Fake, b *broken) {
			b.prepare = formatAlways(f, func(err error) bool { return errors.Is(err, cache.ErrForeign) })
		},
		"image ids are not compared": func(f *Fake, b *broken) {
			b.prepare = func(ctx context.Context, s cache.Spec, id cache.Identity, usedHere bool) error {
				id.ImageID = "10ab"
				return f.Prepare(ctx, s, id, usedHere)
			}
		},
	},
	"Prepare refuses a blank disk that was used here": {
		"what was used is formatted": func(f *Fake, b *broken) {
			b.prepare = func(ctx context.Context, s cache.Spec, id cache.Identity, _ bool) error {
				return f.Prepare(ctx, s, id, false)
			}
		},
	},
	"Prepare refuses a damaged disk and does not format it": {
		"damage is formatted": func(f *Fake, b *broken) {
			b.prepare = formatAlways(f, func(err error) bool { return errors.Is(err, cache.ErrCorrupt) })
		},
		"Check sees nothing": func(_ *Fake, b *broken) {
			b.check = func(context.Context, cache.Disk, cache.Identity, bool) error { return nil }
		},
		"metadata is not looked at": func(f *Fake, b *broken) {
			b.prepare = func(ctx context.Context, s cache.Spec, id cache.Identity, usedHere bool) error {
				if err := f.Prepare(ctx, s, id, usedHere); err != nil && !strings.Contains(err.Error(), "metadata") {
					return err
				}
				return nil
			}
		},
		"foreign metadata is clean": func(_ *Fake, b *broken) {
			b.dirty = func(n int64, _ error) (int64, error) { return n, nil }
		},
	},
	"crossed watermarks are refused": {
		"options are not checked": func(_ *Fake, b *broken) { b.checkOptions = func() error { return nil } },
		"all options are refused": func(_ *Fake, b *broken) { b.checkOptions = func() error { return errors.New("no") } },
	},
	"Assemble makes the device that it was asked for": {
		"options are ignored": func(f *Fake, b *broken) {
			b.assemble = func(ctx context.Context, s cache.Spec) (string, error) {
				s.Options = cache.Options{}
				return f.Assemble(ctx, s)
			}
		},
		"the path is another":    func(f *Fake, b *broken) { b.states = seen(f, func(s *cache.State) { s.Path = "/dev/null" }) },
		"the origin is another":  func(f *Fake, b *broken) { b.states = seen(f, func(s *cache.State) { s.Origin = "1:3" }) },
		"the size is another":    func(f *Fake, b *broken) { b.states = seen(f, func(s *cache.State) { s.Bytes /= 2 }) },
		"it is failed":           func(f *Fake, b *broken) { b.states = seen(f, func(s *cache.State) { s.Failed = true }) },
		"it is held":             func(f *Fake, b *broken) { b.states = seen(f, func(s *cache.State) { s.Held = true }) },
		"nothing is known of it": func(f *Fake, b *broken) { b.states = seen(f, func(s *cache.State) { s.Known = false }) },
		"the mode is empty":      func(f *Fake, b *broken) { b.states = seen(f, func(s *cache.State) { s.Options.Mode = "" }) },
		"it has no room":         func(f *Fake, b *broken) { b.states = seen(f, func(s *cache.State) { s.Free = 0 }) },
	},
	"States shows only names with the prefix": {
		"the prefix is ignored": func(f *Fake, b *broken) {
			b.states = func(ctx context.Context, _ string) (map[string]cache.State, error) { return f.States(ctx, "") }
		},
		"a prefix is a whole name": func(f *Fake, b *broken) {
			b.states = func(ctx context.Context, prefix string) (map[string]cache.State, error) {
				all, err := f.States(ctx, prefix)
				return map[string]cache.State{prefix: all[prefix]}, err
			}
		},
		"Remove does nothing": func(_ *Fake, b *broken) { b.remove = nothing },
	},
	"what is not assembled is ErrAbsent": {
		"WriteBack of nothing succeeds": func(_ *Fake, b *broken) { b.writeBack = nothing },
		"Retry of nothing succeeds":     func(_ *Fake, b *broken) { b.retry = nothing },
		"SetMode of nothing succeeds": func(_ *Fake, b *broken) {
			b.setMode = func(context.Context, string, cache.Mode) error { return nil }
		},
		"SetOptions of nothing succeeds": func(_ *Fake, b *broken) {
			b.setOptions = func(context.Context, string, cache.Options) error { return nil }
		},
		"Resize of nothing succeeds": func(_ *Fake, b *broken) {
			b.resize = func(context.Context, string, int64) error { return nil }
		},
		"Hold of nothing succeeds":   func(_ *Fake, b *broken) { b.hold = noHold },
		"Resume of nothing succeeds": func(_ *Fake, b *broken) { b.resume = nothing },
	},
	"Remove removes once, and nothing that is open": {
		"what is open is removed": func(f *Fake, b *broken) {
			b.remove = func(ctx context.Context, name string) error {
				f.alter(name, func(c *assembled) { c.state.Open = 0 })
				return f.Remove(ctx, name)
			}
		},
		"Remove of nothing is an error": func(f *Fake, b *broken) {
			b.remove = func(ctx context.Context, name string) error {
				if _, err := f.cache(name); err != nil {
					return err
				}
				return f.Remove(ctx, name)
			}
		},
		"users are not counted": func(f *Fake, b *broken) { b.states = seen(f, func(s *cache.State) { s.Open = 0 }) },
	},
	"writes are dirty until they are written back": {
		"WriteBack does nothing":      func(_ *Fake, b *broken) { b.writeBack = nothing },
		"WriteBack drops":             func(f *Fake, b *broken) { b.writeBack = after(f, nothing, drop) },
		"nothing is dirty":            func(f *Fake, b *broken) { b.states = seen(f, func(s *cache.State) { s.Dirty = 0 }) },
		"what is dirty stays unknown": func(f *Fake, b *broken) { b.states = seen(f, func(s *cache.State) { s.Known = false }) },
	},
	"write-through makes nothing dirty": {
		"SetMode does nothing": func(_ *Fake, b *broken) {
			b.setMode = func(context.Context, string, cache.Mode) error { return nil }
		},
		"SetMode does not go on": func(f *Fake, b *broken) {
			b.setMode = func(ctx context.Context, name string, m cache.Mode) error {
				if all, err := f.States(ctx, name); err != nil || all[name].Options.Mode == m {
					return err
				}
				return f.SetMode(ctx, name, m)
			}
		},
		"SetMode drops": func(f *Fake, b *broken) {
			b.setMode = func(ctx context.Context, name string, m cache.Mode) error {
				f.alter(name, drop)
				return f.SetMode(ctx, name, m)
			}
		},
		"SetMode is said and not done": func(f *Fake, b *broken) {
			mode := cache.Writeback
			b.setMode = func(_ context.Context, _ string, m cache.Mode) error { mode = m; return nil }
			b.states = seen(f, func(s *cache.State) { s.Options.Mode = mode })
		},
		"write-back does not come again": func(f *Fake, b *broken) {
			b.setMode = func(ctx context.Context, name string, _ cache.Mode) error {
				return f.SetMode(ctx, name, cache.Writethrough)
			}
		},
	},
	"options change under running I/O, and the mode stays": {
		"SetOptions does nothing": func(_ *Fake, b *broken) {
			b.setOptions = func(context.Context, string, cache.Options) error { return nil }
		},
		"SetOptions drops": func(f *Fake, b *broken) {
			b.setOptions = func(ctx context.Context, name string, o cache.Options) error {
				f.alter(name, drop)
				return f.SetOptions(ctx, name, o)
			}
		},
		"SetOptions sets the mode": func(f *Fake, b *broken) {
			b.setOptions = func(_ context.Context, name string, o cache.Options) error {
				if o.Mode == "" {
					o.Mode = cache.Writeback
				}
				f.alter(name, func(c *assembled) { c.state.Options = o })
				return nil
			}
		},
		"what is left out stays": func(f *Fake, b *broken) {
			b.setOptions = func(ctx context.Context, name string, o cache.Options) error {
				if c, err := f.cache(name); err == nil && o.MaxAgeSeconds == 0 {
					o.MaxAgeSeconds = c.state.Options.MaxAgeSeconds
				}
				return f.SetOptions(ctx, name, o)
			}
		},
		"SetOptions leaves it held": func(f *Fake, b *broken) {
			b.states = seen(f, func(s *cache.State) { s.Held = s.Options.HighWatermark > 0 })
		},
	},
	"what is dirty outlives the device": {
		"Remove drops": func(f *Fake, b *broken) {
			b.remove = func(ctx context.Context, name string) error {
				f.alter(name, drop)
				return f.Remove(ctx, name)
			}
		},
		"the disk is said to be clean": func(_ *Fake, b *broken) {
			b.dirty = func(_ int64, err error) (int64, error) { return 0, err }
		},
		"the disk is always said to be dirty": func(_ *Fake, b *broken) {
			b.dirty = func(_ int64, err error) (int64, error) { return cache.BlockBytes, err }
		},
		"Assemble drops": func(f *Fake, b *broken) {
			b.assemble = func(ctx context.Context, s cache.Spec) (string, error) {
				path, err := f.Assemble(ctx, s)
				f.alter(s.Disk.Name, drop)
				return path, err
			}
		},
	},
	"a refused write-back loses nothing and can be tried again": {
		"a failure is not noticed": func(f *Fake, b *broken) {
			b.writeBack = func(ctx context.Context, name string) error {
				_ = f.WriteBack(ctx, name)
				return nil
			}
		},
		"a failure is not shown": func(f *Fake, b *broken) { b.states = seen(f, func(s *cache.State) { s.Failed = false }) },
		"a failure drops":        func(f *Fake, b *broken) { b.writeBack = after(f, f.WriteBack, drop) },
		"Retry does nothing":     func(_ *Fake, b *broken) { b.retry = nothing },
		"Retry drops":            func(f *Fake, b *broken) { b.retry = after(f, f.Retry, drop) },
		"Retry holds": func(f *Fake, b *broken) {
			b.retry = after(f, f.Retry, func(c *assembled) { c.state.Held = true })
		},
	},
	"so does one that is refused in write-through": {
		"a failure is not noticed": func(f *Fake, b *broken) {
			b.writeBack = func(ctx context.Context, name string) error {
				_ = f.WriteBack(ctx, name)
				return nil
			}
		},
		"a failure is not shown": func(f *Fake, b *broken) { b.states = seen(f, func(s *cache.State) { s.Failed = false }) },
		"a failure drops":        func(f *Fake, b *broken) { b.writeBack = after(f, f.WriteBack, drop) },
		"what is refused is not dirty": func(f *Fake, b *broken) {
			b.states = seen(f, func(s *cache.State) { s.Dirty = 0 })
		},
		"Retry does nothing": func(_ *Fake, b *broken) { b.retry = nothing },
	},
	"a hold keeps the origin as it is until Resume": {
		"Hold does not suspend": func(f *Fake, b *broken) { b.hold = held(f, f.Hold, resumed) },
		"Hold does not write back": func(f *Fake, b *broken) {
			b.hold = held(f, noHold, func(c *assembled) { c.state.Held = true })
		},
		"Hold lets writes through to the origin": func(f *Fake, b *broken) {
			b.hold = held(f, f.Hold, func(c *assembled) { resumed(c); c.state.Options.Mode = cache.Writethrough })
			b.states = seen(f, func(s *cache.State) { s.Held = true })
		},
		"Resume leaves it held": func(f *Fake, b *broken) {
			b.states = seen(f, func(s *cache.State) { s.Held = true })
		},
		"I/O goes on and nobody is told": func(f *Fake, b *broken) {
			f.GoesOn = true
			b.states = seen(f, func(s *cache.State) { s.GoesOn = false })
		},
		"I/O is always said to go on": func(f *Fake, b *broken) {
			b.states = seen(f, func(s *cache.State) { s.GoesOn = true })
		},
	},
	"with a pause no write is done until Resume": {
		"a pause is ignored": func(f *Fake, b *broken) {
			f.GoesOn = true
			b.hold = func(ctx context.Context, name string, _ bool) error { return f.Hold(ctx, name, false) }
		},
		"a pause is only said": func(f *Fake, b *broken) {
			f.GoesOn = true
			b.hold = func(ctx context.Context, name string, _ bool) error { return f.Hold(ctx, name, false) }
			b.states = seen(f, func(s *cache.State) { s.GoesOn = false })
		},
		"a pause is not said": func(f *Fake, b *broken) { b.states = seen(f, func(s *cache.State) { s.GoesOn = s.Held }) },
		"Resume does not end a pause": func(f *Fake, b *broken) {
			b.states = seen(f, func(s *cache.State) { s.Held = true })
		},
		"a pause does not write back": func(f *Fake, b *broken) {
			b.hold = held(f, noHold, func(c *assembled) { c.state.Held = true })
		},
	},
	"a hold over a failing origin is an error": {
		"Hold succeeds over a failing origin": func(f *Fake, b *broken) {
			b.hold = func(ctx context.Context, name string, pause bool) error { _ = f.Hold(ctx, name, pause); return nil }
		},
		"Resume drops": func(f *Fake, b *broken) { b.resume = after(f, f.Resume, drop) },
		"Resume leaves the failure of a hold": func(f *Fake, b *broken) {
			b.resume = after(f, f.Resume, func(c *assembled) { c.state.Failed = true })
		},
	},
	"a hold outlives the process": {
		"a new process does not know it": func(f *Fake, b *broken) {
			b.states = seen(f, func(s *cache.State) { s.Held = false })
		},
		"a new process does not end it": func(_ *Fake, b *broken) { b.resume = nothing },
	},
	"Resume does nothing to a cache that works": {
		"Resume writes back": func(f *Fake, b *broken) {
			b.resume = func(ctx context.Context, name string) error {
				return errors.Join(f.WriteBack(ctx, name), f.Resume(ctx, name))
			}
		},
		"Resume clears failures": func(f *Fake, b *broken) {
			b.resume = func(ctx context.Context, name string) error {
				return errors.Join(f.Retry(ctx, name), f.Resume(ctx, name))
			}
		},
	},
	"Resize grows the device and keeps its data": {
		"Resize does nothing": func(_ *Fake, b *broken) {
			b.resize = func(context.Context, string, int64) error { return nil }
		},
		"Resize shrinks": func(f *Fake, b *broken) {
			b.resize = func(_ context.Context, name string, bytes int64) error {
				f.alter(name, func(c *assembled) { c.state.Bytes = bytes })
				return nil
			}
		},
		"Resize drops": func(f *Fake, b *broken) {
			b.resize = func(ctx context.Context, name string, bytes int64) error {
				f.alter(name, drop)
				return f.Resize(ctx, name, bytes)
			}
		},
		"Resize leaves it held": func(f *Fake, b *broken) {
			b.states = seen(f, func(s *cache.State) { s.Held = s.Bytes > 1<<20 })
		},
		"a second Resize is an error": func(f *Fake, b *broken) {
			b.resize = func(ctx context.Context, name string, bytes int64) error {
				if c, err := f.cache(name); err == nil && c.state.Bytes >= bytes {
					return errors.New("it is that large already")
				}
				return f.Resize(ctx, name, bytes)
			}
		},
	},
	"a larger cache takes no less memory": {
		"memory is negative": func(_ *Fake, b *broken) { b.memory = func(n int64) int64 { return -n } },
		"memory overflows":   func(_ *Fake, b *broken) { b.memory = func(n int64) int64 { return n << 12 / 100 } },
		"a large cache takes nothing": func(f *Fake, b *broken) {
			b.memory = func(n int64) int64 { return f.Memory(n % (1 << 40)) }
		},
		"memory is more than the cache": func(_ *Fake, b *broken) { b.memory = func(n int64) int64 { return 2 * n } },
	},
	"a larger disk has no less time to be read": {
		"there is no time": func(_ *Fake, b *broken) { b.readTime = func(int64) time.Duration { return 0 } },
		"time overflows": func(_ *Fake, b *broken) {
			b.readTime = func(n int64) time.Duration { return time.Minute + time.Duration(n)*time.Second }
		},
	},
	"an engine that was stopped at any step can go on": {
		"an interrupted format is kept": func(f *Fake, b *broken) {
			b.prepare = func(ctx context.Context, s cache.Spec, id cache.Identity, usedHere bool) error {
				if block := f.Raw(s.Disk.Path)[:cache.BlockBytes]; bytes.Contains(block, []byte(`"formatted":false`)) {
					return nil
				}
				return f.Prepare(ctx, s, id, usedHere)
			}
		},
		"Resume does not complete an Assemble": func(f *Fake, b *broken) {
			b.resume = func(ctx context.Context, name string) error {
				if c, err := f.cache(name); err == nil && !c.completed {
					return nil
				}
				return f.Resume(ctx, name)
			}
		},
		"a killed change stays held": func(f *Fake, b *broken) {
			b.resume = func(ctx context.Context, name string) error {
				if c, err := f.cache(name); err == nil && c.state.Bytes == 1<<20 {
					return nil
				}
				return f.Resume(ctx, name)
			}
		},
		"a killed hold drops": func(f *Fake, b *broken) {
			b.hold = func(ctx context.Context, name string, pause bool) error {
				if f.kill {
					f.alter(name, drop)
				}
				return f.Hold(ctx, name, pause)
			}
		},
	},
}
