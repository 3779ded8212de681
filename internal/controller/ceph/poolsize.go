package ceph

import (
	"context"
	"time"
)

// poolSize is the size of a pool as it was at a time.
type poolSize struct {
	bytes int64
	at    time.Time
}

// PoolBytes returns the size of a pool.
func (i *Images) PoolBytes(ctx context.Context, clusterID, pool string) (int64, error) {
	key := [2]string{clusterID, pool}
	i.mu.Lock()
	known, ok := i.sizes[key]
	i.mu.Unlock()
	if ok && i.now().Sub(known.at) < checkedFor {
		return known.bytes, nil
	}
	cluster, err := i.cluster(clusterID)
	if err != nil {
		return 0, err
	}
	capacity, err := cluster.PoolCapacity(ctx, pool)
	if err != nil {
		return 0, translate(ctx, err)
	}
	i.mu.Lock()
	defer i.mu.Unlock()
	size := poolSize{capacity.UsedBytes + capacity.AvailableBytes, i.now()}
	i.sizes[key] = size
	return size.bytes, nil
}
