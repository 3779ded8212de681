package engine

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

// leftoverEvery is how often watchLeftovers looks for leftovers. Something is a leftover if it is
// found twice in a row while no verb runs on the volume.
const leftoverEvery = time.Minute

// watchLeftovers unmaps and demotes volumes that a verb could not, because the kernel kept them
// busy for too long. It matters because an image that is still mapped here cannot be mapped on the
// peer.
func (e *Engine) watchLeftovers(ctx context.Context) {
	before := map[string]bool{}
	for pause.For(ctx, leftoverEvery) == nil {
		now := map[string]bool{}
		for _, v := range e.leftovers(ctx) {
			now[v.Name()] = true
			if before[v.Name()] {
				e.dropLeftover(ctx, v)
			}
		}
		before = now
	}
}

// leftovers returns the volumes that are mapped or Primary but have no device and no running verb.
func (e *Engine) leftovers(ctx context.Context) []volume.Volume {
	table, err := e.States.Read()
	if err != nil {
		return nil
	}
	all, err := e.Images.Find("", "")
	if err != nil {
		return nil
	}
	mapped := map[string]bool{}
	for _, m := range all {
		mapped[volume.NameOf(escache.VolumeRef{Pool: m.Pool, Image: m.Image})] = true
	}
	var held []volume.Volume
	for _, v := range e.Volumes.List() {
		if (mapped[v.Name()] || table.Devices[v.Minor].Role == drbd.Primary) && e.Running(v.Name()) == "" {
			held = append(held, v)
		}
	}
	if len(held) == 0 {
		return nil
	}
	devices, err := e.Caches.States(ctx, volume.NamePrefix)
	if err != nil {
		return nil
	}
	return slices.DeleteFunc(held, func(v volume.Volume) bool {
		_, connected := devices[v.Name()]
		return connected
	})
}

func (e *Engine) dropLeftover(ctx context.Context, v volume.Volume) {
	ctx, done, err := e.Begin(ctx, v.VolumeRef, "clean_up", host.ChangeTimeout)
	if err != nil {
		return // a verb is running by now
	}
	defer done()
	if _, connected, err := e.Device(ctx, v.Name()); err != nil || connected {
		return
	}
	if err := e.UnmapAndDemote(ctx, v); err != nil {
		e.log.Warn("what a connect left behind cannot be cleaned up yet", "pool", v.Pool, "image", v.Image, "error", err)
		return
	}
	e.log.Warn("cleaned up what a connect left behind", "pool", v.Pool, "image", v.Image)
}
