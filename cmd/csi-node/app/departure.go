package app

import (
	"context"
	"log/slog"
	"strings"
	"time"

	"github.com/escache/escache-csi/api/escache"
)

// departure is how csi-node ends: while its host shuts down, and when it is removed for good.
type departure struct {
	node      string
	daemonSet string        // namespace/name; "": csi-node is not a DaemonSet's
	longest   time.Duration // 0: csi-node ends at once
	pause     time.Duration
	nodes     interface {
		// NodeShutsDown reports whether the kubelet says that its host is shutting down.
		NodeShutsDown(ctx context.Context, node string) (bool, error)
	}
	daemonSets interface {
		DaemonSetDeleted(ctx context.Context, namespace, name string) (bool, error)
	}
	kubelet interface {
		// Leave makes the kubelet forget the driver.
		Leave() error
	}
	volumes interface {
		Status(ctx context.Context) (*escache.Status, error)
	}
	logger *slog.Logger
}

// wait returns at once unless the host shuts down: an upgrade or a restart of csi-node does not touch volumes. Then it returns when none is
// connected here any more, or after the longest time: the kubelet ends the pods with volumes first, then this one, and may take the volumes
// off only after that. Without csi-node none of those would be written back and detached, to start elsewhere at once.
func (d *departure) wait(ctx context.Context) {
	if d.longest <= 0 {
		return
	}
	ctx, cancel := context.WithTimeout(ctx, d.longest)
	defer cancel()
	down, err := d.nodes.NodeShutsDown(ctx, d.node)
	if err != nil || !down {
		d.logger.InfoContext(ctx, "ending; volumes stay connected", "error", err)
		return
	}
	begin := time.Now()
	for {
		left := d.connected(ctx)
		if len(left) == 0 {
			d.logger.InfoContext(ctx, "the host shuts down, and no volume is connected any more", "waited", time.Since(begin))
			return
		}
		select {
		case <-ctx.Done():
			d.logger.WarnContext(ctx, "the host shuts down with volumes connected", "waited", time.Since(begin), "volumes", left)
			return
		case <-time.After(d.pause):
		}
	}
}

// removed has the kubelet forget the driver when csi-node does not come back. In doubt the kubelet keeps it: without, it can neither take
// volumes off nor tell Kubernetes what it has.
func (d *departure) removed(ctx context.Context) {
	namespace, name, found := strings.Cut(d.daemonSet, "/")
	if !found {
		return
	}
	deleted, err := d.daemonSets.DaemonSetDeleted(ctx, namespace, name)
	if err == nil && deleted {
		d.logger.InfoContext(ctx, "the DaemonSet is deleted; the kubelet is to forget the driver", "daemonset", d.daemonSet)
		err = d.kubelet.Leave()
	}
	if err != nil {
		d.logger.WarnContext(ctx, "the kubelet keeps the driver", "error", err)
	}
}

// connected are the images with a device here. Where escached does not answer, nothing can be written back: that is the same as none.
func (d *departure) connected(ctx context.Context) []string {
	status, err := d.volumes.Status(ctx)
	if err != nil {
		d.logger.WarnContext(ctx, "which volumes are connected", "error", err)
		return nil
	}
	var images []string
	for _, v := range status.Volumes {
		if v.Device != "" {
			images = append(images, v.Pool+"/"+v.Image)
		}
	}
	return images
}
