package rbd

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/ceph/go-ceph/rados"
	librbd "github.com/ceph/go-ceph/rbd"

	"github.com/escache/escache-csi/internal/rbd/emptier"
)

// purgeTimeout is when a purge that still runs is ended; the next one goes on from there. The largest
// image, of 1 PiB, takes about 19 hours at 4000 objects a second. If Ceph hangs, librados ends the
// purge long before.
const purgeTimeout = 48 * time.Hour

// trash is what a cluster's emptier knows.
type trash struct {
	gate   *gate
	kicked chan struct{} // there may be something to purge

	mu    sync.Mutex
	seen  func() []emptier.PoolState
	pools map[string]bool
	mine  map[string]bool // POOL/ID of what this process has moved there
	// unnoted has when this process moved POOL/ID there, if a full pool did not take a note of that.
	unnoted map[string]time.Time
	// foreign has POOL/ID of what is marked as another Kubernetes cluster's, or was released.
	foreign map[string]bool

	prepared map[string]bool // pools that have the object for it
}

func newTrash(clusterID string) *trash {
	return &trash{
		gate:   newGate(clusterID, emptier.Workers, emptier.Workers, purgeTimeout),
		kicked: make(chan struct{}, 1),
		pools:  map[string]bool{}, mine: map[string]bool{}, unnoted: map[string]time.Time{},
		foreign: map[string]bool{}, prepared: map[string]bool{},
	}
}

// prepare makes the object that lists a pool's trash. A full pool takes no new object, so that
// without it nothing could be deleted from a pool that filled up before its first delete.
func (t *trash) prepare(io *rados.IOContext, pool string) error {
	t.mu.Lock()
	done := t.prepared[pool]
	t.mu.Unlock()
	if done {
		return nil
	}
	if err := io.Create(trashObject, rados.CreateIdempotent); err != nil {
		return err
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	t.prepared[pool] = true
	return nil
}

// TrashedImage is an image in a pool's trash.
type TrashedImage = emptier.Image

// DeleteImage moves an image to the pool's trash and returns. Its name is free at once, its space
// when Run has emptied the trash. Errors: ErrNotFound; ErrForeign; ErrBusy while a client has the
// image open or mapped; ErrHasSnapshots; ErrPoolNotFound.
func (c *Cluster) DeleteImage(ctx context.Context, ref ImageRef) error {
	_, err := callAlone(ctx, c, "image_delete", "delete "+ref.String(), ref, func(conn *rados.Conn) (struct{}, error) {
		return withPool(conn, ref.Pool, func(io *rados.IOContext) (struct{}, error) { return struct{}{}, c.moveToTrash(conn, io, ref) })
	})
	return err
}

func (c *Cluster) moveToTrash(conn *rados.Conn, io *rados.IOContext, ref ImageRef) error {
	id, err := imageID(io, ref.Name)
	if errors.Is(err, rados.ErrNotFound) {
		return finishMove(io, ref.Name)
	}
	if err != nil {
		return err
	}
	err = c.refuseForeign(io, id)
	if err == nil {
		err = unused(conn, io, ref.Name, id)
	}
	switch {
	case errors.Is(translate(err), ErrNotFound):
		return removeHalfMade(io, ref.Name)
	case err != nil:
		return err
	}
	began := time.Now()
	noted, err := noteMove(io, id)
	if err != nil {
		return err
	}
	if err := librbd.GetImage(io, ref.Name).Trash(0); err != nil {
		if now, failed := imageID(io, ref.Name); failed == nil && now == id && errors.Is(translate(err), ErrNotFound) {
			return fmt.Errorf("%w: the image is there, but cannot be moved to the trash; is pool %s full?", ErrCeph, ref.Pool)
		}
		return err
	}
	c.trash.moved(ref.Pool, id, began, noted)
	wake(c.trash.kicked)
	return nil
}

// finishMove ends a move to the trash that a process died in: the image has no ID any more, and
// cannot be purged yet. Asked to move a name that is gone, librbd looks for such an image. It
// returns ErrNotFound if there is none.
func finishMove(io *rados.IOContext, name string) error { return librbd.GetImage(io, name).Trash(0) }

// unused returns ErrBusy for an image that somebody has open. Ceph's own move to the trash looks at
// the exclusive lock only, and an image that is mapped but was not written to yet has no lock.
// Somebody who comes between this look and the move keeps the data all the same: a purge refuses
// images with watchers. It returns ErrHasSnapshots for an image with snapshots, of which nobody
// could make a clone any more in the trash; hidden ones are only for the clones that there are.
//
// A client on the blocklist does not count: it cannot reach the image. Ceph may list it for ever (tracker.ceph.com/issues/58120).
func unused(conn *rados.Conn, io *rados.IOContext, name, id string) error {
	image, err := librbd.OpenImageByIdReadOnly(io, id, librbd.NoSnapshot)
	if err != nil {
		return openError(io, name, err)
	}
	watchers, err := image.ListWatchers()
	if err == nil && len(watchers) > 0 {
		var entries []BlocklistEntry
		if entries, err = blocklistEntries(conn); err == nil {
			err = inUse(watchers, entries)
		}
	}
	if err == nil {
		err = withoutSnapshots(image)
	}
	return errors.Join(err, image.Close())
}

// inUse returns ErrBusy if a watcher is not on the blocklist.
func inUse(watchers []librbd.ImageWatcher, blocklist []BlocklistEntry) error {
	for _, w := range watchers {
		if !listed(blocklist, w.Addr, 0) {
			return fmt.Errorf("%w by client %s", ErrBusy, w.Addr)
		}
	}
	return nil
}

func withoutSnapshots(image *librbd.Image) error {
	all, err := snapshots(image)
	if err != nil || len(all) == 0 {
		return err
	}
	var names []string
	for _, s := range all {
		names = append(names, s.Name)
	}
	return fmt.Errorf("%w: %s; remove them first", ErrHasSnapshots, strings.Join(names, ", "))
}

// TrashedImages returns all images in a pool's trash, also those that others moved there.
func (c *Cluster) TrashedImages(ctx context.Context, pool string) ([]TrashedImage, error) {
	return call(ctx, c, "trash_list", "pool "+pool, func(conn *rados.Conn) ([]TrashedImage, error) {
		entries, err := withPool(conn, pool, listTrash)
		if err != nil {
			return nil, err
		}
		out := make([]TrashedImage, 0, len(entries))
		for _, e := range entries {
			out = append(out, TrashedImage{Pool: pool, ID: e.id, Name: e.name, Deleted: e.deleted})
		}
		return out, nil
	})
}

// WatchTrash makes Run empty a pool's trash of the images that an earlier process left there. Pools
// that were given to DeleteImage are included anyway.
func (c *Cluster) WatchTrash(pool string) {
	c.trash.watch(pool)
	wake(c.trash.kicked)
}

// purge removes an image from the trash, and tells left how much of a large one is left.
func (c *Cluster) purge(ctx context.Context, e TrashedImage, left func(bytes int64)) error {
	err := c.purgeOnce(ctx, e, left)
	if errno(err) == syscall.EUCLEAN { // still on its way to the trash
		ref := ImageRef{Pool: e.Pool, Name: e.Name}
		_, err = callAlone(ctx, c, "image_delete", "delete "+ref.String(), ref, func(conn *rados.Conn) (struct{}, error) {
			return withPool(conn, e.Pool, func(io *rados.IOContext) (struct{}, error) {
				if _, err := imageID(io, e.Name); !errors.Is(err, rados.ErrNotFound) {
					return struct{}{}, err // another image has the name now, and must stay
				}
				return struct{}{}, finishMove(io, e.Name)
			})
		})
		if err == nil || errors.Is(err, ErrNotFound) {
			err = c.purgeOnce(ctx, e, left)
		}
	}
	if errors.Is(err, ErrForeign) || errors.Is(err, ErrReleased) {
		c.trash.disown(e.Pool, e.ID)
		return nil
	}
	if err == nil || errors.Is(err, ErrNotFound) {
		c.trash.forget(e.Pool, e.ID)
		return nil
	}
	return err
}

func (c *Cluster) purgeOnce(ctx context.Context, e TrashedImage, left func(bytes int64)) error {
	if ctx.Err() != nil {
		return ctx.Err()
	}
	ctx, cancel := context.WithTimeout(ctx, purgeTimeout)
	defer cancel()
	o := order{op: "image_purge", what: "image " + e.Name + " (" + e.ID + ")"}
	_, err := callThrough(ctx, c, c.trash.gate, o, func(conn *rados.Conn) (struct{}, error) {
		return withPool(conn, e.Pool, func(io *rados.IOContext) (struct{}, error) {
			if err := c.mayErase(io, e); err != nil {
				return struct{}{}, err
			}
			if err := erase(ctx, conn, io, e, left); err != nil {
				return struct{}{}, err
			}
			return struct{}{}, librbd.TrashRemove(io, e.ID, false)
		})
	})
	return err
}

func (t *trash) watch(pool string) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.pools[pool] = true
}

