package escachetest

import (
	"context"
	"math"

	"github.com/escache/escache-csi/api/escache"
)

// The API's calls without HTTP. They do not check requests against openapi.yaml. Errors are
// *escache.Problem.

// Node is GET /v1/node.
func (h *Host) Node() escache.Node { return h.node() }

// Status is GET /v1/status of one volume.
func (h *Host) Status(ref escache.VolumeRef) escache.VolumeStatus {
	defer h.lock()()
	return h.one(ref)
}

// Flushes is how many volumes the host writes back at this moment.
func (h *Host) Flushes() int {
	defer h.lock()()
	n := 0
	for _, r := range h.replicas {
		if r.verb == "flush" {
			n++
		}
	}
	return n
}

// PutReplica is PUT /v1/replica.
func (h *Host) PutReplica(ctx context.Context, req escache.ReplicaRequest) error {
	_, err := h.put(ctx, req)
	return err
}

// DeleteReplica is DELETE /v1/replica.
func (h *Host) DeleteReplica(ref escache.VolumeRef, discard bool) error {
	return h.delete(ref, discard, math.MaxInt64)
}

// Connect is POST /v1/dev_connect.
func (h *Host) Connect(ctx context.Context, req escache.ConnectRequest) (*escache.ConnectResponse, error) {
	return as[escache.ConnectResponse](h.connect(ctx, req))
}

// Flush is POST /v1/flush.
func (h *Host) Flush(ctx context.Context, req escache.FlushRequest) (*escache.FlushResponse, error) {
	return as[escache.FlushResponse](h.flush(ctx, req))
}

// Stop is POST /v1/stop.
func (h *Host) Stop(ctx context.Context, req escache.StopRequest) error {
	_, err := h.stop(ctx, req)
	return err
}

// Options returns the options of a connected replica.
func (h *Host) Options(ref escache.VolumeRef) escache.CacheOptions {
	defer h.lock()()
	if r := h.replicas[ref]; r != nil && r.connected {
		return r.options
	}
	return escache.CacheOptions{}
}

// Resize is POST /v1/resize.
func (h *Host) Resize(ctx context.Context, req escache.ResizeRequest) error {
	_, err := h.resize(ctx, req)
	return err
}

// Trim is POST /v1/trim.
func (h *Host) Trim(ctx context.Context, req escache.TrimRequest) (*escache.TrimResponse, error) {
	return as[escache.TrimResponse](h.trim(ctx, req))
}

// Abandon is POST /v1/abandon.
func (h *Host) Abandon(ctx context.Context, req escache.AbandonRequest) error {
	_, err := h.abandon(ctx, req)
	return err
}

// Map is POST /v1/map.
func (h *Host) Map(ctx context.Context, req escache.MapRequest) (*escache.MapResponse, error) {
	return as[escache.MapResponse](h.mapImage(ctx, req))
}

// Unmap is POST /v1/unmap.
func (h *Host) Unmap(ctx context.Context, req escache.UnmapRequest) error {
	_, err := h.unmapImage(ctx, req)
	return err
}

func as[T any](value any, err error) (*T, error) {
	if answer, ok := value.(T); ok {
		return &answer, err
	}
	return nil, err
}
