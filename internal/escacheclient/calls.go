package escache

import (
	"context"
	"fmt"
	"net/http"
	"net/url"
	"time"

	api "github.com/escache/escache-csi/api/escache"
)

// Node returns what the host has and whether it is healthy.
func (c *Client) Node(ctx context.Context) (*api.Node, error) {
	var node api.Node
	err := c.do(ctx, call{name: "node", method: http.MethodGet, path: api.PathNode, out: &node, limit: c.opts.Timeout.Query})
	if err != nil {
		return nil, err
	}
	return &node, nil
}

// Status returns every volume that has a replica on the host.
func (c *Client) Status(ctx context.Context) (*api.Status, error) {
	var status api.Status
	err := c.do(ctx, call{name: "status", method: http.MethodGet, path: api.PathStatus, out: &status, limit: c.opts.Timeout.Query})
	if err != nil {
		return nil, err
	}
	return &status, nil
}

// VolumeStatus returns one volume as the host sees it; its state is absent where no replica is there.
func (c *Client) VolumeStatus(ctx context.Context, ref api.VolumeRef) (*api.VolumeStatus, error) {
	var status api.Status
	err := c.do(ctx, call{
		name: "status", method: http.MethodGet, path: api.PathStatus, query: query(ref), out: &status, limit: c.opts.Timeout.Query,
	})
	if err != nil {
		return nil, err
	}
	if len(status.Volumes) != 1 || status.Volumes[0].VolumeRef != ref {
		return nil, &CallError{Node: c.opts.Node, Call: "status", Err: &UnexpectedAnswerError{
			Status: http.StatusOK, Reason: fmt.Sprintf("%d volumes for a question about %s/%s", len(status.Volumes), ref.Pool, ref.Image),
		}}
	}
	return &status.Volumes[0], nil
}

// PutReplica lays the host's replica of a cache. Repeated with the same request it changes nothing.
func (c *Client) PutReplica(ctx context.Context, req api.ReplicaRequest) error {
	return c.change(ctx, "put_replica", http.MethodPut, api.PathReplica, req)
}

// DeleteReplica removes the host's replica. discard drops data that Ceph does not have, for good.
func (c *Client) DeleteReplica(ctx context.Context, ref api.VolumeRef, discard bool) error {
	params := query(ref)
	if discard {
		params.Set("discard", "true")
	}
	return c.do(ctx, call{
		name: "delete_replica", method: http.MethodDelete, path: api.PathReplica, query: params, limit: c.opts.Timeout.Change,
	})
}

// DevConnect makes the device on the host.
func (c *Client) DevConnect(ctx context.Context, req api.ConnectRequest) (*api.ConnectResponse, error) {
	var connected api.ConnectResponse
	err := c.do(ctx, call{
		name: "dev_connect", method: http.MethodPost, path: api.PathDevConnect, body: req, out: &connected, limit: c.opts.Timeout.Connect,
	})
	if err != nil {
		return nil, err
	}
	return &connected, nil
}

// Flush writes back until the cache is clean or the request's time is up; the answer says which. Its deadline is that time and a margin.
func (c *Client) Flush(ctx context.Context, req api.FlushRequest) (*api.FlushResponse, error) {
	var flushed api.FlushResponse
	given := time.Duration(req.TimeoutSeconds) * time.Second
	err := c.do(ctx, call{
		name: "flush", method: http.MethodPost, path: api.PathFlush, body: req, out: &flushed,
		limit: given + c.opts.Timeout.FlushMargin, slow: given + c.opts.SlowAfter,
	})
	if err != nil {
		return nil, err
	}
	return &flushed, nil
}

// Stop removes the device. It does not flush.
func (c *Client) Stop(ctx context.Context, ref api.VolumeRef) error {
	return c.change(ctx, "stop", http.MethodPost, api.PathStop, api.StopRequest{VolumeRef: ref})
}

// SetMode turns draining on and off.
func (c *Client) SetMode(ctx context.Context, ref api.VolumeRef, mode api.Mode) error {
	return c.change(ctx, "mode", http.MethodPost, api.PathMode, api.ModeRequest{VolumeRef: ref, Mode: mode})
}

// Hold suspends I/O with a clean cache, at the longest for the given time in whole seconds.
func (c *Client) Hold(ctx context.Context, ref api.VolumeRef, longest time.Duration) (*api.HoldResponse, error) {
	var held api.HoldResponse
	err := c.do(ctx, call{
		name: "hold", method: http.MethodPost, path: api.PathHold, out: &held, limit: c.opts.Timeout.Change,
		body: api.HoldRequest{VolumeRef: ref, MaxSeconds: int(longest / time.Second)},
	})
	if err != nil {
		return nil, err
	}
	return &held, nil
}

// Release ends a hold.
func (c *Client) Release(ctx context.Context, ref api.VolumeRef) error {
	return c.change(ctx, "release", http.MethodPost, api.PathRelease, api.ReleaseRequest{VolumeRef: ref})
}

// Resize grows the device to sizeBytes after the image grew.
func (c *Client) Resize(ctx context.Context, ref api.VolumeRef, sizeBytes int64) error {
	return c.change(ctx, "resize", http.MethodPost, api.PathResize, api.ResizeRequest{VolumeRef: ref, SizeBytes: sizeBytes})
}

// Abandon gives up the device of a volume that another node has taken over in that epoch. It is refused unless the host's arbiter has that
// on record.
func (c *Client) Abandon(ctx context.Context, ref api.VolumeRef, epoch int64) error {
	return c.change(ctx, "abandon", http.MethodPost, api.PathAbandon, api.AbandonRequest{VolumeRef: ref, Epoch: epoch})
}

func (c *Client) change(ctx context.Context, name, method, path string, body any) error {
	return c.do(ctx, call{name: name, method: method, path: path, body: body, limit: c.opts.Timeout.Change})
}

func query(ref api.VolumeRef) url.Values {
	return url.Values{"pool": {ref.Pool}, "image": {ref.Image}}
}
