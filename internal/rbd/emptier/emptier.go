// Package emptier decides when each image in the trash of a Ceph cluster is purged. Ceph deletes an
// image object by object, which takes milliseconds or hours, so a few large images must not keep
// all small ones waiting.
package emptier

import (
	"context"
	"log/slog"
	"maps"
	"slices"
	"sync"
	"time"
)

const (
	// Workers is how many images of a cluster are purged at once: each keeps OSDs busy for as long
	// as the image is large.
	Workers = 4
	// largeAtOnce is how many of them may be large.
	largeAtOnce = 2
	// largeObjects makes an image large: 256 GiB of objects of 4 MiB.
	largeObjects = 1 << 16
	// every is the time after which Run lists again, and tries again what it could not purge.
	every = time.Minute
)

// Image is an image in a pool's trash.
type Image struct {
	Pool    string
	ID      string
	Name    string
	Deleted time.Time
}

// Size is the size of an image.
type Size struct {
	Bytes int64 // provisioned
	// Objects is how many objects of it there can be.
	Objects int64
}

// Trash is a cluster's trash.
type Trash interface {
	// List returns the images that may be purged. If some pools do not answer, it returns those of
	// the others and an error.
	List(ctx context.Context) ([]Image, error)
	// Measure returns the size of an image.
	Measure(ctx context.Context, image Image) (Size, error)
	// Purge purges an image, and tells left how much of it is left. An image that is gone is success.
	Purge(ctx context.Context, image Image, left func(bytes int64)) error
	// Waits reports whether an error of Purge means that other images must be purged first.
	Waits(err error) bool
	// Open reports whether an error of Purge means that somebody has the image open: a client, or the
	// purge of one of its clones.
	Open(err error) bool
}

// Failure is an image that could not be purged.
type Failure struct {
	Image Image
	Err   error
}

type key struct{ pool, id string }

func keyOf(i Image) key { return key{i.Pool, i.ID} }

// Emptier empties a cluster's trash, the oldest images first. Run and Drain must not run at once.
type Emptier struct {
	trash Trash
	log   *slog.Logger

	// Only the goroutine of Run or Drain uses these.
	queue   []Image
	running map[key]bool
	large   map[key]bool // known to be large
	failed  map[key]Failure
	told    map[key]bool // a failure of it is in the log
	purged  int          // images

	ended      chan result
	largeSlots chan struct{}

	mu     sync.Mutex
	states []PoolState
}

// result is how the work on an image ended. It is postponed if it is large and has no slot.
type result struct {
	image     Image
	postponed bool
	err       error
	purged    int // images that had been purged when it began
}

// New returns an Emptier.
func New(trash Trash, log *slog.Logger) *Emptier {
	return &Emptier{
		trash: trash, log: log, running: map[key]bool{}, large: map[key]bool{}, failed: map[key]Failure{}, told: map[key]bool{},
		ended: make(chan result, Workers), largeSlots: make(chan struct{}, largeAtOnce),
	}
}

// Run empties the trash until ctx ends. It lists again after each kick.
func (e *Emptier) Run(ctx context.Context, kicked <-chan struct{}) {
	tick := time.NewTicker(every)
	defer tick.Stop()
	for {
		e.start(ctx)
		var err error
		select {
		case <-ctx.Done():
			for len(e.running) > 0 {
				e.finish(<-e.ended)
			}
			return
		case r := <-e.ended:
			e.finish(r)
		case <-kicked:
			err = e.list(ctx)
		case <-tick.C:
			clear(e.failed)
			err = e.list(ctx)
		}
		if err != nil && ctx.Err() == nil {
			e.log.Warn("not every trash could be listed, trying again", "error", err)
		}
	}
}

// Drain purges what is in the trash now, and returns what could not be purged.
func (e *Emptier) Drain(ctx context.Context) ([]Failure, error) {
	if err := e.list(ctx); err != nil {
		return nil, err
	}
	for {
		e.start(ctx)
		if len(e.running) == 0 {
			return slices.Collect(maps.Values(e.failed)), nil
		}
		e.finish(<-e.ended)
	}
}

