// Package shutdown ends csi-node in order: while its host shuts down, and when it is removed for
// good.
package shutdown

import (
	"context"
	"fmt"
	"log/slog"
	"os"
	"strings"
	"time"

	"github.com/escache/escache-csi/api/escache"
	"github.com/escache/escache-csi/internal/filelock"
	"github.com/escache/escache-csi/internal/node/health"
)

// Shutdown decides how long csi-node stays after a signal, and whether the kubelet forgets the
// driver.
type Shutdown struct {
	Node string
	// DaemonSet is NAMESPACE/NAME of the DaemonSet that csi-node belongs to; empty if to none.
	DaemonSet string
	// Lock is a file that is kept locked from the signal until csi-node has ended: escached serves that
	// long. Empty: escached does not end with csi-node.
	Lock string
	// Longest bounds the wait for volumes; 0 ends csi-node at once.
	Longest time.Duration
	// Poll is the time between two queries for the volumes.
	Poll       time.Duration
	Nodes      Nodes
	DaemonSets DaemonSets
	Kubelet    Kubelet
	Volumes    Volumes
	Log        *slog.Logger

	held *os.File // Lock; the kernel frees it when csi-node has ended
}

type (
	// Nodes reports whether the kubelet says that its host is shutting down.
	Nodes interface {
		NodeShutsDown(ctx context.Context, node string) (bool, error)
	}
	// DaemonSets reports whether a DaemonSet is deleted.
	DaemonSets interface {
		DaemonSetDeleted(ctx context.Context, namespace, name string) (bool, error)
	}
	// Kubelet makes the kubelet forget the driver.
	Kubelet interface{ Leave() error }
	// Volumes returns the status of the volumes that escached has on this host.
	Volumes interface {
		Status(ctx context.Context) (*escache.Status, error)
	}
)

// Wait returns at once unless the host shuts down: an upgrade or a restart of csi-node does not
// touch volumes. While the host shuts down, it returns when escached says that no volume is connected
// here any more, or after Longest. The kubelet first ends the pods with volumes and then this one, and
// may unstage the volumes only after that. Without csi-node they would not be written back and
// detached, and could not start elsewhere at once.
func (d *Shutdown) Wait(ctx context.Context) {
	if d.Longest <= 0 {
		return
	}
	ctx, cancel := context.WithTimeout(ctx, d.Longest)
	defer cancel()
	if err := d.lock(); err != nil {
		d.Log.WarnContext(ctx, "escached may end before the volumes are disconnected", "error", err)
	}
	down, err := d.Nodes.NodeShutsDown(ctx, d.Node)
	if err != nil || !down {
		d.Log.InfoContext(ctx, "ending; volumes stay connected", "error", err)
		return
	}
	begin := time.Now()
	for silent := false; ; {
		left, err := d.connected(ctx)
		switch {
		case err == nil && len(left) == 0:
			d.Log.InfoContext(ctx, "the host shuts down, and no volume is connected any more", "duration", time.Since(begin))
			return
		case err != nil && !silent:
			d.Log.WarnContext(ctx, "the host shuts down and escached does not answer; waiting, as volumes may be connected", "error", err)
		}
		silent = err != nil
		select {
		case <-ctx.Done():
			d.Log.WarnContext(ctx, "the host shuts down, and volumes are or may be connected",
				"duration", time.Since(begin), "images", left, "error", err)
			return
		case <-time.After(d.Poll):
		}
	}
}

// lock takes Lock before anything else: an escached that is told to end at the same time does not wait long for it.
func (d *Shutdown) lock() (err error) {
	if d.Lock == "" {
		return nil
	}
	if d.held, err = os.OpenFile(d.Lock, os.O_CREATE|os.O_RDWR, 0o600); err != nil {
		return fmt.Errorf("make the lock: %w", err)
	}
	return filelock.Take(d.held)
}

// Removed makes the kubelet forget the driver if csi-node will not come back. If that is not
// certain the kubelet keeps it: without the driver it can neither unstage volumes nor report what
// it has.
func (d *Shutdown) Removed(ctx context.Context) {
	namespace, name, found := strings.Cut(d.DaemonSet, "/")
	if !found {
		return
	}
	deleted, err := d.DaemonSets.DaemonSetDeleted(ctx, namespace, name)
	if err == nil && deleted {
		d.Log.InfoContext(ctx, "the DaemonSet is deleted; the kubelet is to forget the driver", "daemonset", d.DaemonSet)
		err = d.Kubelet.Leave()
	}
	if err != nil {
		d.Log.WarnContext(ctx, "the kubelet keeps the driver", "error", err)
	}
}

// connected returns the images that have a device here.
func (d *Shutdown) connected(ctx context.Context) ([]string, error) {
	status, err := d.Volumes.Status(ctx)
	if err != nil {
		return nil, fmt.Errorf("list the connected volumes: %w", err)
	}
	var images []string
	for _, v := range status.Volumes {
		if v.Device != "" && health.IsConnected(v) {
			images = append(images, v.Pool+"/"+v.Image)
		}
	}
	return images, nil
}
