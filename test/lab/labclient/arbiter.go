package labclient

import (
	"context"
	"net/http"
	"net/url"

	"github.com/escache/escache-csi/api/escache"
	"github.com/escache/escache-csi/test/lab/internal/arbiter"
)

// Record says who may write a volume, as the lab's arbiter has it.
type Record = arbiter.Record

// Attach makes a node the one that may write a volume, from an epoch on. The arbiter refuses an epoch that is not newer than the one it
// has.
func (c *Client) Attach(ctx context.Context, volume escache.VolumeRef, node string, epoch int64) error {
	request := arbiter.AttachRequest{VolumeRef: volume, AttachedNode: node, Epoch: epoch}
	return c.call(ctx, http.MethodPut, PathArbiter+arbiter.PathRecord, request, nil)
}

// Record returns the arbiter's record of a volume.
func (c *Client) Record(ctx context.Context, volume escache.VolumeRef) (Record, error) {
	var record Record
	err := c.call(ctx, http.MethodGet, recordPath(volume), nil, &record)
	return record, err
}

// Forget removes the arbiter's record of a volume.
func (c *Client) Forget(ctx context.Context, volume escache.VolumeRef) error {
	return c.call(ctx, http.MethodDelete, recordPath(volume), nil, nil)
}

// Resynced tells the arbiter that a node's replica has everything again.
func (c *Client) Resynced(ctx context.Context, volume escache.VolumeRef, node string) error {
	return c.call(ctx, http.MethodPost, PathArbiter+arbiter.PathResynced, arbiter.ResyncedRequest{VolumeRef: volume, Node: node}, nil)
}

func recordPath(volume escache.VolumeRef) string {
	return PathArbiter + arbiter.PathRecord + "?" + url.Values{"pool": {volume.Pool}, "image": {volume.Image}}.Encode()
}
