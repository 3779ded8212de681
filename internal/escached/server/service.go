// Package server serves the escache API and escached's metrics over HTTP: on a unix socket, and on
// TCP with mutual TLS.
package server

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"sync/atomic"
	"time"

	"github.com/escache/escache-csi/api/escache"
	"github.com/escache/escache-csi/internal/escached"
	"github.com/escache/escache-csi/internal/escached/problem"
	"github.com/escache/escache-csi/internal/pause"
	"github.com/escache/escache-csi/internal/tlsfiles"
	"github.com/escache/escache-csi/internal/unixsocket"
)

// shutdownGrace is how long the server waits for running calls when it stops. Work in the kernel
// goes on without it.
const shutdownGrace = 20 * time.Second

// recoverEvery is how long the server waits before it tries a failed recovery again.
const recoverEvery = 5 * time.Second

// startPatience is how long a request waits for the recovery, and queryPatience how long one that
// changes nothing does: less than its callers wait (5 s), so that they learn why.
const (
	startPatience = 15 * time.Second
	queryPatience = 3 * time.Second
)

// Server serves the API of one engine over HTTP.
type Server struct {
	cfg    escached.Config
	engine Engine
	log    *slog.Logger
	// recovered is closed when the engine has recovered. Until then, notYet is the error with which
	// requests are answered.
	recovered chan struct{}
	notYet    atomic.Pointer[error]
}

// New returns a server for an engine.
func New(cfg escached.Config, engine Engine, log *slog.Logger) *Server {
	s := &Server{cfg: cfg, engine: engine, log: log, recovered: make(chan struct{})}
	starting := problem.New(escache.CodeRecovering, "escached is still finding out what is on this host; repeat the call in a moment")
	s.notYet.Store(&starting)
	return s
}

// Run serves until ctx ends. Devices go on as they are when it ends.
func (s *Server) Run(ctx context.Context) error {
	listeners, err := s.listen()
	if err != nil {
		return err
	}
	server := &http.Server{
		Handler:           Handler(s.engine, s.cfg.TLS.Clients, s.ready, s.log),
		ReadHeaderTimeout: 10 * time.Second, ReadTimeout: 30 * time.Second, IdleTimeout: 2 * time.Minute, MaxHeaderBytes: 16 << 10,
		ErrorLog: slog.NewLogLogger(s.log.Handler(), slog.LevelDebug),
	}
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	failed := make(chan error, len(listeners))
	s.log.Info("serving", "node", s.cfg.Node, "socket", s.cfg.Socket, "listen", s.cfg.Listen)
	for _, l := range listeners {
		go func() { failed <- server.Serve(l) }()
	}
	go s.recover(ctx)
	select {
	case <-ctx.Done():
	case err = <-failed:
		err = fmt.Errorf("serve: %w", err)
	}
	s.log.Info("stopping; devices stay as they are")
	grace, cancelGrace := context.WithTimeout(context.WithoutCancel(ctx), shutdownGrace)
	defer cancelGrace()
	if stop := server.Shutdown(grace); stop != nil && !errors.Is(stop, context.DeadlineExceeded) {
		err = errors.Join(err, stop)
	}
	return err
}

// ready waits for the recovery after a start. It usually takes a moment. After startPatience, or at
// the end of ctx, ready returns why it has not succeeded yet.
func (s *Server) ready(ctx context.Context) error {
	select {
	case <-s.recovered:
		return nil
	default:
	}
	select {
	case <-s.recovered:
		return nil
	case <-ctx.Done():
	case <-time.After(startPatience):
	}
	return *s.notYet.Load()
}

// recover repeats the recovery until it succeeds, then runs the engine's background work until ctx
// ends.
func (s *Server) recover(ctx context.Context) {
	for {
		err := s.engine.Recover(ctx)
		if err == nil {
			break
		}
		s.log.Error("recovery failed, it is tried again", "error", err)
		problem := problem.New(escache.CodeRecovering, "escached cannot read what is on this host: %v", err)
		s.notYet.Store(&problem)
		if pause.For(ctx, recoverEvery) != nil {
			return
		}
	}
	close(s.recovered)
	s.engine.Watch(ctx)
}

func (s *Server) listen() ([]net.Listener, error) {
	if conn, err := (&net.Dialer{Timeout: time.Second}).DialContext(context.Background(), "unix", s.cfg.Socket); err == nil {
		_ = conn.Close()
		return nil, fmt.Errorf("socket: another escached serves %s", s.cfg.Socket)
	}
	unix, err := unixsocket.Listen(s.cfg.Socket, unixsocket.Modes{Directory: 0o700, Socket: 0o600})
	if err != nil {
		return nil, err
	}
	out := []net.Listener{unix}
	if s.cfg.Listen == "" {
		return out, nil
	}
	files := tlsfiles.Files{CA: s.cfg.TLS.ClientCA, Cert: s.cfg.TLS.Cert, Key: s.cfg.TLS.Key}
	certs, err := tlsfiles.New(files, nil)
	if err != nil {
		return nil, fmt.Errorf("tls: %w", err)
	}
	tcp, err := (&net.ListenConfig{}).Listen(context.Background(), "tcp", s.cfg.Listen)
	if err != nil {
		return nil, fmt.Errorf("listen: %w", err)
	}
	return append(out, tls.NewListener(tcp, certs.Server())), nil
}