// list reads the trash again. What failed stays out of the queue until it is to be tried again.
func (e *Emptier) list(ctx context.Context) error {
	images, err := e.trash.List(ctx)
	e.record(images)
	there := map[key]bool{}
	e.queue = e.queue[:0]
	for _, i := range images {
		k := keyOf(i)
		there[k] = true
		if _, failed := e.failed[k]; !failed && !e.running[k] {
			e.queue = append(e.queue, i)
		}
	}
	e.sort()
	if err == nil {
		gone := func(k key) bool { return !there[k] && !e.running[k] }
		maps.DeleteFunc(e.large, func(k key, _ bool) bool { return gone(k) })
		maps.DeleteFunc(e.failed, func(k key, _ Failure) bool { return gone(k) })
		maps.DeleteFunc(e.told, func(k key, _ bool) bool { return gone(k) })
	}
	return err
}

func (e *Emptier) sort() {
	slices.SortStableFunc(e.queue, func(a, b Image) int { return a.Deleted.Compare(b.Deleted) })
}

// start gives work to all free workers.
func (e *Emptier) start(ctx context.Context) {
	for ctx.Err() == nil && len(e.running) < Workers {
		at := slices.IndexFunc(e.queue, func(i Image) bool { return !e.large[keyOf(i)] || len(e.largeSlots) < cap(e.largeSlots) })
		if at < 0 {
			return
		}
		image := e.queue[at]
		e.queue = slices.Delete(e.queue, at, at+1)
		e.running[keyOf(image)] = true
		purged := e.purged
		go func() {
			r := e.work(ctx, image)
			r.purged = purged
			e.ended <- r
		}()
	}
}

// work measures an image and purges it. It does not wait for a slot, so that its worker is free for
// a small one. An image that cannot be measured is half gone already, and counts as small.
func (e *Emptier) work(ctx context.Context, image Image) result {
	size, err := e.trash.Measure(ctx, image)
	if err == nil {
		e.left(image, size.Bytes)
	}
	if size.Objects > largeObjects {
		select {
		case e.largeSlots <- struct{}{}:
			defer func() { <-e.largeSlots }()
		default:
			return result{image: image, postponed: true}
		}
		e.log.Info("purging a large image from the trash", "pool", image.Pool, "image", image.Name, "id", image.ID, "objects", size.Objects)
	}
	return result{image: image, err: e.trash.Purge(ctx, image, func(bytes int64) { e.left(image, bytes) })}
}

func (e *Emptier) finish(r result) {
	k := keyOf(r.image)
	delete(e.running, k)
	switch {
	case r.postponed:
		e.large[k] = true
		e.queue = append(e.queue, r.image)
		e.sort()
	case r.err != nil && e.mayEnd(r.err) && r.purged < e.purged:
		e.queue = append(e.queue, r.image) // what it waited for may have been purged meanwhile
		e.sort()
	case r.err != nil:
		e.failed[k] = Failure{r.image, r.err}
		level := slog.LevelDebug
		usual := e.trash.Waits(r.err) || e.trash.Open(r.err) && len(e.running) > 0
		if !e.told[k] && !usual {
			level, e.told[k] = slog.LevelWarn, true
		}
		e.log.Log(context.Background(), level, "an image stays in the trash, trying again",
			"pool", r.image.Pool, "image", r.image.Name, "id", r.image.ID, "error", r.err)
	default:
		e.forget(r.image)
		delete(e.large, k)
		delete(e.told, k)
		e.purged++
		// What was purged may have been what others wait for.
		for other, f := range e.failed {
			if e.mayEnd(f.Err) {
				e.queue = append(e.queue, f.Image)
				delete(e.failed, other)
			}
		}
		e.sort()
	}
}

// mayEnd reports whether the purge of another image can end what an error of Purge tells of.
func (e *Emptier) mayEnd(err error) bool { return e.trash.Waits(err) || e.trash.Open(err) }
