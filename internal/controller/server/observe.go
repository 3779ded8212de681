package server

import (
	"context"
	"fmt"
	"log/slog"
	"path"
	"runtime/debug"
	"strconv"
	"time"

	"github.com/google/uuid"
	"github.com/kubernetes-csi/csi-lib-utils/protosanitizer"
	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/trace"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/escache/escache-csi/internal/controller/volumes"
)

// quiet are calls that sidecars repeat all the time: they are logged only when they fail, or in debugging.
var quiet = map[string]bool{
	"Probe": true, "GetPluginInfo": true, "GetPluginCapabilities": true, "ControllerGetCapabilities": true, "GetCapacity": true,
	"ListVolumes": true, "ControllerGetVolume": true,
}

// observe bounds a call, gives it an id, maps its error, and tells log and metrics about it: the only place that does.
func (s *Server) observe(ctx context.Context, request any, info *grpc.UnaryServerInfo, handle grpc.UnaryHandler) (any, error) {
	ctx, cancel := context.WithTimeout(ctx, s.limit(ctx))
	defer cancel()
	method, id, begun := path.Base(info.FullMethod), uuid.NewString(), time.Now()
	trace.SpanFromContext(ctx).SetAttributes(attribute.String("escache.request_id", id))
	response, err := s.survive(ctx, request, handle)
	took, code := time.Since(begun), volumes.Code(err)
	s.Metrics.observe(method, code, took)
	s.log(ctx, method, id, request, err, code, took)
	if err != nil {
		return nil, status.Error(code, fmt.Sprintf("%s (request %s)", err, id))
	}
	return response, nil
}

// limit ends a call a little before its caller gives up, so that the answer, which says what was waited for, still arrives.
func (s *Server) limit(ctx context.Context) time.Duration {
	const most = 500 * time.Millisecond
	deadline, ok := ctx.Deadline()
	if !ok {
		return s.Longest
	}
	left := time.Until(deadline)
	return min(s.Longest, left-min(most, left/10))
}

func (s *Server) log(ctx context.Context, method, id string, request any, err error, code codes.Code, took time.Duration) {
	level := slog.LevelInfo
	switch {
	case code == codes.Internal || code == codes.Unknown:
		level = slog.LevelError
	case err != nil:
		level = slog.LevelWarn
	case quiet[method]:
		level = slog.LevelDebug
	}
	if !s.Log.Enabled(ctx, level) {
		return
	}
	attributes := []slog.Attr{
		slog.String("call", method), slog.String("request_id", id), slog.String("code", code.String()), slog.Duration("took", took),
		slog.String("request", protosanitizer.StripSecrets(request).String()),
	}
	if err != nil {
		attributes = append(attributes, slog.String("error", err.Error()))
	}
	s.Log.LogAttrs(ctx, level, "csi call", attributes...)
}

// survive keeps one call's bug from ending the others.
func (s *Server) survive(ctx context.Context, request any, handle grpc.UnaryHandler) (response any, err error) {
	defer func() {
		if cause := recover(); cause != nil {
			s.Log.ErrorContext(ctx, "panic", "cause", cause, "stack", string(debug.Stack()))
			response, err = nil, status.Error(codes.Internal, "panic: "+strconv.Quote(fmt.Sprint(cause)))
		}
	}()
	return handle(ctx, request)
}
