package rbd

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"sync"

	"github.com/ceph/go-ceph/rados"
	librbd "github.com/ceph/go-ceph/rbd"

	"github.com/escache/escache-csi/internal/rbd/emptier"
)

// Run empties the trash of all pools that were given to DeleteImage or WatchTrash, until ctx ends.
// No cluster waits for another one.
func (cs *Clusters) Run(ctx context.Context, log *slog.Logger) {
	var wg sync.WaitGroup
	defer wg.Wait()
	started := map[*Cluster]bool{}
	for {
		for _, c := range cs.all() {
			if !started[c] {
				started[c] = true
				wg.Go(func() { c.emptyTrash(ctx, log.With("cluster", c.id)) })
			}
		}
		select {
		case <-ctx.Done():
			return
		case <-cs.added:
		}
	}
}

func (c *Cluster) emptyTrash(ctx context.Context, log *slog.Logger) {
	e := emptier.New(ownTrash{c, c.trash.watched, true}, log)
	c.trash.setStates(e.States)
	e.Run(ctx, c.trash.kicked)
}

// TrashStates returns what the trash of each pool holds, as Run last saw it.
func (cs *Clusters) TrashStates() []emptier.PoolState {
	var out []emptier.PoolState
	for _, c := range cs.all() {
		for _, s := range c.trash.states() {
			s.Cluster = c.id
			out = append(out, s)
		}
	}
	return out
}

func (cs *Clusters) all() []*Cluster {
	cs.mu.Lock()
	defer cs.mu.Unlock()
	out := make([]*Cluster, 0, len(cs.clusters))
	for _, c := range cs.clusters {
		out = append(out, c)
	}
	return out
}

// wake never blocks: one wake that waits is enough for all.
func wake(c chan<- struct{}) {
	select {
	case c <- struct{}{}:
	default:
	}
}

// ownTrash is the part of some pools' trash that this process may purge.
type ownTrash struct {
	*Cluster

	pools func() []string
	// deletable means that a pool may be gone: then its trash is gone too.
	deletable bool
}

// List implements emptier.Trash.
func (o ownTrash) List(ctx context.Context) ([]TrashedImage, error) {
	var all []TrashedImage
	var failures []error
	for _, pool := range o.pools() {
		entries, err := o.TrashedImages(ctx, pool)
		if err != nil && (!o.deletable || !errors.Is(err, ErrPoolNotFound)) {
			failures = append(failures, err)
		}
		all = append(all, slices.DeleteFunc(entries, func(e TrashedImage) bool { return !o.mayPurge(e) })...)
	}
	return all, errors.Join(failures...)
}

// Measure implements emptier.Trash.
func (o ownTrash) Measure(ctx context.Context, e TrashedImage) (emptier.Size, error) {
	return call(ctx, o.Cluster, "trash_measure", "image "+e.Name+" ("+e.ID+")", func(conn *rados.Conn) (emptier.Size, error) {
		return withPool(conn, e.Pool, func(io *rados.IOContext) (emptier.Size, error) {
			image, err := librbd.OpenImageByIdReadOnly(io, e.ID, librbd.NoSnapshot)
			if err != nil {
				return emptier.Size{}, err
			}
			info, err := image.Stat()
			if err != nil {
				return emptier.Size{}, errors.Join(err, image.Close())
			}
			return emptier.Size{Bytes: int64(info.Size), Objects: int64(info.Num_objs)}, image.Close()
		})
	})
}

// Purge implements emptier.Trash.
func (o ownTrash) Purge(ctx context.Context, e TrashedImage, left func(bytes int64)) error {
	return o.purge(ctx, e, left)
}

// Waits implements emptier.Trash.
func (ownTrash) Waits(err error) bool { return errors.Is(err, ErrHasSnapshots) }

// Open implements emptier.Trash.
func (ownTrash) Open(err error) bool { return errors.Is(err, ErrBusy) }

// EmptyTrash removes the images in a pool's trash that Options.OwnsTrash allows and that are not
// marked as another Kubernetes cluster's. left counts those that could not be removed, because they
// have snapshots or clones, are in use, are protected by a delay, or were moved there by somebody else. Errors:
// ErrPoolNotFound; ErrHasSnapshots only if that is the reason for all that are left.
func (c *Cluster) EmptyTrash(ctx context.Context, pool string) (left int, err error) {
	all := ownTrash{c, func() []string { return []string{pool} }, false}
	failures, err := emptier.New(all, slog.New(slog.DiscardHandler)).Drain(ctx)
	if err != nil || len(failures) == 0 {
		return 0, err
	}
	slices.SortFunc(failures, func(a, b emptier.Failure) int { return strings.Compare(a.Image.Name, b.Image.Name) })
	worst := slices.IndexFunc(failures, func(f emptier.Failure) bool { return !all.Waits(f.Err) })
	f := failures[max(0, worst)]
	return len(failures), fmt.Errorf("trash of pool %s: %d images left, one of them %s: %w", pool, len(failures), f.Image.Name, f.Err)
}
