package rbd

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/ceph/go-ceph/rados"
	librbd "github.com/ceph/go-ceph/rbd"
)

const application = "rbd"

// PoolInfo describes a pool.
type PoolInfo struct {
	Name string
	// Applications the pool is tagged for; RBD needs to be among them.
	Applications []string
	// Initialised means `rbd pool init` was done.
	Initialised bool
}

// Ready reports whether images can be created in the pool.
func (p PoolInfo) Ready() bool { return p.Initialised && slices.Contains(p.Applications, application) }

// Pool describes a pool. Errors: ErrPoolNotFound.
func (c *Cluster) Pool(ctx context.Context, name string) (PoolInfo, error) {
	return call(ctx, c, "pool_check", "pool "+name, func(conn *rados.Conn) (PoolInfo, error) { return inspectPool(conn, name) })
}

// Pools returns the names of all pools, also those that are not for RBD.
func (c *Cluster) Pools(ctx context.Context) ([]string, error) {
	return call(ctx, c, "pool_list", "pools", func(conn *rados.Conn) ([]string, error) { return conn.ListPools() })
}

// CheckPool returns nil if images can be created in the pool. Errors: ErrPoolNotFound, and
// ErrPoolNotReady, which says what to do.
func (c *Cluster) CheckPool(ctx context.Context, name string) error {
	p, err := c.Pool(ctx, name)
	if err != nil {
		return err
	}
	switch {
	case p.Ready():
		return nil
	case len(p.Applications) > 0 && !slices.Contains(p.Applications, application):
		return fmt.Errorf("pool %s: %w: it belongs to %s; choose another", name, ErrPoolNotReady, strings.Join(p.Applications, ", "))
	default:
		return fmt.Errorf("pool %s: %w: run `rbd pool init %s`, or set createPool to \"true\"", name, ErrPoolNotReady, name)
	}
}

// EnsurePool creates a missing pool, and prepares for RBD a pool that belongs to no application
// yet. It does not change a pool that is ready, and fails with ErrPoolNotReady for a pool that
// belongs to another application. The Ceph user needs more rights than 'profile rbd'.
func (c *Cluster) EnsurePool(ctx context.Context, name string) error {
	_, err := call(ctx, c, "pool_create", "pool "+name, func(conn *rados.Conn) (struct{}, error) {
		return struct{}{}, ensurePool(conn, name)
	})
	return err
}

func ensurePool(conn *rados.Conn, name string) error {
	p, err := inspectPool(conn, name)
	switch {
	case errors.Is(err, ErrPoolNotFound):
		// Sizes and placement groups are the cluster's defaults: its operators know them better.
		if _, err := sendCommand(conn, map[string]any{"prefix": "osd pool create", "pool": name}); err != nil {
			return err
		}
	case err != nil:
		return err
	case p.Ready():
		return nil
	case len(p.Applications) > 0 && !slices.Contains(p.Applications, application):
		return fmt.Errorf("%w: it belongs to %s", ErrPoolNotReady, strings.Join(p.Applications, ", "))
	}
	enable := map[string]any{"prefix": "osd pool application enable", "pool": name, "app": application}
	if _, err := sendCommand(conn, enable); err != nil {
		return err
	}
	if err := conn.WaitForLatestOSDMap(); err != nil {
		return err
	}
	_, err = withPool(conn, name, func(io *rados.IOContext) (struct{}, error) { return struct{}{}, librbd.PoolInit(io, false) })
	return err
}

func inspectPool(conn *rados.Conn, name string) (PoolInfo, error) {
	return withPool(conn, name, func(io *rados.IOContext) (PoolInfo, error) {
		apps, err := ask[map[string]any](conn, map[string]any{"prefix": "osd pool application get", "pool": name})
		if err != nil {
			return PoolInfo{}, err
		}
		p := PoolInfo{Name: name, Applications: slices.Sorted(maps.Keys(apps))}
		// The object that librbd writes when it has made sure that the pool can take snapshots.
		_, err = io.Stat("rbd_info")
		p.Initialised = err == nil
		if errors.Is(err, rados.ErrNotFound) {
			err = nil
		}
		return p, err
	})
}

// withPool runs fn on a pool. Contexts are not kept: one of a pool that was removed and made again
// would never find anything.
func withPool[T any](conn *rados.Conn, pool string, fn func(*rados.IOContext) (T, error)) (T, error) {
	var none T
	io, err := conn.OpenIOContext(pool)
	if errors.Is(err, rados.ErrNotFound) {
		return none, fmt.Errorf("pool %s: %w", pool, ErrPoolNotFound)
	}
	if err != nil {
		return none, err
	}
	defer io.Destroy()
	// A full pool answers "no space" instead of letting calls hang until there is room.
	if err := io.SetPoolFullTry(); err != nil {
		return none, err
	}
	return fn(io)
}

// withDataPool runs fn on the pool that has an image's data, given its number. A missing one is no ErrNotFound: the image is there.
func withDataPool[T any](conn *rados.Conn, id int64, fn func(*rados.IOContext) (T, error)) (T, error) {
	pool, err := conn.GetPoolByID(id)
	if err != nil {
		var none T
		return none, fmt.Errorf("%w: data pool %d of the image: %s", ErrCeph, id, err.Error())
	}
	return withPool(conn, pool, fn)
}

// PoolCapacity is the room for data in a pool, after replication.
type PoolCapacity struct {
	// AvailableBytes can still be written: Ceph's max_avail, or the rest of the pool's quota if
	// that is less.
	AvailableBytes int64
	UsedBytes      int64
	// QuotaBytes is 0 without a quota.
	QuotaBytes int64
}

// PoolCapacity asks a monitor for the room in a pool. Errors: ErrPoolNotFound.
func (c *Cluster) PoolCapacity(ctx context.Context, name string) (PoolCapacity, error) {
	type answer struct {
		Pools []struct {
			Name  string `json:"name"`
			Stats struct {
				Stored   int64 `json:"stored"`
				MaxAvail int64 `json:"max_avail"`
				Quota    int64 `json:"quota_bytes"`
			} `json:"stats"`
		} `json:"pools"`
	}
	return call(ctx, c, "pool_capacity", "pool "+name, func(conn *rados.Conn) (PoolCapacity, error) {
		a, err := ask[answer](conn, map[string]any{"prefix": "df", "detail": "detail"})
		if err != nil {
			return PoolCapacity{}, err
		}
		for _, p := range a.Pools {
			if p.Name != name {
				continue
			}
			out := PoolCapacity{AvailableBytes: p.Stats.MaxAvail, UsedBytes: p.Stats.Stored, QuotaBytes: p.Stats.Quota}
			if out.QuotaBytes > 0 {
				out.AvailableBytes = max(0, min(out.AvailableBytes, out.QuotaBytes-out.UsedBytes))
			}
			return out, nil
		}
		if _, err := conn.GetPoolByName(name); err == nil {
			return PoolCapacity{}, fmt.Errorf("%w: there are no statistics of this new pool yet", ErrUnavailable)
		}
		return PoolCapacity{}, ErrPoolNotFound
	})
}
