package rbd

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/ceph/go-ceph/rados"
	librbd "github.com/ceph/go-ceph/rbd"
)

// purges is how many images of a cluster's trash are removed at once: each keeps OSDs busy for as long as the image is large.
const purges = 4

// purgeTimeout is when a purge that still runs counts as stuck. A large image takes its time.
const purgeTimeout = time.Hour

// trash is what a cluster's emptier knows.
type trash struct {
	gate *gate

	mu    sync.Mutex
	pools map[string]bool
	mine  map[string]bool // POOL/ID of what this process moved there
}

func newTrash(clusterID string) *trash {
	return &trash{gate: newGate(clusterID, purges, purges, purgeTimeout), pools: map[string]bool{}, mine: map[string]bool{}}
}

// TrashedImage is an image that waits for its removal.
type TrashedImage struct {
	Pool    string
	ID      string
	Name    string
	Deleted time.Time
}

// DeleteImage moves an image to the pool's trash, and answers then: its name is free at once, its space when Run has emptied the trash.
// Errors: ErrNotFound; ErrBusy while somebody has it open or mapped; ErrPoolNotFound.
func (c *Cluster) DeleteImage(ctx context.Context, ref ImageRef) error {
	_, err := call(ctx, c, "image_delete", "delete "+ref.String(), func(conn *rados.Conn) (struct{}, error) {
		return withPool(conn, ref.Pool, func(io *rados.IOContext) (struct{}, error) {
			id, err := imageID(io, ref.Name)
			if err != nil {
				return struct{}{}, err
			}
			if err := librbd.GetImage(io, ref.Name).Trash(0); err != nil {
				return struct{}{}, err
			}
			c.trash.add(ref.Pool, id)
			c.kick()
			return struct{}{}, nil
		})
	})
	return err
}

// TrashedImages returns what is in a pool's trash, whoever put it there.
func (c *Cluster) TrashedImages(ctx context.Context, pool string) ([]TrashedImage, error) {
	return call(ctx, c, "trash_list", "pool "+pool, func(conn *rados.Conn) ([]TrashedImage, error) {
		entries, err := withPool(conn, pool, librbd.GetTrashList)
		if err != nil {
			return nil, err
		}
		out := make([]TrashedImage, 0, len(entries))
		for _, e := range entries {
			out = append(out, TrashedImage{Pool: pool, ID: e.Id, Name: e.Name, Deleted: e.DeletionTime})
		}
		return out, nil
	})
}

// WatchTrash makes Run look into a pool's trash, for what an earlier process left there. Pools that DeleteImage used are watched anyway.
func (c *Cluster) WatchTrash(pool string) {
	c.trash.add(pool, "")
	c.kick()
}

// EmptyTrash removes the images of a pool's trash that are owned, see Options.OwnsTrash, and says how many are left that could not be
// removed, because they have snapshots or clones, are watched, or are protected by a delay.
func (c *Cluster) EmptyTrash(ctx context.Context, pool string) (left int, err error) {
	entries, err := c.TrashedImages(ctx, pool)
	if err != nil {
		return 0, err
	}
	entries = slices.DeleteFunc(entries, func(e TrashedImage) bool { return !c.trash.has(pool, e.ID) && !c.options.OwnsTrash(e.Name) })
	var failed []error
	var mu sync.Mutex
	var wg sync.WaitGroup
	work := make(chan TrashedImage)
	for range min(purges, len(entries)) {
		wg.Go(func() {
			for e := range work {
				err := c.purge(ctx, e)
				if err != nil {
					mu.Lock()
					left, failed = left+1, append(failed, err)
					mu.Unlock()
				}
			}
		})
	}
	for _, e := range entries {
		work <- e
	}
	close(work)
	wg.Wait()
	if len(failed) > 0 {
		return left, fmt.Errorf("trash of pool %s: %d images left: %w", pool, left, failed[0])
	}
	return 0, nil
}

func (c *Cluster) purge(ctx context.Context, e TrashedImage) error {
	if ctx.Err() != nil {
		return ctx.Err()
	}
	_, err := callThrough(ctx, c, c.trash.gate, "image_purge", "image "+e.Name+" ("+e.ID+")", func(conn *rados.Conn) (struct{}, error) {
		return withPool(conn, e.Pool, func(io *rados.IOContext) (struct{}, error) {
			return struct{}{}, librbd.TrashRemove(io, e.ID, false)
		})
	})
	if err == nil || errors.Is(err, ErrNotFound) {
		c.trash.forget(e.Pool, e.ID)
		return nil
	}
	return err
}

func (t *trash) add(pool, id string) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.pools[pool] = true
	if id != "" {
		t.mine[pool+"/"+id] = true
	}
}

func (t *trash) has(pool, id string) bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.mine[pool+"/"+id]
}

func (t *trash) forget(pool, id string) {
	t.mu.Lock()
	defer t.mu.Unlock()
	delete(t.mine, pool+"/"+id)
}

func (t *trash) watched() []string {
	t.mu.Lock()
	defer t.mu.Unlock()
	pools := make([]string, 0, len(t.pools))
	for pool := range t.pools {
		pools = append(pools, pool)
	}
	slices.Sort(pools)
	return pools
}
