// Package server serves CSI on a unix socket while this process leads, and tells log, metrics and traces about every call.
package server

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"time"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"go.opentelemetry.io/contrib/instrumentation/google.golang.org/grpc/otelgrpc"
	"go.opentelemetry.io/otel/trace"
	"google.golang.org/grpc"
)

// Service is what is served.
type Service interface {
	csi.IdentityServer
	csi.ControllerServer
}

// Config is what a Server is made of.
type Config struct {
	// Socket is the path of the unix socket. It exists only while this process leads, so that the sidecars of a standby wait.
	Socket string
	// Prepare has to succeed before anything is served.
	Prepare func(ctx context.Context) error
	Service Service
	Log     *slog.Logger
	Metrics *Metrics
	// Longest bounds every call, whatever deadline its caller gave.
	Longest time.Duration
	Traces  trace.TracerProvider
}

// Server is a Runnable of controller-runtime's manager.
type Server struct{ Config }

// New returns a server. It does not listen before Start.
func New(config Config) *Server { return &Server{Config: config} }

// NeedLeaderElection keeps a standby from serving.
func (*Server) NeedLeaderElection() bool { return true }

// Start serves until the context ends.
func (s *Server) Start(ctx context.Context) error {
	if err := s.Prepare(ctx); err != nil {
		return fmt.Errorf("prepare to serve CSI: %w", err)
	}
	listener, err := listen(ctx, s.Socket)
	if err != nil {
		return err
	}
	g := grpc.NewServer(
		grpc.ChainUnaryInterceptor(s.observe),
		grpc.StatsHandler(otelgrpc.NewServerHandler(otelgrpc.WithTracerProvider(s.Traces))),
	)
	csi.RegisterIdentityServer(g, s.Service)
	csi.RegisterControllerServer(g, s.Service)
	s.Log.Info("serving CSI", "socket", s.Socket)
	served := make(chan error, 1)
	go func() { served <- g.Serve(listener) }()
	select {
	case err := <-served:
		return fmt.Errorf("serve CSI: %w", err)
	case <-ctx.Done():
	}
	stop(g)
	return nil
}

// stop lets running calls end for a moment; what they have done is on record, so cutting them off loses nothing.
func stop(g *grpc.Server) {
	const grace = 3 * time.Second
	timer := time.AfterFunc(grace, g.Stop)
	defer timer.Stop()
	g.GracefulStop()
}

// listen replaces a socket that an earlier process, killed, has left. The lease says that it is gone.
func listen(ctx context.Context, path string) (net.Listener, error) {
	if err := os.MkdirAll(filepath.Dir(path), 0o750); err != nil {
		return nil, fmt.Errorf("make the socket's directory: %w", err)
	}
	if err := os.Remove(path); err != nil && !errors.Is(err, os.ErrNotExist) {
		return nil, fmt.Errorf("remove the old socket: %w", err)
	}
	listener, err := (&net.ListenConfig{}).Listen(ctx, "unix", path)
	if err != nil {
		return nil, fmt.Errorf("listen on %s: %w", path, err)
	}
	if err := os.Chmod(path, 0o660); err != nil {
		return nil, errors.Join(fmt.Errorf("protect the socket: %w", err), listener.Close())
	}
	return listener, nil
}
