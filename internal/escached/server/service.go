// Package server serves the escache API and escached's metrics over HTTP: on a unix socket, and on TCP with mutual TLS.
package server

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"sync/atomic"
	"time"

	"github.com/escache/escache-csi/api/escache"
	"github.com/escache/escache-csi/internal/escached"
	"github.com/escache/escache-csi/internal/pause"
)

// shutdownGrace is how long running calls may take to end when the service stops. What runs in the kernel goes on.
const shutdownGrace = 20 * time.Second

// recoverEvery is how soon recovery is tried again while the volume group cannot be read.
const recoverEvery = 5 * time.Second

// startPatience is how long a change waits for the recovery.
const startPatience = 15 * time.Second

// Server serves one engine over HTTP.
type Server struct {
	cfg    escached.Config
	engine Engine
	log    *slog.Logger
	// found is closed when it is known what is on this host; until then trouble says why it is not.
	found   chan struct{}
	trouble atomic.Pointer[error]
}

// New returns a server of an engine.
func New(cfg escached.Config, engine Engine, log *slog.Logger) *Server {
	s := &Server{cfg: cfg, engine: engine, log: log, found: make(chan struct{})}
	starting := fail(escache.CodeStuck, "escached is still finding out what is on this host; repeat the call in a moment")
	s.trouble.Store(&starting)
	return s
}

// Run serves until ctx ends. Ending it leaves every device as it is.
func (s *Server) Run(ctx context.Context) error {
	listeners, err := s.listen()
	if err != nil {
		return err
	}
	server := &http.Server{
		Handler:           Handler(s.engine, s.ready, s.log),
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

// ready lets a change wait for the recovery after a start, which usually takes a moment only.
func (s *Server) ready(ctx context.Context) error {
	select {
	case <-s.found:
		return nil
	case <-ctx.Done():
	case <-time.After(startPatience):
	}
	return *s.trouble.Load()
}

// recover finds everything again, however often it takes, then watches what needs watching.
func (s *Server) recover(ctx context.Context) {
	for {
		err := s.engine.Recover(ctx)
		if err == nil {
			break
		}
		s.log.Error("what is on this host cannot be found out yet", "error", err)
		problem := fail(escache.CodeStuck, "escached cannot read what is on this host: %v", err)
		s.trouble.Store(&problem)
		if pause.For(ctx, recoverEvery) != nil {
			return
		}
	}
	close(s.found)
	s.engine.Watch(ctx)
}

func (s *Server) listen() ([]net.Listener, error) {
	if err := os.MkdirAll(filepath.Dir(s.cfg.Socket), 0o700); err != nil {
		return nil, fmt.Errorf("socket: %w", err)
	}
	if conn, err := (&net.Dialer{Timeout: time.Second}).DialContext(context.Background(), "unix", s.cfg.Socket); err == nil {
		_ = conn.Close()
		return nil, fmt.Errorf("socket: another escached serves %s", s.cfg.Socket)
	}
	_ = os.Remove(s.cfg.Socket) // of an escached that is gone
	// Made under another name and moved: with the right mode from the first moment it can be found.
	tmp := s.cfg.Socket + ".new"
	_ = os.Remove(tmp)
	unix, err := net.ListenUnix("unix", &net.UnixAddr{Name: tmp, Net: "unix"})
	if err != nil {
		return nil, fmt.Errorf("socket: %w", err)
	}
	unix.SetUnlinkOnClose(false)
	if err := errors.Join(os.Chmod(tmp, 0o600), os.Rename(tmp, s.cfg.Socket)); err != nil {
		return nil, fmt.Errorf("socket: %w", err)
	}
	out := []net.Listener{unix}
	if s.cfg.Listen == "" {
		return out, nil
	}
	certs, err := newCertificates(s.cfg.TLS)
	if err != nil {
		return nil, err
	}
	tcp, err := (&net.ListenConfig{}).Listen(context.Background(), "tcp", s.cfg.Listen)
	if err != nil {
		return nil, fmt.Errorf("listen: %w", err)
	}
	return append(out, tls.NewListener(tcp, certs.server())), nil
}
