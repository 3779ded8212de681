package writecache

import (
	"context"
	"errors"
	"time"

	"github.com/escache/escache-csi/internal/crashpoint"
	"github.com/escache/escache-csi/internal/escached/cache"
)

// SetMode implements cache.Engine by reloading the table. In write-through the kernel begins to write back whatever is
// dirty. But it leaves out a block whose older content is on its way to the origin, and may not come back to it:
// the message makes it look again. It does not wait for the origin.
func (e *Engine) SetMode(ctx context.Context, name string, m cache.Mode) error {
	d, err := e.device(ctx, name)
	if err != nil {
		return err
	}
	if d.options.Mode == m {
		if m == cache.Writethrough {
			return e.dm.Message(ctx, name, name, "cleaner", 0)
		}
		return nil
	}
	next := d.table
	next.options.Mode = m
	return e.reload(ctx, name, d.table, next)
}

// SetOptions implements cache.Engine by reloading the table. The kernel takes what is dirty for new
// when it loads a table.
func (e *Engine) SetOptions(ctx context.Context, name string, o cache.Options) error {
	d, err := e.device(ctx, name)
	if err != nil {
		return err
	}
	next := d.table
	next.options = o
	next.options.Mode = d.options.Mode
	if next == d.table {
		return nil
	}
	return e.reload(ctx, name, d.table, next)
}

// Resize implements cache.Engine.
func (e *Engine) Resize(ctx context.Context, name string, bytes int64) error {
	d, err := e.device(ctx, name)
	if err != nil {
		return err
	}
	next := d.table
	if next.bytes = max(bytes, d.bytes); next.bytes > d.bytes {
		if err := e.reload(ctx, name, d.table, next); err != nil {
			return err
		}
	}
	crashpoint.Reach("resize/reloaded")
	return e.expose(ctx, name, next.bytes)
}

// Retry implements cache.Engine. The kernel's error flag is sticky: only loading a table clears it,
// with nothing lost and the device open.
func (e *Engine) Retry(ctx context.Context, name string) error {
	d, err := e.device(ctx, name)
	if err != nil || !d.failed {
		return err
	}
	return e.reload(ctx, name, d.table, d.table)
}

// Resume implements cache.Engine. The running table of a device that was left suspended is the one
// from before the change.
func (e *Engine) Resume(ctx context.Context, name string) error {
	d, err := e.device(ctx, name)
	if err != nil {
		return err
	}
	if d.suspended {
		if err := e.loadAndResume(ctx, name, d.table); err != nil {
			return err
		}
	}
	return e.expose(ctx, name, d.bytes)
}

// Revive implements cache.Engine: the device is in the kernel.
func (*Engine) Revive(context.Context, string) error { return nil }

// undoTimeout bounds putting the old table back. The caller's time may be over by then.
const undoTimeout = 2 * time.Minute

// reload puts a table in place of the running one under open files. If that fails, I/O must not
// stay suspended: then it loads the old table again.
func (e *Engine) reload(ctx context.Context, name string, old, next table) error {
	err := e.suspendAndLoad(ctx, name, next)
	if err == nil {
		return nil
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), undoTimeout)
	defer cancel()
	d, look := e.device(ctx, name)
	if look != nil || !d.suspended {
		return errors.Join(err, look)
	}
	return errors.Join(err, e.loadAndResume(ctx, name, old))
}

// suspendAndLoad suspends without freezing the filesystem and without a flush: with an error set,
// a plain suspend aborts ext4's journal.
func (e *Engine) suspendAndLoad(ctx context.Context, name string, next table) error {
	if err := e.dm.SuspendNoFlush(ctx, name, name); err != nil {
		return err
	}
	crashpoint.Reach("reload/suspended")
	return e.loadAndResume(ctx, name, next)
}

// loadAndResume ends a suspension of any kind. A table is always loaded first: with an error set, a
// resume without a load makes the cache look empty.
func (e *Engine) loadAndResume(ctx context.Context, name string, t table) error {
	if err := e.dm.Load(ctx, name, name, t.String()); err != nil {
		return err
	}
	crashpoint.Reach("reload/loaded")
	if err := e.dm.Resume(ctx, name, name); err != nil {
		return err
	}
	f, there, err := e.below(ctx, front(name))
	if err != nil || !there || !f.Suspended {
		return err
	}
	crashpoint.Reach("reload/resumed")
	return e.dm.Resume(ctx, name, front(name))
}
