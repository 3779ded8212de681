package engine

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"time"

	"github.com/escache/escache-csi/api/escache"
	"github.com/escache/escache-csi/internal/escached/cache/writecache"
	"github.com/escache/escache-csi/internal/escached/drbd"
	"github.com/escache/escache-csi/internal/pause"
)

func (e *Engine) device(ctx context.Context, name string) (writecache.Device, bool, error) {
	devices, err := e.Caches.Devices(ctx, name)
	if err != nil {
		return writecache.Device{}, false, err
	}
	dev, ok := devices[name]
	return dev, ok, nil
}

// mayTouch is what a verb that has the volume calls first: it refuses what would only get stuck.
func (e *Engine) mayTouch(ctx context.Context, v volume, dev writecache.Device) error {
	if e.holds.until(v.name()) != nil {
		return v.fail(escache.CodeHeld, "it is held; release it first")
	}
	if err := e.notFrozen(ctx, v); err != nil {
		return err
	}
	if dev.Suspended { // not by a hold: a reload that did not get to its end
		return e.Caches.LoadAndResume(ctx, v.name(), dev.Table)
	}
	return nil
}

// thaw is how long a verb waits for frozen I/O: the arbiter usually answers in a moment, and a peer that was only slow is
// back as soon.
const thaw = 10 * time.Second

func (e *Engine) notFrozen(ctx context.Context, v volume) error {
	for start := e.now(); ; {
		st, up, err := e.replica(v.Minor)
		switch {
		case err != nil:
			return err
		case up && st.Disk == drbd.Diskless && !st.Linked():
			return v.fail(escache.CodeCacheError, "neither this host's disk nor %s can be reached", v.Peer.Name)
		case !up || !st.Suspended:
			return nil
		case e.now().Sub(start) > thaw:
			return v.fail(escache.CodeStuck,
				"%s is cut off from %s and its I/O is frozen until the arbiter allows going on or %s is back; nothing changes meanwhile",
				e.cfg.Node, v.Peer.Name, v.Peer.Name)
		}
		if err := pause.For(ctx, poll); err != nil {
			return err
		}
	}
}

// reload puts a table in place of the running one under open files. If that fails, I/O must not stay suspended: the old
// table is loaded again.
func (e *Engine) reload(ctx context.Context, name string, old, table writecache.Table) error {
	err := e.Caches.Reload(ctx, name, table)
	if err == nil {
		return nil
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), changeTimeout)
	defer cancel()
	dev, ok, look := e.device(ctx, name)
	if look != nil || !ok || !dev.Suspended {
		return errors.Join(err, look)
	}
	return errors.Join(err, e.Caches.LoadAndResume(ctx, name, old))
}

// expose makes the device that users get, with POOL/IMAGE pointing at it.
func (e *Engine) expose(ctx context.Context, v volume, size int64) (string, error) {
	if e.holds.until(v.name()) == nil { // what is held was complete, and stays suspended
		if err := e.Caches.Expose(ctx, v.name(), size); err != nil {
			return "", err
		}
	}
	return e.link(v)
}

// link makes POOL/IMAGE point at the device.
func (e *Engine) link(v volume) (string, error) {
	path := devicePath(e.cfg.DeviceDir, v)
	target := e.Caches.Path(v.name())
	if got, err := os.Readlink(path); err == nil && got == target {
		return path, nil
	}
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		return "", err
	}
	tmp := filepath.Join(e.cfg.DeviceDir, "."+v.name())
	_ = os.Remove(tmp)
	if err := os.Symlink(target, tmp); err != nil {
		return "", err
	}
	return path, os.Rename(tmp, path)
}

func (e *Engine) unlink(v volume) error {
	path := devicePath(e.cfg.DeviceDir, v)
	if err := os.Remove(path); err != nil && !os.IsNotExist(err) {
		return err
	}
	_ = os.Remove(filepath.Dir(path)) // the pool's directory, if that was the last of it
	return nil
}

func devicePath(dir string, v volume) string { return filepath.Join(dir, v.Pool, v.Image) }
