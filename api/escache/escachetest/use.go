package escachetest

import (
	"context"
	"errors"
	"io"
	"time"

	"github.com/escache/escache-csi/api/escache"
)

func devicePath(ref escache.VolumeRef) string { return "/dev/escache/" + ref.Pool + "/" + ref.Image }

func (h *Host) device(path string) (escache.VolumeRef, *replica, error) {
	for ref, r := range h.replicas {
		if r.connected && devicePath(ref) == path {
			return ref, r, nil
		}
	}
	return escache.VolumeRef{}, nil, errors.New("no such device")
}

// Write writes to a connected device. It blocks while the volume is held, unless I/O goes on meanwhile.
func (h *Host) Write(ctx context.Context, device string, offset int64, data []byte) error {
	h.w.mu.Lock()
	defer h.w.mu.Unlock()
	if m := h.plainAt(device); m != nil {
		return m.write(offset, data, h.w.breaks("a read-only map can be written to"))
	}
	ref, r, err := h.device(device)
	if err != nil {
		return err
	}
	r.open++
	defer func() { r.open-- }()
	for h.waits(r) {
		released := r.released
		h.w.mu.Unlock()
		select {
		case <-released:
		case <-ctx.Done():
		case <-time.After(time.Second): // an extended hold has another channel
		}
		h.w.mu.Lock()
		if ctx.Err() != nil {
			return ctx.Err()
		}
	}
	if offset+int64(len(data)) > r.size {
		return errors.New("beyond the end of the device")
	}
	through := r.mode == escache.ModeWritethrough && !h.w.breaks("writethrough dirties")
	if through {
		if err := h.w.ceph(ctx); err != nil {
			return err
		}
	}
	for i := 0; i < len(data); i += block {
		n := offset + int64(i)
		if through {
			h.w.images[ref].blocks[n] = data[i : i+block]
			delete(h.w.caches[ref].dirty, n)
		} else {
			h.w.caches[ref].dirty[n] = data[i : i+block]
		}
	}
	return nil
}

// Read reads from a connected device.
func (h *Host) Read(_ context.Context, device string, offset, length int64) ([]byte, error) {
	h.w.mu.Lock()
	defer h.w.mu.Unlock()
	var img *image
	var dirty map[int64][]byte
	if m := h.plainAt(device); m != nil {
		img = m.img
	} else {
		ref, _, err := h.device(device)
		if err != nil {
			return nil, err
		}
		img, dirty = h.w.images[ref], h.w.caches[ref].dirty
	}
	data := make([]byte, length)
	for i := int64(0); i < length; i += block {
		b, ok := dirty[offset+i]
		if !ok {
			b = img.blocks[offset+i]
		}
		copy(data[i:], b)
	}
	return data, nil
}

// Open keeps a connected device open until it is closed.
func (h *Host) Open(_ context.Context, device string) (io.Closer, error) {
	h.w.mu.Lock()
	defer h.w.mu.Unlock()
	var open *int
	if m := h.plainAt(device); m != nil {
		open = &m.open
	} else {
		_, r, err := h.device(device)
		if err != nil {
			return nil, err
		}
		open = &r.open
	}
	*open++
	return closer(func() error {
		h.w.mu.Lock()
		defer h.w.mu.Unlock()
		*open--
		return nil
	}), nil
}

// Size returns the size of a connected device in bytes.
func (h *Host) Size(_ context.Context, device string) (int64, error) {
	h.w.mu.Lock()
	defer h.w.mu.Unlock()
	if m := h.plainAt(device); m != nil {
		return m.img.size, nil
	}
	_, r, err := h.device(device)
	if err != nil {
		return 0, err
	}
	return r.size, nil
}
