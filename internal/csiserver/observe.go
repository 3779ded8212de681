// Package csiserver holds what the CSI servers of csi-controller and csi-node share: how they
// observe calls, how they stop, and who they say they are.
package csiserver

import (
	"context"
	"errors"
	"log/slog"
	"path"
	"runtime/debug"
	"time"

	"github.com/google/uuid"
	"github.com/kubernetes-csi/csi-lib-utils/protosanitizer"
	"github.com/prometheus/client_golang/prometheus"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/escache/escache-csi/internal/operation"
	"github.com/escache/escache-csi/internal/traces"
)

// Observer watches over every call of a server: it bounds it, counts it, logs it, maps its error to
// a gRPC status, and turns a panic into Internal.
type Observer struct {
	Log *slog.Logger
	// Code maps an error of the domain to the gRPC code that CSI wants for it.
	Code func(error) codes.Code
	// Seconds measures calls, by method and code.
	Seconds *prometheus.HistogramVec
	// Longest bounds every call; 0 means that only the caller's deadline does.
	Longest time.Duration
}

// quiet lists calls that sidecars and the kubelet repeat all the time. They are logged only if they
// fail or are slow, or at debug level.
var quiet = map[string]bool{
	"Probe": true, "GetPluginInfo": true, "GetPluginCapabilities": true, "ControllerGetCapabilities": true, "GetCapacity": true,
	"ListVolumes": true, "ControllerGetVolume": true, "GroupControllerGetCapabilities": true,
	"NodeGetCapabilities": true, "NodeGetInfo": true, "NodeGetVolumeStats": true, "NodeGetVolumeHealth": true, "NodeGetStorageHealth": true,
}

// slow is the duration from which a quiet call is worth a line.
const slow = 5 * time.Second

// Intercept is a grpc.UnaryServerInterceptor. Kubernetes makes an Event of each different message
// of an error, so what differs from try to try, as the request's id, is only in the log.
func (o *Observer) Intercept(ctx context.Context, request any, info *grpc.UnaryServerInfo, handle grpc.UnaryHandler) (any, error) {
	if limit, bounded := o.limit(ctx); bounded {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(ctx, limit)
		defer cancel()
	}
	c := call{method: path.Base(info.FullMethod), id: uuid.NewString(), request: request}
	traces.Note(ctx, "escache.request_id", c.id)
	if volume := c.volume(); volume != "" {
		traces.Note(ctx, "escache.volume", volume)
	}
	begun := time.Now()
	response, err := c.survive(ctx, handle)
	c.duration, c.status, c.cause = time.Since(begun), o.statusOf(err), err
	o.Seconds.WithLabelValues(c.method, c.status.Code().String()).Observe(c.duration.Seconds())
	o.log(ctx, c)
	if err == nil {
		return response, nil
	}
	return nil, c.status.Err()
}

// call is one call and how it ended.
type call struct {
	method, id string
	request    any
	duration   time.Duration
	status     *status.Status
	cause      error
	stack      string // of a panic
}

// volume returns the id of the volume that the call is about, "" if it names none.
func (c *call) volume() string {
	if request, named := c.request.(interface{ GetVolumeId() string }); named {
		return request.GetVolumeId()
	}
	return ""
}

// limit ends a call a little before its caller gives up, so that the answer, which says what the
// call waited for, still arrives.
func (o *Observer) limit(ctx context.Context) (limit time.Duration, bounded bool) {
	const most = 500 * time.Millisecond
	deadline, given := ctx.Deadline()
	if !given || o.Longest == 0 {
		return o.Longest, o.Longest > 0
	}
	left := time.Until(deadline)
	return min(o.Longest, left-min(most, left/10)), true
}

// survive keeps a bug in one call from ending the others.
func (c *call) survive(ctx context.Context, handle grpc.UnaryHandler) (response any, err error) {
	defer func() {
		if cause := recover(); cause != nil {
			c.stack = string(debug.Stack())
			response, err = nil, status.Errorf(codes.Internal, "a bug in %s: %v; report it", c.method, cause)
		}
	}()
	return handle(ctx, c.request)
}

// statusOf keeps an error that is a status already.
func (o *Observer) statusOf(err error) *status.Status {
	if s, ok := status.FromError(err); ok {
		return s
	}
	return status.New(o.Code(err), err.Error())
}

// log writes one line. The request is logged without its secrets.
func (o *Observer) log(ctx context.Context, c call) {
	level := slog.LevelInfo
	switch code := c.status.Code(); {
	case code == codes.Internal || code == codes.Unknown:
		level = slog.LevelError
	case code != codes.OK:
		level = slog.LevelWarn
	case quiet[c.method] && c.duration < slow:
		level = slog.LevelDebug
	}
	if !o.Log.Enabled(ctx, level) {
		return
	}
	attributes := []slog.Attr{
		slog.String("call", c.method), slog.String("request_id", c.id), slog.String("code", c.status.Code().String()),
		slog.Duration("duration", c.duration), slog.String("request", protosanitizer.StripSecrets(c.request).String()),
	}
	if volume := c.volume(); volume != "" {
		attributes = append(attributes, slog.String("volume", volume))
	}
	if c.status.Code() != codes.OK {
		attributes = append(attributes, slog.String("error", c.status.Message()))
	}
	if busy, ok := errors.AsType[*operation.BusyError](c.cause); ok {
		attributes = append(attributes, slog.Duration("running_for", busy.Age))
	}
	if c.stack != "" {
		attributes = append(attributes, slog.String("stack", c.stack))
	}
	o.Log.LogAttrs(ctx, level, "csi call", attributes...)
}
