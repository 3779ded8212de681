package rbd

import (
	"context"
	"errors"
	"log/slog"
	"time"
)

// emptyEvery is how often Run tries again to remove images that it could not remove before.
const emptyEvery = time.Minute

// Run empties the trash of all pools that were given to DeleteImage or WatchTrash, until ctx ends.
func (cs *Clusters) Run(ctx context.Context, log *slog.Logger) {
	tick := time.NewTicker(emptyEvery)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-cs.kicked:
		case <-tick.C:
		}
		for _, c := range cs.all() {
			for _, pool := range c.trash.watched() {
				left, err := c.EmptyTrash(ctx, pool)
				switch {
				case err == nil, errors.Is(err, ErrPoolNotFound), ctx.Err() != nil:
				case errors.Is(err, ErrHasSnapshots):
					log.Debug("images stay in the trash as long as there are clones of them", "cluster", c.id, "pool", pool, "left", left)
				default:
					log.Warn("trash not emptied, trying again", "cluster", c.id, "pool", pool, "left", left, "error", err)
				}
			}
		}
	}
}

// kick wakes Run. It never blocks.
func (cs *Clusters) kick() {
	select {
	case cs.kicked <- struct{}{}:
	default:
	}
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
