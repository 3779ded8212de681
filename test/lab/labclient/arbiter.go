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

// Attach records that a node may write from an epoch on. The arbiter refuses an epoch that is not
// newer than the one on record. What the record says of outdated nodes is ignored.
func (c *Client) Attach(ctx context.Context, r Record) error {
	request := arbiter.AttachRequest{VolumeRef: r.VolumeRef, ImageID: r.ImageID, AttachedNode: r.AttachedNode, Epoch: r.Epoch}
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

// Resynced takes a node off the outdated list: the caller has seen that its replica is current.
func (c *Client) Resynced(ctx context.Context, volume escache.VolumeRef, node string) error {
	return c.call(ctx, http.MethodPost, PathArbiter+arbiter.PathResynced, arbiter.ResyncedRequest{VolumeRef: volume, Node: node}, nil)
}

func recordPath(volume escache.VolumeRef) string {
	return PathArbiter + arbiter.PathRecord + "?" + url.Values{"pool": {volume.Pool}, "image": {volume.Image}}.Encode()
}
