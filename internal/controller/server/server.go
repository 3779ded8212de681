// Package server serves CSI on csi-controller's unix socket. Every replica listens; calls wait
// until this replica leads.
package server

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"os"
	"time"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"go.opentelemetry.io/otel/trace"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/escache/escache-csi/internal/csiserver"
	"github.com/escache/escache-csi/internal/unixsocket"
)

// Service is the CSI service of csi-controller.
type Service interface {
	csi.IdentityServer
	csi.ControllerServer
	csi.GroupControllerServer
}

// Config configures a Server.
type Config struct {
	// Socket is the path of the unix socket. Each replica has a path of its own.
	Socket string
	// Prepare has to succeed before any call goes on.
	Prepare func(ctx context.Context) error
	Service Service
	// Code maps the service's errors to gRPC codes.
	Code    func(error) codes.Code
	Log     *slog.Logger
	Metrics *Metrics
	// Longest bounds every call, whatever deadline its caller gave.
	Longest time.Duration
	// Traces is nil if calls are not traced.
	Traces trace.TracerProvider
}

// Server is a Runnable of controller-runtime's manager: it lets calls go on while this process
// leads. Its Standby is a second Runnable, which listens; both have to run.
type Server struct {
	Config

	grpc  *grpc.Server
	leads chan struct{} // closed when calls may go on
}

// New returns a server. It does not listen before Standby does.
func New(config Config) *Server {
	s := &Server{Config: config, leads: make(chan struct{})}
	calls := csiserver.Observer{
		Log: config.Log, Code: config.Code, Seconds: config.Metrics.csi, Longest: config.Longest,
	}
	s.grpc = grpc.NewServer(append(csiserver.Traced(s.Traces), grpc.ChainUnaryInterceptor(s.wait, calls.Intercept))...)
	csi.RegisterIdentityServer(s.grpc, s.Service)
	csi.RegisterControllerServer(s.grpc, s.Service)
	csi.RegisterGroupControllerServer(s.grpc, s.Service)
	return s
}

// NeedLeaderElection keeps a standby from serving.
func (*Server) NeedLeaderElection() bool { return true }

// grace is how long running calls may take to end. What they have done is on record, so cutting
// them off loses nothing.
const grace = 3 * time.Second

// Start lets calls go on until the context ends, and with it this process's time as the leader. The manager ends the
// Standby first, and waits for it.
func (s *Server) Start(ctx context.Context) error {
	if err := s.Prepare(ctx); err != nil {
		return fmt.Errorf("prepare to serve CSI: %w", err)
	}
	s.Log.Info("serving CSI", "socket", s.Socket)
	close(s.leads)
	<-ctx.Done()
	csiserver.Stop(s.grpc, grace)
	return nil
}

// wait holds a call back until this process leads. The socket must be there all the time: CSI's
// sidecars exit if they find none for 30 s, and the kubelet restarts them more slowly each time,
// but they ask a driver that listens for ever whether it is ready. GetPluginInfo is answered on
// every replica: csi-snapshotter calls it before Probe and exits if it gets no answer.
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

// Standby is the Runnable of a Server that listens, no matter which replica leads.
type Standby struct{ *Server }

// NeedLeaderElection is false: a standby listens too, and only its calls wait.
func (Standby) NeedLeaderElection() bool { return false }

// Start listens until the context ends. A leader lets its running calls end first; a standby's
// calls only wait, and are cut off.
func (s Standby) Start(ctx context.Context) error {
	listener, err := unixsocket.Listen(s.Socket, unixsocket.Modes{Directory: 0o750, Socket: 0o660})
	if err != nil {
		return err
	}
	defer context.AfterFunc(ctx, func() {
		select {
		case <-s.leads:
			csiserver.Stop(s.grpc, grace)
		default:
			s.grpc.Stop()
		}
	})()
	if err := s.grpc.Serve(listener); err != nil && ctx.Err() == nil {
		return fmt.Errorf("serve CSI: %w", err)
	}
	// The sidecars wait for a socket that is missing; of one that nobody serves they log errors.
	if err := os.Remove(s.Socket); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("remove the socket: %w", err)
	}
	return nil
}
