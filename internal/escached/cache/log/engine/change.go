package engine

import (
	"context"
	"errors"
	"time"

	"github.com/escache/escache-csi/internal/crashpoint"
	"github.com/escache/escache-csi/internal/escached/cache"
	"github.com/escache/escache-csi/internal/escached/cache/log/control"
)

// holdLimit is when a process ends a hold by itself. It is longer than any hold of the API, whose own
// watchdog releases it before.
const holdLimit = 2 * time.Hour

// CheckOptions implements cache.Engine.
func (e *Engine) CheckOptions(o cache.Options) error { return control.Of(o).Check() }

// change puts a plan in place of the old one, and then does what it says. If that is refused, the old
// plan is put back; if this process is killed in between, Resume does it.
func (e *Engine) change(name string, old, next plan, do func() error) error {
	if next == old {
		return do()
	}
	if err := e.plans.put(name, next); err != nil {
		return err
	}
	crashpoint.Reach("reload/planned")
	if err := called(do()); err != nil {
		return errors.Join(err, e.plans.put(name, old))
	}
	return nil
}

// SetMode implements cache.Engine.
func (e *Engine) SetMode(ctx context.Context, name string, m cache.Mode) error {
	p, err := e.plans.get(name)
	if err != nil {
		return err
	}
	next := p
	next.Options.Mode = m
	return e.change(name, p, next, func() error { return e.client(name).SetMode(ctx, m) })
}

// SetOptions implements cache.Engine.
func (e *Engine) SetOptions(ctx context.Context, name string, o cache.Options) error {
	p, err := e.plans.get(name)
	if err != nil {
		return err
	}
	next := p
	next.Options = o
	next.Options.Mode = p.Options.Mode
	return e.change(name, p, next, func() error { return e.client(name).SetOptions(ctx, control.Of(next.Options)) })
}

// Resize implements cache.Engine.
func (e *Engine) Resize(ctx context.Context, name string, bytes int64) error {
	p, err := e.plans.get(name)
	if err != nil {
		return err
	}
	next := p
	next.Bytes = max(p.Bytes, bytes/cache.BlockBytes*cache.BlockBytes)
	var device string
	err = e.change(name, p, next, func() (err error) {
		device, err = e.growProcess(ctx, name, next.Bytes)
		return err
	})
	if err != nil {
		return err
	}
	crashpoint.Reach("resize/reloaded")
	// The plan stays if this fails: the device in front may have its new size all the same, and must not shrink.
	return e.expose(ctx, name, device, next.Bytes)
}

// growProcess makes the process's device as large as it is to be, and returns it.
func (e *Engine) growProcess(ctx context.Context, name string, bytes int64) (device string, err error) {
	status, err := e.status(ctx, name)
	if err != nil {
		return "", err
	}
	if status.Bytes < bytes {
		err = e.client(name).Resize(ctx, bytes)
	}
	return status.Device, err
}

// WriteBack implements cache.Engine.
func (e *Engine) WriteBack(ctx context.Context, name string) error {
	if _, err := e.plans.get(name); err != nil {
		return err
	}
	return called(e.client(name).WriteBack(ctx))
}

// Retry implements cache.Engine.
func (e *Engine) Retry(ctx context.Context, name string) error {
	if _, err := e.plans.get(name); err != nil {
		return err
	}
	return called(e.client(name).Retry(ctx))
}

// Hold implements cache.Engine. Users go on writing to the log meanwhile. For a pause the device in front is
// suspended: the kernel keeps that up, whatever becomes of the process. A hold that fails is one until Resume: the
// plan says so.
func (e *Engine) Hold(ctx context.Context, name string, pause bool) error {
	p, err := e.plans.get(name)
	if err != nil {
		return err
	}
	p.Holding, p.Paused = true, false
	if err := e.plans.put(name, p); err != nil {
		return err
	}
	if pause {
		if err := e.dm.SuspendNoFreeze(ctx, name, front(name)); err != nil {
			return err
		}
		crashpoint.Reach("hold/paused")
	}
	if err := called(e.client(name).Hold(ctx, holdLimit)); err != nil || !pause {
		return err
	}
	p.Paused = true
	return e.plans.put(name, p)
}

// Revive implements cache.Engine.
func (e *Engine) Revive(ctx context.Context, name string) error {
	p, err := e.plans.get(name)
	if err != nil {
		return err
	}
	if err := e.lossOf(ctx, name); err != nil {
		return err
	}
	_, err = e.serve(ctx, name, p)
	return err
}

// lossOf returns the error of a process that has found losses in a log before anybody could use the device, and has
// ended: Assemble had stopped waiting for it. Another process would read all of the log again, and find the same.
func (e *Engine) lossOf(ctx context.Context, name string) error {
	running, err := e.processes.Running(name)
	if err != nil || running {
		return err
	}
	fronts, err := e.fronts(ctx, name)
	if err != nil {
		return err
	}
	if _, exposed := fronts[name]; exposed {
		return nil
	}
	if err := ended(e.processes.LastWords(name)); errors.Is(err, cache.ErrCorrupt) {
		return err
	}
	return nil
}

// Resume implements cache.Engine: it makes the process and the device in front what the plan says.
func (e *Engine) Resume(ctx context.Context, name string) error {
	p, err := e.plans.get(name)
	if err != nil {
		return err
	}
	if err := e.lossOf(ctx, name); err != nil {
		return err
	}
	status, err := e.serve(ctx, name, p)
	if err != nil {
		return err
	}
	if p.Holding {
		if err := e.unsuspend(ctx, name); err != nil {
			return err
		}
		if err := e.endHold(ctx, name, p); err != nil {
			return err
		}
	}
	if options := control.Of(p.Options); !same(status.Options, options) {
		if err := called(e.client(name).SetOptions(ctx, options)); err != nil {
			return err
		}
	}
	device, err := e.growProcess(ctx, name, p.Bytes)
	if err != nil {
		return called(err)
	}
	return e.expose(ctx, name, device, p.Bytes)
}

// endHold ends a hold, also one that has failed because the image refused a write.
func (e *Engine) endHold(ctx context.Context, name string, p plan) error {
	if _, err := e.client(name).Resume(ctx); err != nil {
		return called(err)
	}
	if err := called(e.client(name).Retry(ctx)); err != nil {
		return err
	}
	p.Holding, p.Paused = false, false
	return e.plans.put(name, p)
}

func same(a, b control.Options) bool { return a.WithDefaults() == b.WithDefaults() }
