// Package server serves gRPC on a unix socket that appears under its name only once it answers.
package server

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"runtime/debug"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

// Listen makes a unix socket in one step: whoever sees its name can connect, also where an older socket is replaced. The
// directory is made if it is not there. The socket's file is not removed at Close: a successor may have replaced it.
func Listen(path string) (net.Listener, error) {
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		return nil, fmt.Errorf("make the directory of %s: %w", path, err)
	}
	// The kubelet's plugin watcher passes over names that begin with a dot.
	hidden := filepath.Join(filepath.Dir(path), "."+filepath.Base(path)+".new")
	if err := os.Remove(hidden); err != nil && !os.IsNotExist(err) {
		return nil, err
	}
	listener, err := net.ListenUnix("unix", &net.UnixAddr{Name: hidden, Net: "unix"})
	if err != nil {
		return nil, fmt.Errorf("listen on %s: %w", path, err)
	}
	listener.SetUnlinkOnClose(false)
	if err = os.Chmod(hidden, 0o600); err == nil {
		err = os.Rename(hidden, path)
	}
	if err != nil {
		return nil, errors.Join(err, listener.Close())
	}
	return listener, nil
}

// Metrics of the calls.
type Metrics struct {
	duration *prometheus.HistogramVec
}

// NewMetrics registers the metrics of the calls.
func NewMetrics(registry prometheus.Registerer) *Metrics {
	m := &Metrics{duration: prometheus.NewHistogramVec(prometheus.HistogramOpts{
		Name: "escache_node_csi_call_seconds", Help: "Duration of CSI calls by method and gRPC code.",
		Buckets: []float64{.005, .02, .1, .5, 1, 2, 5, 10, 30, 60, 120},
	}, []string{"method", "code"})}
	registry.MustRegister(m.duration)
	return m
}

// slowCall is the duration from which a call that succeeded is worth a line.
const slowCall = 5 * time.Second

// Interceptor turns errors into gRPC statuses, counts calls, logs what failed or was slow, and survives a panic. The requests
// themselves are not logged: they can hold secrets.
func Interceptor(logger *slog.Logger, m *Metrics, toStatus func(error) error) grpc.UnaryServerInterceptor {
	return func(ctx context.Context, request any, info *grpc.UnaryServerInfo, handler grpc.UnaryHandler) (answer any, err error) {
		started := time.Now()
		defer func() {
			if r := recover(); r != nil {
				logger.ErrorContext(ctx, "panic", "method", info.FullMethod, "panic", r, "stack", string(debug.Stack()))
				answer, err = nil, status.Errorf(codes.Internal, "a bug in %s: %v; please report it", info.FullMethod, r)
			}
			took := time.Since(started)
			m.duration.WithLabelValues(filepath.Base(info.FullMethod), status.Code(err).String()).Observe(took.Seconds())
			volume := ""
			if named, ok := request.(interface{ GetVolumeId() string }); ok {
				volume = named.GetVolumeId()
			}
			switch {
			case err != nil:
				logger.WarnContext(ctx, "call failed", "method", filepath.Base(info.FullMethod), "volume", volume, "duration", took,
					"code", status.Code(err).String(), "error", status.Convert(err).Message())
			case took > slowCall:
				logger.InfoContext(ctx, "slow call", "method", filepath.Base(info.FullMethod), "volume", volume, "duration", took)
			}
		}()
		answer, err = handler(ctx, request)
		if err != nil {
			return nil, toStatus(err)
		}
		return answer, nil
	}
}

// Serve serves until the context ends, then lets running calls end for at most the grace time.
func Serve(ctx context.Context, server *grpc.Server, listener net.Listener, grace time.Duration) error {
	ended := make(chan error, 1)
	go func() { ended <- server.Serve(listener) }()
	select {
	case err := <-ended:
		return err
	case <-ctx.Done():
	}
	stopped := make(chan struct{})
	go func() { server.GracefulStop(); close(stopped) }()
	select {
	case <-stopped:
	case <-time.After(grace):
		server.Stop()
	}
	return nil
}
