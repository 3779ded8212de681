package watch

import (
	"context"
	"slices"
	"time"

	"github.com/escache/escache-csi/api/escache"
	"github.com/escache/escache-csi/internal/escached/drbd"
	"github.com/escache/escache-csi/internal/escached/host"
	"github.com/escache/escache-csi/internal/escached/volume"
	"github.com/escache/escache-csi/internal/pause"
)

// leftoverEvery is how often Leftovers looks for leftovers. Something is a leftover if it is
// found twice in a row while no verb runs on the volume.
const leftoverEvery = time.Minute

// Leftovers unmaps and demotes volumes that a verb could not, because the kernel kept them
// busy for too long. It matters because an image that is still mapped here cannot be mapped on the
// peer. Leftovers returns when ctx ends.
func (w *Watcher) Leftovers(ctx context.Context) {
	before := map[string]bool{}
	for pause.For(ctx, leftoverEvery) == nil {
		now := map[string]bool{}
		for _, v := range w.FindLeftovers(ctx) {
			now[v.Name()] = true
			if before[v.Name()] {
				w.CleanUp(ctx, v)
			}
		}
		before = now
	}
}

// FindLeftovers returns the volumes that are mapped or Primary but have no device and no running
// verb.
func (w *Watcher) FindLeftovers(ctx context.Context) []volume.Volume {
	table, err := w.States.Read()
	if err != nil {
		return nil
	}
	all, err := w.Images.Find("", "")
	if err != nil {
		return nil
	}
	mapped := map[string]bool{}
	for _, m := range all {
		mapped[volume.NameOf(escache.VolumeRef{Pool: m.Pool, Image: m.Image})] = true
	}
	var left []volume.Volume
	for _, v := range w.Volumes.List() {
		if (mapped[v.Name()] || table.Devices[v.Minor].Role == drbd.Primary) && w.Running(v.Name()) == "" {
			left = append(left, v)
		}
	}
	if len(left) == 0 {
		return nil
	}
	devices, err := w.Caches.States(ctx, volume.NamePrefix)
	if err != nil {
		return nil
	}
	return slices.DeleteFunc(left, func(v volume.Volume) bool {
		_, connected := devices[v.Name()]
		return connected
	})
}

// CleanUp unmaps and demotes one volume, unless it has a device or a running verb by now.
func (w *Watcher) CleanUp(ctx context.Context, v volume.Volume) {
	ctx, done, err := w.TryBegin(ctx, v.VolumeRef, host.WorkCleanUp, host.ChangeTimeout)
	if err != nil {
		return // a verb is running by now
	}
	defer done()
	if _, connected, err := w.Device(ctx, v.Name()); err != nil || connected {
		return
	}
	if err := w.UnmapAndDemote(ctx, v); err != nil {
		w.log.Warn("leftovers of a connect cannot be cleaned up yet", "pool", v.Pool, "image", v.Image, "error", err)
		return
	}
	w.log.Warn("cleaned up the leftovers of a connect", "pool", v.Pool, "image", v.Image)
}
