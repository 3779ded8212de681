package engine

import (
	"context"
	"os"
	"path/filepath"
	"time"

	"github.com/escache/escache-csi/api/escache"
	"github.com/escache/escache-csi/internal/escached/cache"
	"github.com/escache/escache-csi/internal/escached/drbd"
	"github.com/escache/escache-csi/internal/escached/volume"
	"github.com/escache/escache-csi/internal/pause"
)

// device returns the state of a volume's device. ok is false while there is none.
func (e *Engine) device(ctx context.Context, name string) (dev cache.State, ok bool, err error) {
	devices, err := e.Caches.States(ctx, name)
	if err != nil {
		return dev, false, err
	}
	dev, ok = devices[name]
	return dev, ok, nil
}

// diskOf returns the disk of a volume's cache as the Primary uses it: the DRBD device.
func diskOf(v volume.Volume) cache.Disk { return cache.Disk{Name: v.Name(), Path: drbdDevice(v)} }

// localDisk returns this host's copy of the disk, below DRBD.
func (e *Engine) localDisk(v volume.Volume) cache.Disk {
	return cache.Disk{Name: v.Name(), Path: e.Store.Path(v.Name())}
}

// mayTouch is the first call of a verb that changes the device. It fails if the verb would get stuck,
// because the volume is held or its I/O is frozen. It completes a change that was interrupted.
func (e *Engine) mayTouch(ctx context.Context, v volume.Volume, dev cache.State) error {
	if e.holds.Until(v.Name()) != nil {
		return v.Fail(escache.CodeHeld, "it is held; release it first")
	}
	if err := e.notFrozen(ctx, v); err != nil {
		return err
	}
	if dev.Held { // not by a hold: a change was interrupted
		return e.Caches.Resume(ctx, v.Name())
	}
	return nil
}

// thaw is how long a verb waits for frozen I/O to go on. Usually the arbiter answers in a moment,
// or a slow peer comes back as soon.
const thaw = 10 * time.Second

// notFrozen waits until the volume's I/O is not frozen. It fails after thaw, or if this host can reach
// neither its own disk nor the peer.
func (e *Engine) notFrozen(ctx context.Context, v volume.Volume) error {
	for start := e.now(); ; {
		st, up, err := e.replica(v.Minor)
		switch {
		case err != nil:
			return err
		case up && st.Disk == drbd.Diskless && !st.Linked():
			return v.Fail(escache.CodeCacheError, "neither this host's disk nor %s can be reached", v.Peer.Name)
		case !up || !st.Suspended:
			return nil
		case e.now().Sub(start) > thaw:
			return v.Fail(escache.CodeStuck,
				"%s is cut off from %s and its I/O is frozen until the arbiter allows going on or %s is back; nothing changes meanwhile",
				e.cfg.Node, v.Peer.Name, v.Peer.Name)
		}
		if err := pause.For(ctx, poll); err != nil {
			return err
		}
	}
}

// adopt completes a device that exists already and makes the link POOL/IMAGE to it. It does not change
// a held device: that was complete before the hold.
func (e *Engine) adopt(ctx context.Context, v volume.Volume, dev cache.State) (link string, err error) {
	if e.holds.Until(v.Name()) == nil {
		if err := e.Caches.Resume(ctx, v.Name()); err != nil {
			return "", err
		}
	}
	return e.link(v, dev.Path)
}

// link makes the link POOL/IMAGE to the device and returns its path.
func (e *Engine) link(v volume.Volume, target string) (string, error) {
	path := devicePath(e.cfg.DeviceDir, v)
	if got, err := os.Readlink(path); err == nil && got == target {
		return path, nil
	}
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		return "", err
	}
	tmp := filepath.Join(e.cfg.DeviceDir, "."+v.Name())
	_ = os.Remove(tmp)
	if err := os.Symlink(target, tmp); err != nil {
		return "", err
	}
	return path, os.Rename(tmp, path)
}

func (e *Engine) unlink(v volume.Volume) error {
	path := devicePath(e.cfg.DeviceDir, v)
	if err := os.Remove(path); err != nil && !os.IsNotExist(err) {
		return err
	}
	_ = os.Remove(filepath.Dir(path)) // the pool's directory, if it is empty now
	return nil
}

func devicePath(dir string, v volume.Volume) string { return filepath.Join(dir, v.Pool, v.Image) }
