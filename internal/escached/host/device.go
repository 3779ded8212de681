package host

import (
	"context"
	"os"
	"path/filepath"
	"time"

	"github.com/escache/escache-csi/api/escache"
	"github.com/escache/escache-csi/internal/escached/cache"
	"github.com/escache/escache-csi/internal/escached/drbd"
	"github.com/escache/escache-csi/internal/escached/krbd"
	"github.com/escache/escache-csi/internal/escached/problem"
	"github.com/escache/escache-csi/internal/escached/volume"
	"github.com/escache/escache-csi/internal/pause"
)

// Device returns the state of a volume's device. ok is false while there is none.
func (h *Host) Device(ctx context.Context, name string) (dev cache.State, ok bool, err error) {
	devices, err := h.Caches.States(ctx, name)
	if err != nil {
		return dev, false, err
	}
	dev, ok = devices[name]
	return dev, ok, nil
}

// Cache returns the engine of a volume's cache.
func (h *Host) Cache(v volume.Volume) cache.Engine { return h.Caches.Of(v.Engine) }

// DiskOf returns the disk of a volume's cache as the Primary uses it: the DRBD device.
func DiskOf(v volume.Volume) cache.Disk {
	return cache.Disk{Name: v.Name(), Path: drbd.Device(v.Minor)}
}

// LocalDisk returns this host's copy of the disk, below DRBD.
func (h *Host) LocalDisk(v volume.Volume) cache.Disk {
	return cache.Disk{Name: v.Name(), Path: h.Store.Path(v.Name())}
}

// MayTouch is the first call of a verb that changes the device. It fails if the verb would get
// stuck, because the volume is held or its I/O is frozen. It completes a change that was
// interrupted.
func (h *Host) MayTouch(ctx context.Context, v volume.Volume, dev cache.State) error {
	if h.Holds.Get(v.Name()) != nil {
		return v.Fail(escache.CodeHeld, "it is held; release it first")
	}
	if err := h.NotFrozen(ctx, v); err != nil {
		return err
	}
	if dev.Held || dev.Unserved != "" { // not by a hold: a change was interrupted
		return h.Cache(v).Resume(ctx, v.Name())
	}
	return nil
}

// Thaw is how long a verb waits for frozen I/O to go on. Usually the arbiter answers, or a slow
// peer comes back, within moments.
const Thaw = 10 * time.Second

// NotFrozen waits until the volume's I/O is not frozen. It fails after Thaw, or if this host can
// reach neither its own disk nor the peer.
func (h *Host) NotFrozen(ctx context.Context, v volume.Volume) error {
	for start := h.Now(); ; {
		st, up, err := h.Replica(v.Minor)
		switch {
		case err != nil:
			return err
		case up && st.Disk == drbd.Diskless && !st.Linked():
			return v.Fail(escache.CodeCacheError, "neither this host's disk nor %s can be reached", v.Peer.Name)
		case !up || !st.Suspended:
			return nil
		case h.Now().Sub(start) > Thaw:
			return v.Fail(escache.CodeStuck,
				"%s is cut off from %s and its I/O is frozen until the arbiter allows going on or %s is back; nothing changes meanwhile",
				h.Config.Node, v.Peer.Name, v.Peer.Name)
		}
		if err := pause.For(ctx, Poll); err != nil {
			return err
		}
	}
}

// Adopt completes a device that exists already and makes the link POOL/IMAGE to it. It does not
// change a held device: that was complete before the hold.
func (h *Host) Adopt(ctx context.Context, v volume.Volume, dev cache.State) (link string, err error) {
	if h.Holds.Get(v.Name()) == nil {
		if err := h.Cache(v).Resume(ctx, v.Name()); err != nil {
			return "", err
		}
	}
	return h.Link(v, dev.Path)
}

// Link makes the link POOL/IMAGE to the device and returns its path.
func (h *Host) Link(v volume.Volume, target string) (string, error) {
	h.links.Lock()
	defer h.links.Unlock()
	path := h.DevicePath(v)
	if got, err := os.Readlink(path); err == nil && got == target {
		return path, nil
	}
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		return "", err
	}
	tmp := filepath.Join(h.Config.DeviceDir, "."+v.Name())
	_ = os.Remove(tmp)
	if err := os.Symlink(target, tmp); err != nil {
		return "", err
	}
	return path, os.Rename(tmp, path)
}

// Unlink removes the link POOL/IMAGE. One that is gone is success.
func (h *Host) Unlink(v volume.Volume) error {
	h.links.Lock()
	defer h.links.Unlock()
	path := h.DevicePath(v)
	if err := os.Remove(path); err != nil && !os.IsNotExist(err) {
		return err
	}
	_ = os.Remove(filepath.Dir(path)) // the pool's directory, if it is empty now
	return nil
}

// DevicePath returns the path of the link POOL/IMAGE to a volume's device.
func (h *Host) DevicePath(v volume.Volume) string {
	return filepath.Join(h.Config.DeviceDir, v.Pool, v.Image)
}

// MapMayCome returns an error if a process hangs in the kernel that may still map the image of a volume,
// also one that an earlier escached has started. Ask before you look for maps: the process may end
// meanwhile. If there is no replica here, no other command of the volume can hang.
func (h *Host) MapMayCome(ref escache.VolumeRef) error {
	name := volume.NameOf(ref)
	stuck := h.Stuck()[name]
	_, replica := h.Volumes.Get(name)
	if stuck == nil || replica && !krbd.MayMap(stuck) {
		return nil
	}
	return stuck
}

// sizePolls bounds how long Ceph may take to report the new size: 10 s.
const sizePolls = 50

// WaitForSize waits until krbd has heard from Ceph that the image has grown.
func (h *Host) WaitForSize(ctx context.Context, ref escache.VolumeRef, want int64) error {
	var have int64
	for range sizePolls {
		maps, err := h.Images.Find(ref.Pool, ref.Image)
		if err != nil {
			return err
		}
		for _, m := range maps {
			if have = m.Bytes; have >= want {
				return nil
			}
		}
		if err := pause.For(ctx, Poll); err != nil {
			return err
		}
	}
	return problem.On(ref, escache.CodeInvalidRequest, "sizeBytes: the image has %d bytes, less than %d; grow it in Ceph first", have, want)
}
