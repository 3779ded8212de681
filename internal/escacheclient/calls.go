package escacheclient

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"strconv"
	"time"

	"github.com/escache/escache-csi/api/escache"
)

// Node returns what the host has and whether it is healthy.
func (c *Client) Node(ctx context.Context) (*escache.Node, error) {
	var node escache.Node
	err := c.do(ctx, call{name: "node", method: http.MethodGet, path: escache.PathNode, out: &node, limit: c.opts.Timeout.Query})
	if err != nil {
		return nil, err
	}
	return &node, nil
}

// Status returns every volume that has a replica on the host.
func (c *Client) Status(ctx context.Context) (*escache.Status, error) {
	var status escache.Status
	err := c.do(ctx, call{name: "status", method: http.MethodGet, path: escache.PathStatus, out: &status, limit: c.opts.Timeout.Query})
	if err != nil {
		return nil, err
	}
	return &status, nil
}

// VolumeStatus returns one volume as the host sees it. Its state is absent if the host has no
// replica.
func (c *Client) VolumeStatus(ctx context.Context, ref escache.VolumeRef) (*escache.VolumeStatus, error) {
	var status escache.Status
	err := c.do(ctx, call{
		name: "status", method: http.MethodGet, path: escache.PathStatus, query: query(ref), out: &status, limit: c.opts.Timeout.Query,
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

// PutReplica lays the host's replica of a cache, and returns the identity of the host that did it.
// Repeated with the same request it changes nothing.
func (c *Client) PutReplica(ctx context.Context, req escache.ReplicaRequest) (hostID string, err error) {
	err = c.do(ctx, call{
		name: "put_replica", method: http.MethodPut, path: escache.PathReplica, body: req, hostID: &hostID, limit: c.opts.Timeout.Change,
	})
	return hostID, err
}

// DeleteReplica removes the host's replica if it is known to be clean.
func (c *Client) DeleteReplica(ctx context.Context, ref escache.VolumeRef) error {
	return c.deleteReplica(ctx, query(ref))
}

// DiscardReplica removes the host's replica. It drops data that Ceph does not have, for good, if it
// was written up to the attachment of this epoch.
func (c *Client) DiscardReplica(ctx context.Context, ref escache.VolumeRef, epoch int64) error {
	params := query(ref)
	params.Set("discard", "true")
	params.Set("epoch", strconv.FormatInt(epoch, 10))
	return c.deleteReplica(ctx, params)
}

func (c *Client) deleteReplica(ctx context.Context, params url.Values) error {
	return c.do(ctx, call{
		name: "delete_replica", method: http.MethodDelete, path: escache.PathReplica, query: params, limit: c.opts.Timeout.Change,
	})
}

// DevConnect makes the device on the host.
func (c *Client) DevConnect(ctx context.Context, req escache.ConnectRequest) (*escache.ConnectResponse, error) {
	var connected escache.ConnectResponse
	err := c.do(ctx, call{
		name: "dev_connect", method: http.MethodPost, path: escache.PathDevConnect, body: req, out: &connected,
		limit: c.opts.Timeout.Connect,
	})
	if err != nil {
		return nil, err
	}
	return &connected, nil
}

// Flush writes back until the cache is clean or the request's time is up; the answer says which.
// The call's deadline is that time plus Timeouts.FlushMargin.
func (c *Client) Flush(ctx context.Context, req escache.FlushRequest) (*escache.FlushResponse, error) {
	var flushed escache.FlushResponse
	given := time.Duration(req.TimeoutSeconds) * time.Second
	err := about(&req.Epoch, func() error {
		return c.do(ctx, call{
			name: "flush", method: http.MethodPost, path: escache.PathFlush, body: req, out: &flushed,
			limit: given + c.opts.Timeout.FlushMargin, slow: given + c.opts.SlowAfter,
		})
	})
	if err != nil {
		return nil, err
	}
	return &flushed, nil
}

// Stop removes the device. It does not flush.
func (c *Client) Stop(ctx context.Context, req escache.StopRequest) error {
	return about(&req.Epoch, func() error { return c.change(ctx, "stop", escache.PathStop, req) })
}

// SetMode turns draining on and off.
func (c *Client) SetMode(ctx context.Context, req escache.ModeRequest) error {
	return about(&req.Epoch, func() error { return c.change(ctx, "mode", escache.PathMode, req) })
}

// SetOptions replaces the options of a running cache and returns those in force.
func (c *Client) SetOptions(ctx context.Context, req escache.OptionsRequest) (*escache.OptionsResponse, error) {
	var now escache.OptionsResponse
	err := c.do(ctx, call{
		name: "options", method: http.MethodPost, path: escache.PathOptions, body: req, out: &now, limit: c.opts.Timeout.Change,
	})
	if err != nil {
		return nil, err
	}
	return &now, nil
}

// Hold suspends I/O with a clean cache for at most the given time.
func (c *Client) Hold(ctx context.Context, req escache.HoldRequest) (*escache.HoldResponse, error) {
	var held escache.HoldResponse
	err := about(&req.Epoch, func() error {
		return c.do(ctx, call{
			name: "hold", method: http.MethodPost, path: escache.PathHold, body: req, out: &held, limit: c.opts.Timeout.Change,
		})
	})
	if err != nil {
		return nil, err
	}
	return &held, nil
}

// Release ends a hold.
func (c *Client) Release(ctx context.Context, req escache.ReleaseRequest) error {
	return about(&req.Epoch, func() error { return c.change(ctx, "release", escache.PathRelease, req) })
}

// Resize grows the device after the image grew.
func (c *Client) Resize(ctx context.Context, req escache.ResizeRequest) error {
	return about(&req.Epoch, func() error { return c.change(ctx, "resize", escache.PathResize, req) })
}

// Trim has the filesystem of a device discard its free space, for at most the time that the request names and what a
// part takes that was begun.
func (c *Client) Trim(ctx context.Context, req escache.TrimRequest) (*escache.TrimResponse, error) {
	var trimmed escache.TrimResponse
	err := c.do(ctx, call{
		name: "trim", method: http.MethodPost, path: escache.PathTrim, body: req, out: &trimmed, limit: c.opts.Timeout.Connect,
	})
	if err != nil {
		return nil, err
	}
	return &trimmed, nil
}

// Abandon gives up the device of a volume that another node has in that epoch. The host refuses
// unless its arbiter's record proves that the copy there can be spared.
func (c *Client) Abandon(ctx context.Context, ref escache.VolumeRef, epoch int64) error {
	return c.change(ctx, "abandon", escache.PathAbandon, escache.AbandonRequest{VolumeRef: ref, Epoch: epoch})
}

// Map maps an image that has no cache, and returns its device. It takes as long as a connect may.
func (c *Client) Map(ctx context.Context, req escache.MapRequest) (*escache.MapResponse, error) {
	var mapped escache.MapResponse
	err := c.do(ctx, call{
		name: "map", method: http.MethodPost, path: escache.PathMap, body: req, out: &mapped, limit: c.opts.Timeout.Connect,
	})
	if err != nil {
		return nil, err
	}
	return &mapped, nil
}

// Unmap undoes Map.
func (c *Client) Unmap(ctx context.Context, ref escache.VolumeRef) error {
	return c.change(ctx, "unmap", escache.PathUnmap, escache.UnmapRequest{VolumeRef: ref})
}

func (c *Client) change(ctx context.Context, name, path string, body any) error {
	return c.do(ctx, call{name: name, method: http.MethodPost, path: path, body: body, limit: c.opts.Timeout.Change})
}

// about makes a call about an attachment. An escached of an older version refuses the epoch as a field that it
// does not know, and has changed nothing then. It gets the call once more without: otherwise no pod could end on
// a host that is upgraded later. Who refuses the call for another reason does so again.
func about(epoch *int64, call func() error) error {
	err := call()
	problem, answered := errors.AsType[*escache.Problem](err)
	if !answered || problem.Code != escache.CodeInvalidRequest || *epoch == 0 {
		return err
	}
	*epoch = 0
	return call()
}

func query(ref escache.VolumeRef) url.Values {
	return url.Values{"pool": {ref.Pool}, "image": {ref.Image}}
}
