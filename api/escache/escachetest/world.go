// Package escachetest is an implementation of the escache API in memory, for tests. The conformance
// suite proves that it keeps the contract, and can make it break any one rule to show that the
// suite notices.
package escachetest

import (
	"cmp"
	"context"
	"fmt"
	"io"
	"sync"
	"time"

	"github.com/escache/escache-csi/api/escache"
)

// World is hosts that replicate to each other, and a Ceph beside them.
type World struct {
	Hosts []*Host

	mu     sync.Mutex
	broken string
	// alone: the test plays the peer and the write-back, and Ceph has an image for every replica.
	alone   bool
	images  map[escache.VolumeRef]*image
	caches  map[escache.VolumeRef]*cache
	stalled chan struct{} // nil while Ceph answers; closed when it does again
	clients int
}

type image struct {
	id     string
	size   int64
	blocks map[int64][]byte
	holder string
}

// cache holds what both replicas of a volume contain.
type cache struct {
	dirty map[int64][]byte
	// played is the number of dirty bytes without content that a test asks for; see Host.Change.
	played int64
	// unknown says that nobody can tell how much is dirty.
	unknown bool
}

func (c *cache) bytes() int64 { return int64(len(c.dirty))*block + c.played }

func (c *cache) clean() bool { return c.bytes() == 0 && !c.unknown }

// empty makes the cache clean.
func (c *cache) empty() {
	clear(c.dirty)
	c.played, c.unknown = 0, false
}

// Host is one host with its escached. It also uses the devices that the API makes there.
type Host struct {
	Name string

	w        *World
	id       string // of its disks
	address  string // of its Ceph clients
	capacity int64
	// connectable is the size of the caches that the memory allows to be connected. 0: any.
	connectable int64
	sick        string
	perFlush    int64 // what one flush writes back at most; 0: everything
	replicas    map[escache.VolumeRef]*replica
	maps        map[escache.VolumeRef]*plain // of images without a cache
	mapping     map[escache.VolumeRef]int64  // epochs of the images that are being mapped without a cache
	onMap       func()                       // see OnMap
	// onTrim is nil before OnTrim was called.
	onTrim     func(escache.TrimRequest) (escache.TrimResponse, error)
	recovering bool // it has just started; see Restart
	leaked     int64
}

type replica struct {
	req       escache.ReplicaRequest
	epoch     int64
	connected bool
	primary   bool
	plain     bool // no replica: the image is mapped without a cache
	client    string
	mode      escache.Mode
	options   escache.CacheOptions
	size      int64
	open      int
	held      *time.Time
	paused    bool // a hold has I/O rest that could go on
	released  chan struct{}
	verb      string // the operation that runs
	since     time.Time

	// Tests play these; see Host.Change.
	device    string            // "": at the usual path
	disk      escache.DiskState // "": as the replicas of the world are
	peers     []escache.Peer
	synced    float64
	resync    *escache.Resync
	suspended bool
	// mayGoOnAlone is what status says; a host that is played takes no permit by itself.
	mayGoOnAlone bool
	connecting   bool
	superseded   int64 // the epoch of the attachment that proves that this replica is superseded
	discarded    int64 // up to this epoch the record gives up what only caches have
	abandoning   bool  // its device is being given up
	traffic      Traffic
}

const (
	mib   = 1 << 20
	block = 4096
)

// New returns a world with the two hosts n1 and n2.
func New() *World { return Breaking("") }

// Breaking returns a world that breaks one rule of the contract, so that the conformance suite can
// show that it notices. The rules are those that breaks is asked for.
func Breaking(rule string) *World {
	w := newWorld()
	w.broken = rule
	for _, name := range []string{"n1", "n2"} {
		w.add(name, "10.0.0.1", 1<<30).connectable = 768 * mib
	}
	return w
}

// Alone returns a host in a world of its own, whose Ceph has an image for every replica. The host
// sees no peer, and only a flush or a hold writes back: the test plays the rest, with Change.
// cacheBytes is the size of its cache, address the IP address of its Ceph clients.
func Alone(name, address string, cacheBytes int64) *Host {
	w := newWorld()
	w.alone = true
	return w.add(name, address, cacheBytes)
}

func newWorld() *World {
	return &World{images: map[escache.VolumeRef]*image{}, caches: map[escache.VolumeRef]*cache{}}
}

func (w *World) add(name, address string, cacheBytes int64) *Host {
	h := &Host{
		w: w, Name: name, id: "disks-of-" + name, address: address, capacity: cacheBytes,
		replicas: map[escache.VolumeRef]*replica{}, maps: map[escache.VolumeRef]*plain{},
		mapping: map[escache.VolumeRef]int64{}, onMap: func() {},
	}
	w.Hosts = append(w.Hosts, h)
	return h
}

func (w *World) breaks(rule string) bool { return w.broken == rule }

// ceph waits until Ceph answers; with the lock held before and after.
func (w *World) ceph(ctx context.Context) error {
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

// image returns Ceph's image of a volume, nil if there is none.
func (w *World) image(ref escache.VolumeRef, id string, size int64) *image {
	if w.alone {
		// Another id means that the image was deleted and re-created under its name.
		if img := w.images[ref]; img == nil || id != "" && id != img.id {
			w.images[ref] = &image{id: cmp.Or(id, "1d1"), blocks: map[int64][]byte{}}
		}
		w.images[ref].size = max(w.images[ref].size, size)
	}
	return w.images[ref]
}

// Create makes an image and returns its id.
func (w *World) Create(_ context.Context, ref escache.VolumeRef, size int64) (string, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	id := fmt.Sprintf("1d%d", len(w.images)+1)
	w.images[ref] = &image{id: id, size: size, blocks: map[int64][]byte{}}
	return id, nil
}

// Grow sets the size of an image.
func (w *World) Grow(_ context.Context, ref escache.VolumeRef, size int64) error {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.images[ref].size = size
	return nil
}

// Remove removes an image. It fails if a host maps it.
func (w *World) Remove(_ context.Context, ref escache.VolumeRef) error {
	w.mu.Lock()
	defer w.mu.Unlock()
	if holder := w.images[ref].holder; holder != "" && w.broken == "" {
		return fmt.Errorf("%s has the image open", holder)
	}
	delete(w.images, ref)
	return nil
}

// Occupy takes an image's exclusive lock as another client, until it is closed.
func (w *World) Occupy(_ context.Context, ref escache.VolumeRef) (io.Closer, error) {
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

// Stall makes writes to Ceph hang until it is closed.
func (w *World) Stall(context.Context) (io.Closer, error) {
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

// closer makes a function an io.Closer.
type closer func() error

func (c closer) Close() error { return c() }
