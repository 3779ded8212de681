package server

import (
	"context"
	"errors"
	"log/slog"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"testing"
	"testing/synctest"
	"time"

	"github.com/escache/escache-csi/api/escache"
	"github.com/escache/escache-csi/internal/escached"
	"github.com/escache/escache-csi/internal/filelock"
)

// connected is an engine with these volumes.
type connected struct {
	untouched

	volumes []escache.VolumeStatus
}

func (connected) Recover(context.Context) error { return nil }

func (connected) Watch(ctx context.Context) { <-ctx.Done() }

func (c connected) Status(context.Context, *escache.VolumeRef) (escache.Status, error) {
	return escache.Status{Volumes: c.volumes}, nil
}

var (
	standby = escache.VolumeStatus{}
	device  = escache.VolumeStatus{Device: "/dev/escache/rbd/v1"}
)

// lock does what csi-node does; the file is free again when it is closed.
func lock(t *testing.T, path string) *os.File {
	t.Helper()
	file, err := os.Create(path)
	if err == nil {
		err = filelock.Take(file)
	}
	if err != nil {
		t.Error(err)
	}
	t.Cleanup(func() { _ = file.Close() })
	return file
}

func TestEscachedServesWhileCSINodeDisconnectsVolumes(t *testing.T) {
	dir := t.TempDir()
	cfg := escached.Config{Socket: filepath.Join(dir, "socket"), ShutdownLock: filepath.Join(dir, "lock")}
	locked := lock(t, cfg.ShutdownLock)
	ctx, tell := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() {
		ended <- New(cfg, connected{volumes: []escache.VolumeStatus{standby, device}}, Seen{Log: slog.New(slog.DiscardHandler)}).Run(ctx)
	}()
	client := http.Client{Timeout: 5 * time.Second, Transport: &http.Transport{
		DisableKeepAlives: true,
		DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
			return (&net.Dialer{}).DialContext(ctx, "unix", cfg.Socket)
		},
	}}
	ask := func() error {
		request, err := http.NewRequestWithContext(t.Context(), http.MethodGet, "http://escached"+escache.PathStatus, nil)
		if err != nil {
			return err
		}
		answer, err := client.Do(request)
		if err != nil {
			return err
		}
		return errors.Join(answer.Body.Close(), map[bool]error{false: errors.New(answer.Status)}[answer.StatusCode == http.StatusOK])
	}
	for deadline := time.Now().Add(10 * time.Second); ask() != nil; time.Sleep(10 * time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatal(ask())
		}
	}
	tell()
	for range 10 {
		time.Sleep(50 * time.Millisecond)
		if err := ask(); err != nil {
			t.Fatalf("escached was told to end, and csi-node has not ended: %v", err)
		}
	}
	if err := locked.Close(); err != nil {
		t.Fatal(err)
	}
	select {
	case err := <-ended:
		if err != nil {
			t.Error(err)
		}
	case <-time.After(10 * time.Second):
		t.Error("csi-node has ended, and escached still serves")
	}
}

// TestEscachedEnds measures how long escached goes on after it was told to end.
func TestEscachedEnds(t *testing.T) {
	for _, row := range []struct {
		name       string
		volumes    []escache.VolumeStatus
		noLock     bool
		recovering bool
		// csi-node takes the lock at from, and ends at to.
		from, to time.Duration
		want     time.Duration
	}{
		{name: "csi-node goes on", volumes: []escache.VolumeStatus{standby, device}, want: lockPatience},
		{name: "csi-node is slow", volumes: []escache.VolumeStatus{device}, from: 3 * time.Second, to: time.Minute, want: time.Minute},
		{name: "csi-node is quick", volumes: []escache.VolumeStatus{device}, to: 2 * time.Second, want: 2 * time.Second},
		{name: "nothing is connected", volumes: []escache.VolumeStatus{standby}, to: time.Minute},
		{name: "a service of the host", volumes: []escache.VolumeStatus{device}, noLock: true, to: time.Minute},
		{name: "it is not known what is connected", recovering: true, to: time.Minute, want: time.Minute},
	} {
		t.Run(row.name, func(t *testing.T) {
			path := filepath.Join(t.TempDir(), "lock")
			synctest.Test(t, func(t *testing.T) {
				cfg := escached.Config{ShutdownLock: path}
				if row.noLock {
					cfg.ShutdownLock = ""
				}
				s := New(cfg, connected{volumes: row.volumes}, Seen{Log: slog.New(slog.DiscardHandler)})
				if !row.recovering {
					close(s.recovered)
				}
				ctx, end := context.WithCancel(t.Context())
				defer end()
				if row.to > 0 {
					locked := make(chan *os.File, 1)
					take := func() { locked <- lock(t, path) }
					if row.from > 0 {
						time.AfterFunc(row.from, take)
					} else {
						take()
					}
					time.AfterFunc(row.to, func() { _ = (<-locked).Close() })
				}
				begin := time.Now()
				s.stay(ctx)
				if took := time.Since(begin); took < row.want || took > row.want+lockPoll {
					t.Errorf("it goes on for %s, not %s", took, row.want)
				}
			})
		})
	}
}
