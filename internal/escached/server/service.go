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
	"slices"
	"sync/atomic"
	"time"

	"github.com/escache/escache-csi/api/escache"
	"github.com/escache/escache-csi/internal/escached"
	"github.com/escache/escache-csi/internal/escached/problem"
	"github.com/escache/escache-csi/internal/filelock"
	"github.com/escache/escache-csi/internal/pause"
	"github.com/escache/escache-csi/internal/tlsfiles"
	"github.com/escache/escache-csi/internal/unixsocket"
)

// shutdownGrace is how long the server waits for running calls when it stops. Work in the kernel
// goes on without it.
const shutdownGrace = 20 * time.Second

// recoverEvery is how long the server waits before it tries a failed recovery again.
const recoverEvery = 5 * time.Second

// certificateEvery is the time between two looks for missing TLS files, for the log only.
const certificateEvery = time.Second

const (
	// lockPatience is how long csi-node has to take the lock when both are told to end. Its first step is to take it.
	lockPatience = 5 * time.Second
	// lockPoll is the time between two looks at the lock.
	lockPoll = 200 * time.Millisecond
)

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
	seen   Seen
	// certs are read at each handshake. Handshakes fail while there are none: on a new host csi-node
	// brings the certificate, and needs the unix socket before.
	certs *tlsfiles.Reloader
	// recovered is closed when the engine has recovered. Until then, notYet is the error with which
	// requests are answered.
	recovered chan struct{}
	notYet    atomic.Pointer[error]
}

// New returns a server for an engine.
func New(cfg escached.Config, engine Engine, seen Seen) *Server {
	files := tlsfiles.Files{CA: cfg.TLS.ClientCA, Cert: cfg.TLS.Cert, Key: cfg.TLS.Key}
	s := &Server{cfg: cfg, engine: engine, log: seen.Log, seen: seen, certs: tlsfiles.Later(files), recovered: make(chan struct{})}
	starting := problem.New(escache.CodeRecovering, "escached is still finding out what is on this host; repeat the call in a moment")
	s.notYet.Store(&starting)
	return s
}

// Run serves until ctx ends, and then as long as csi-node needs it. Devices go on as they are when it
// ends.
func (s *Server) Run(ctx context.Context) error {
	listeners, err := s.listen()
	if err != nil {
		return err
	}
	server := &http.Server{
		Handler:           Handler(s.engine, s.tcp(), s.ready, s.seen),
		ReadHeaderTimeout: 10 * time.Second, ReadTimeout: 30 * time.Second, IdleTimeout: 2 * time.Minute, MaxHeaderBytes: 16 << 10,
		ErrorLog: slog.NewLogLogger(s.log.Handler(), slog.LevelDebug),
	}
	serving, end := context.WithCancel(context.WithoutCancel(ctx))
	defer end()
	defer context.AfterFunc(ctx, func() {
		s.stay(serving)
		end()
	})()
	failed := make(chan error, len(listeners))
	s.log.Info("serving", "node", s.cfg.Node, "socket", s.cfg.Socket, "listen", s.cfg.Listen)
	for _, l := range listeners {
		go func() { failed <- server.Serve(l) }()
	}
	go s.recover(serving)
	go s.awaitCertificate(serving)
	select {
	case <-serving.Done():
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

// stay returns when csi-node needs escached no longer. The kubelet of a host that shuts down ends both
// pods at the same time. csi-node then stays until its volumes are disconnected, and keeps ShutdownLock
// locked. It also does so while it is only replaced, for as long as its calls take. The end of ctx, or
// the kubelet's patience, ends the wait.
func (s *Server) stay(ctx context.Context) {
	if s.cfg.ShutdownLock == "" || !s.mayBeNeeded(ctx) {
		return
	}
	for begin := time.Now(); filelock.IsFree(s.cfg.ShutdownLock); {
		if time.Since(begin) >= lockPatience || pause.For(ctx, lockPoll) != nil {
			return
		}
	}
	s.log.Info("told to end together with csi-node; serving until that has ended", "lock", s.cfg.ShutdownLock)
	for !filelock.IsFree(s.cfg.ShutdownLock) {
		if pause.For(ctx, lockPoll) != nil {
			return
		}
	}
}

// mayBeNeeded reports whether a volume has a device here, or that is not known.
func (s *Server) mayBeNeeded(ctx context.Context) bool {
	select {
	case <-s.recovered:
	default:
		return true
	}
	ctx, cancel := context.WithTimeout(ctx, lockPatience)
	defer cancel()
	status, err := s.engine.Status(ctx, nil)
	hasDevice := func(v escache.VolumeStatus) bool { return v.Device != "" }
	return err != nil || slices.ContainsFunc(status.Volumes, hasDevice)
}

func (s *Server) tcp() TCP {
	if s.cfg.Listen == "" {
		return TCP{}
	}
	read := func(end func() time.Time) func() time.Time {
		return func() time.Time {
			_, _ = s.certs.Refresh() // if it fails, the end of what is in force is told, or none
			return end()
		}
	}
	return TCP{Clients: s.cfg.TLS.Clients, CertificateEnd: read(s.certs.End), AuthorityEnd: read(s.certs.AuthoritiesEnd)}
}

// awaitCertificate logs once that TCP cannot be served, and once that it can.
func (s *Server) awaitCertificate(ctx context.Context) {
	if s.cfg.Listen == "" {
		return
	}
	for missing := false; ; missing = true {
		_, err := s.certs.Refresh()
		switch {
		case err == nil && missing:
			s.log.Info("the TLS files can be used now, TCP is served")
			return
		case err == nil:
			return
		case !missing:
			s.log.Warn("every TLS handshake fails until the TLS files can be used; the unix socket is served", "error", err)
		}
		if pause.For(ctx, certificateEvery) != nil {
			return
		}
	}
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
// ends. Holds end in time meanwhile.
func (s *Server) recover(ctx context.Context) {
	go s.engine.WatchHolds(ctx)
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
	tcp, err := (&net.ListenConfig{}).Listen(context.Background(), "tcp", s.cfg.Listen)
	if err != nil {
		return nil, fmt.Errorf("listen: %w", err)
	}
	return append(out, tls.NewListener(tcp, s.certs.Server())), nil
}
