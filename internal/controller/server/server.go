// Package server serves CSI on a unix socket, where calls wait while another process leads, and tells log, metrics and traces about every
// call.
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
	"google.golang.org/grpc/status"
)

// Service is what is served.
type Service interface {
	csi.IdentityServer
	csi.ControllerServer
}

// Config is what a Server is made of.
type Config struct {
	// Socket is the path of the unix socket.
	Socket string
	// Prepare has to succeed before any call goes on.
	Prepare func(ctx context.Context) error
	Service Service
	Log     *slog.Logger
	Metrics *Metrics
	// Longest bounds every call, whatever deadline its caller gave.
	Longest time.Duration
	Traces  trace.TracerProvider
}

// Server is a Runnable of controller-runtime's manager: it lets calls go on while this process leads. Standby is another, which has to
// run too.
type Server struct {
	Config

	grpc  *grpc.Server
	leads chan struct{} // closed when calls may go on
}

// New returns a server. It does not listen before Standby does.
func New(config Config) *Server {
	s := &Server{Config: config, leads: make(chan struct{})}
	s.grpc = grpc.NewServer(
		grpc.ChainUnaryInterceptor(s.wait, s.observe),
		grpc.StatsHandler(otelgrpc.NewServerHandler(otelgrpc.WithTracerProvider(s.Traces))),
	)
	csi.RegisterIdentityServer(s.grpc, s.Service)
	csi.RegisterControllerServer(s.grpc, s.Service)
	return s
}

// NeedLeaderElection keeps a standby from serving.
func (*Server) NeedLeaderElection() bool { return true }

// Start lets calls go on until the context ends, and with it this process's time as the leader.
func (s *Server) Start(ctx context.Context) error {
	if err := s.Prepare(ctx); err != nil {
		return fmt.Errorf("prepare to serve CSI: %w", err)
	}
	s.Log.Info("serving CSI", "socket", s.Socket)
	close(s.leads)
	<-ctx.Done()
	stop(s.grpc)
	return nil
}

// wait holds a call back until this process leads. CSI's sidecars end themselves when they find no socket for 30 s, and the kubelet lets
// them wait longer each time before it starts them again; but they ask a driver that listens for ever whether it is ready. Who the driver
// is, is the same in all replicas: csi-snapshotter asks that before it asks whether the driver is ready, and ends itself without an answer.
func (s *Server) wait(ctx context.Context, request any, call *grpc.UnaryServerInfo, handler grpc.UnaryHandler) (any, error) {
	if call.FullMethod == csi.Identity_GetPluginInfo_FullMethodName {
		return handler(ctx, request)
	}
	select {
	case <-s.leads:
		return handler(ctx, request)
	case <-ctx.Done():
		return nil, status.FromContextError(ctx.Err()).Err()
	}
}

// Standby is the Runnable of a Server that listens, whoever leads.
type Standby struct{ *Server }

// NeedLeaderElection is false: calls wait, not the socket.
func (Standby) NeedLeaderElection() bool { return false }

// Start listens until the context ends. One that leads lets its calls end first; those to another only wait.
func (s Standby) Start(ctx context.Context) error {
	listener, err := listen(ctx, s.Socket)
	if err != nil {
		return err
	}
	defer context.AfterFunc(ctx, func() {
		select {
		case <-s.leads:
		default:
			s.grpc.Stop()
		}
	})()
	if err := s.grpc.Serve(listener); err != nil && ctx.Err() == nil {
		return fmt.Errorf("serve CSI: %w", err)
	}
	return nil
}

// stop lets running calls end for a moment; what they have done is on record, so cutting them off loses nothing.
func stop(g *grpc.Server) {
	const grace = 3 * time.Second
	timer := time.AfterFunc(grace, g.Stop)
	defer timer.Stop()
	g.GracefulStop()
}

// listen replaces a socket that an earlier process, killed, has left: each replica has a path of its own.
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
