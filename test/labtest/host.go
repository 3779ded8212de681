package labtest

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"strings"
	"time"

	"github.com/escache/escache-csi/api/escache"
	"github.com/escache/escache-csi/internal/escacheclient"
	"github.com/escache/escache-csi/test/lab/labclient"
)

// commandTimeout bounds one command on an emulated host.
const commandTimeout = 90 * time.Second

// restartLimit bounds how long a killed escached is away.
const restartLimit = 2 * time.Minute

// Host is one machine of the lab.
type Host struct {
	Name    string
	Address string // on the network of replicas and Ceph
	// URL and TLS lead to the host's escached, and API calls it.
	URL string
	TLS escacheclient.TLSFiles
	API *escacheclient.Client

	lab *Lab
}

// Run runs a command on the host and returns its standard output. A failure fails the test.
func (h *Host) Run(t T, args ...string) string {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), commandTimeout)
	defer cancel()
	out, err := h.Try(ctx, nil, args...)
	if err != nil {
		t.Fatalf("%v", err)
	}
	return out
}

// Shell runs a script on the host.
func (h *Host) Shell(t T, script string) string {
	t.Helper()
	return h.Run(t, "sh", "-c", script)
}

// Try runs a command on the host with stdin, which may be nil. The output is returned also when it
// fails.
func (h *Host) Try(ctx context.Context, stdin io.Reader, args ...string) (string, error) {
	var stdout, stderr bytes.Buffer
	err := h.exec(ctx, stdin, &stdout, &stderr, args...)
	out := strings.TrimSpace(stdout.String())
	if err != nil {
		return out, fmt.Errorf("on %s: %s: %w: %s", h.Name, strings.Join(args, " "), err, strings.TrimSpace(stderr.String()))
	}
	return out, nil
}

// stream runs a command whose output is read while it runs.
func (h *Host) stream(ctx context.Context, stdin io.Reader, stdout io.Writer, args ...string) error {
	var stderr bytes.Buffer
	if err := h.exec(ctx, stdin, stdout, &stderr, args...); err != nil {
		return fmt.Errorf("on %s: %s: %w: %s", h.Name, strings.Join(args, " "), err, strings.TrimSpace(stderr.String()))
	}
	return nil
}

// Write makes a file on the host.
func (h *Host) Write(t T, path, content string) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), commandTimeout)
	defer cancel()
	if _, err := h.Try(ctx, strings.NewReader(content), "sh", "-c", `mkdir -p "$(dirname "$0")" && cat >"$0"`, path); err != nil {
		t.Fatalf("%v", err)
	}
}

// ready is nil once escached takes orders. It answers questions before that, so the question is an
// order that changes nothing.
func (h *Host) ready(ctx context.Context) error {
	return h.API.DeleteReplica(ctx, escache.VolumeRef{Pool: h.lab.Pools[0], Image: "e2e-none"})
}

// WaitForService waits until escached takes orders.
func (h *Host) WaitForService(t T, limit time.Duration) time.Duration {
	t.Helper()
	return WaitFor(t, "escached on "+h.Name+" answers", limit, func(ctx context.Context) error {
		return h.ready(ctx)
	})
}

// KillService ends escached with SIGKILL, waits until it is back under another process id and
// answers, and returns how long that took.
func (h *Host) KillService(t T) time.Duration {
	t.Helper()
	begin := time.Now()
	ctx, cancel := context.WithTimeout(t.Context(), restartLimit)
	defer cancel()
	if err := h.RestartService(ctx); err != nil {
		t.Fatalf("%v", err)
	}
	h.WaitForService(t, restartLimit)
	return time.Since(begin)
}

// RestartService ends escached with SIGKILL, and waits until there is another process, which need not answer yet.
func (h *Host) RestartService(ctx context.Context) error {
	old, err := h.Try(ctx, nil, "cat", pidFile)
	if err != nil {
		return err
	}
	if _, err := h.Try(ctx, nil, "kill", "-9", old); err != nil {
		return err
	}
	for {
		pid, err := h.Try(ctx, nil, "cat", pidFile)
		switch {
		case err == nil && pid != old:
			return nil
		case ctx.Err() != nil:
			return fmt.Errorf("escached on %s was killed (process %s) and is not back: %w", h.Name, old, errors.Join(err, ctx.Err()))
		}
		time.Sleep(pollInterval)
	}
}

// serviceDir is where the hosts' service keeper writes what it started, and pidFile is escached's there.
const (
	serviceDir = "/run/lab/services/"
	pidFile    = serviceDir + "escached.pid"
)

// ServicePID is escached's process id.
func (h *Host) ServicePID(t T) string {
	t.Helper()
	return h.Run(t, "cat", pidFile)
}

// exec runs a command on the host; an exit status other than 0 is an error.
func (h *Host) exec(ctx context.Context, stdin io.Reader, stdout, stderr io.Writer, args ...string) error {
	code, err := h.lab.client.Exec(ctx, h.Name, labclient.Command{Args: args}, labclient.Streams{In: stdin, Out: stdout, Err: stderr})
	if err == nil && code != 0 {
		err = fmt.Errorf("exit status %d", code)
	}
	return err
}
