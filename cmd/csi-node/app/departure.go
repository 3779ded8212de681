package app

import (
	"context"
	"log/slog"
	"time"

	api "github.com/escache/escache-csi/api/escache"
)

// departure is how csi-node ends while its host shuts down. The kubelet ends the pods with volumes first, then this one, and may take the
// volumes off only after that: without csi-node none of those would be written back and detached, to start elsewhere at once.
type departure struct {
	node    string
	longest time.Duration // 0: csi-node ends at once
	pause   time.Duration
	nodes   interface {
		// NodeShutsDown reports whether the kubelet says that its host is shutting down.
		NodeShutsDown(ctx context.Context, node string) (bool, error)
	}
	volumes interface {
		Status(ctx context.Context) (*api.Status, error)
	}
	logger *slog.Logger
}

// wait returns at once unless the host shuts down: an upgrade or a restart of csi-node does not touch volumes. Then it returns when none is
// connected here any more, or after the longest time.
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
