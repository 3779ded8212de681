// Package registry serves an OCI registry for tests: crane's, and TLS before it where wanted.
package registry

import (
	"bytes"
	"context"
	"crypto/tls"
	"fmt"
	"io"
	"log"
	"net"
	"net/http"
	"net/http/httputil"
	"net/url"
	"os/exec"
	"time"

	"github.com/escache/escache-csi/test/testca"
)

// startTime bounds the start of the program, which may be slow on a loaded machine.
const startTime = time.Minute

// Config describes a registry.
type Config struct {
	// Crane is the path of crane, whose `registry serve` is the registry.
	Crane string
	// Dir is where the blobs are kept. Manifests are kept in memory.
	Dir string
	// Address is where it listens, by default a free port of 127.0.0.1.
	Address string
	// TLS, if set, is what it proves itself with. Without it, it serves plain HTTP.
	TLS *testca.Pair
}

// Serve serves a registry until ctx ends, and returns the address that it listens on.
func Serve(ctx context.Context, cfg Config) (string, error) {
	address := cfg.Address
	if address == "" {
		address = "127.0.0.1:0"
	}
	listener, err := (&net.ListenConfig{}).Listen(ctx, "tcp", address)
	if err != nil {
		return "", fmt.Errorf("registry: %w", err)
	}
	address = listener.Addr().String()
	if cfg.TLS == nil {
		if err := listener.Close(); err != nil {
			return "", fmt.Errorf("registry: %w", err)
		}
		return address, start(ctx, cfg, address)
	}
	if err := serveTLS(ctx, cfg, listener); err != nil {
		_ = listener.Close() // the first error says more
		return "", err
	}
	return address, nil
}

// start starts crane, and returns when it listens on an address.
func start(ctx context.Context, cfg Config, address string) error {
	command := exec.CommandContext(ctx, cfg.Crane, "registry", "serve", "--address", address, "--disk", cfg.Dir)
	var log bytes.Buffer // it has a line for each request: only an early end needs it
	command.Stderr = &log
	if err := command.Start(); err != nil {
		return fmt.Errorf("registry: %w", err)
	}
	ended := make(chan error, 1)
	go func() { ended <- command.Wait() }()
	late := time.After(startTime)
	for {
		conn, err := (&net.Dialer{}).DialContext(ctx, "tcp", address)
		if err == nil {
			return conn.Close()
		}
		select {
		case err := <-ended:
			return fmt.Errorf("the registry on %s has ended: %w: %s", address, err, log.Bytes())
		case <-late:
			return fmt.Errorf("the registry does not serve %s: %w", address, err)
		case <-time.After(50 * time.Millisecond):
		}
	}
}

// serveTLS serves TLS on a listener, before a registry on a free port of 127.0.0.1.
func serveTLS(ctx context.Context, cfg Config, listener net.Listener) error {
	certificate, err := cfg.TLS.TLS()
	if err != nil {
		return fmt.Errorf("registry: %w", err)
	}
	behind, err := Serve(ctx, Config{Crane: cfg.Crane, Dir: cfg.Dir})
	if err != nil {
		return err
	}
	// With HTTP/2, uploads share one window. crane's registry takes one upload after the other: those that wait would
	// fill the window, and the one whose turn it is would get no more.
	protocols := &http.Protocols{}
	protocols.SetHTTP1(true)
	server := &http.Server{
		Protocols:         protocols,
		Handler:           httputil.NewSingleHostReverseProxy(&url.URL{Scheme: "http", Host: behind}),
		TLSConfig:         &tls.Config{Certificates: []tls.Certificate{certificate}, MinVersion: tls.VersionTLS12},
		ReadHeaderTimeout: time.Minute,
		// A client that does not trust the certificate is what some tests want.
		ErrorLog: log.New(io.Discard, "", 0),
	}
	context.AfterFunc(ctx, func() { _ = server.Close() })
	go func() { _ = server.ServeTLS(listener, "", "") }() // its clients see when it has ended
	return nil
}