// moved remembers that this process has moved an image to the trash, and whether the image's metadata say so.
func (t *trash) moved(pool, id string, at time.Time, noted bool) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.pools[pool] = true
	key := pool + "/" + id
	t.mine[key] = true
	delete(t.unnoted, key)
	if !noted {
		t.unnoted[key] = at
	}
}

// movedUnnoted reports whether this process has moved the image to the trash without a note, and nobody has done so since.
func (t *trash) movedUnnoted(e TrashedImage) bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	at, unnoted := t.unnoted[e.Pool+"/"+e.ID]
	return unnoted && movedLast(at, e.Deleted)
}

func (t *trash) forget(pool, id string) {
	t.mu.Lock()
	defer t.mu.Unlock()
	delete(t.mine, pool+"/"+id)
	delete(t.unnoted, pool+"/"+id)
}

// disown remembers that an image is another Kubernetes cluster's, so that it is not looked at again.
func (t *trash) disown(pool, id string) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.foreign[pool+"/"+id] = true
}

// mayPurge reports whether an image in the trash may be this process's to purge.
func (c *Cluster) mayPurge(e TrashedImage) bool {
	c.trash.mu.Lock()
	defer c.trash.mu.Unlock()
	key := e.Pool + "/" + e.ID
	return c.trash.mine[key] || !c.trash.foreign[key] && c.options.OwnsTrash(e.Name)
}

func (t *trash) setStates(states func() []emptier.PoolState) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.seen = states
}

func (t *trash) states() []emptier.PoolState {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.seen == nil {
		return nil
	}
	return t.seen()
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
