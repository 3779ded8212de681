package conformance

import (
	"context"
	"errors"
	"fmt"
	"io"
	"sync"
	"time"

	"github.com/escache/escache-csi/api/escache"
)

// world is an in-memory implementation of the API on two hosts, with Ceph beside it. It exists to show that the suite passes what
// follows the contract and catches what does not: broken names the one rule that this world breaks.
type world struct {
	mu      sync.Mutex
	broken  string
	images  map[escache.VolumeRef]*image
	caches  map[escache.VolumeRef]*cache
	hosts   [2]*fakeHost
	stalled chan struct{} // nil while Ceph answers; closed when it does again
	clients int
}

type image struct {
	id     string
	size   int64
	blocks map[int64][]byte
	holder string
}

// cache is what the two replicas of a volume hold alike.
type cache struct {
	dirty map[int64][]byte
}

type fakeHost struct {
	w        *world
	name     string
	replicas map[escache.VolumeRef]*replica
	leaked   int64
}

type replica struct {
	req       escache.ReplicaRequest
	epoch     int64
	connected bool
	primary   bool
	client    string
	mode      escache.Mode
	size      int64
	open      int
	held      *time.Time
	released  chan struct{}
	verb      string // the operation that runs
	since     time.Time
}

const fakeCapacity = 1 << 30

func newWorld(broken string) *world {
	w := &world{broken: broken, images: map[escache.VolumeRef]*image{}, caches: map[escache.VolumeRef]*cache{}}
	for i, name := range []string{"n1", "n2"} {
		w.hosts[i] = &fakeHost{w: w, name: name, replicas: map[escache.VolumeRef]*replica{}}
	}
	return w
}

func (w *world) breaks(rule string) bool { return w.broken == rule }

// ceph waits until Ceph answers; with the lock held before and after.
func (w *world) ceph(ctx context.Context) error {
	for w.stalled != nil {
		stalled := w.stalled
		w.mu.Unlock()
		select {
		case <-stalled:
		case <-ctx.Done():
		}
		w.mu.Lock()
		if ctx.Err() != nil {
			return ctx.Err()
		}
	}
	return nil
}

// Storage

func (w *world) Create(_ context.Context, ref escache.VolumeRef, size int64) (string, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	id := fmt.Sprintf("1d%d", len(w.images)+1)
	w.images[ref] = &image{id: id, size: size, blocks: map[int64][]byte{}}
	return id, nil
}

func (w *world) Grow(_ context.Context, ref escache.VolumeRef, size int64) error {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.images[ref].size = size
	return nil
}

func (w *world) Remove(_ context.Context, ref escache.VolumeRef) error {
	w.mu.Lock()
	defer w.mu.Unlock()
	if holder := w.images[ref].holder; holder != "" && w.broken == "" {
		return fmt.Errorf("%s has the image open", holder)
	}
	delete(w.images, ref)
	return nil
}

func (w *world) Occupy(_ context.Context, ref escache.VolumeRef) (io.Closer, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	img := w.images[ref]
	if img.holder != "" {
		return nil, fmt.Errorf("%s has the image's lock", img.holder)
	}
	img.holder = "another client"
	return closer(func() error {
		w.mu.Lock()
		defer w.mu.Unlock()
		img.holder = ""
		return nil
	}), nil
}

func (w *world) Stall(context.Context) (io.Closer, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	stalled := make(chan struct{})
	w.stalled = stalled
	return closer(func() error {
		w.mu.Lock()
		defer w.mu.Unlock()
		w.stalled = nil
		close(stalled)
		return nil
	}), nil
}

// Devices

func devicePath(ref escache.VolumeRef) string { return "/dev/escache/" + ref.Pool + "/" + ref.Image }

func (h *fakeHost) device(path string) (escache.VolumeRef, *replica, error) {
	for ref, r := range h.replicas {
		if r.connected && devicePath(ref) == path {
			return ref, r, nil
		}
	}
	return escache.VolumeRef{}, nil, errors.New("no such device")
}

func (h *fakeHost) Write(ctx context.Context, device string, offset int64, data []byte) error {
	h.w.mu.Lock()
	defer h.w.mu.Unlock()
	ref, r, err := h.device(device)
	if err != nil {
		return err
	}
	r.open++
	defer func() { r.open-- }()
	for r.held != nil && !h.w.breaks("hold lets writes through") {
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

func (h *fakeHost) Read(_ context.Context, device string, offset, length int64) ([]byte, error) {
	h.w.mu.Lock()
	defer h.w.mu.Unlock()
	ref, _, err := h.device(device)
	if err != nil {
		return nil, err
	}
	data := make([]byte, length)
	for i := int64(0); i < length; i += block {
		b, ok := h.w.caches[ref].dirty[offset+i]
		if !ok {
			b = h.w.images[ref].blocks[offset+i]
		}
		copy(data[i:], b)
	}
	return data, nil
}

func (h *fakeHost) Open(_ context.Context, device string) (io.Closer, error) {
	h.w.mu.Lock()
	defer h.w.mu.Unlock()
	_, r, err := h.device(device)
	if err != nil {
		return nil, err
	}
	r.open++
	return closer(func() error {
		h.w.mu.Lock()
		defer h.w.mu.Unlock()
		r.open--
		return nil
	}), nil
}

func (h *fakeHost) Size(_ context.Context, device string) (int64, error) {
	h.w.mu.Lock()
	defer h.w.mu.Unlock()
	_, r, err := h.device(device)
	if err != nil {
		return 0, err
	}
	return r.size, nil
}
