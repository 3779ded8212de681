package watch

import (
	"context"
	"time"

	"github.com/escache/escache-csi/internal/escached/cache"
	"github.com/escache/escache-csi/internal/escached/host"
	"github.com/escache/escache-csi/internal/escached/volume"
	"github.com/escache/escache-csi/internal/pause"
)

// unservedPoll is how often Unserved looks: I/O waits meanwhile. On a host whose devices are all in the
// kernel it costs only a look at their states.
const unservedPoll = time.Second

// reviveTimeout bounds one attempt: verbs find the volume busy meanwhile. What was begun goes on after it.
const reviveTimeout = 20 * time.Second

// reviveAgain is how long a device waits for another attempt after one that failed.
const reviveAgain = 10 * time.Second

// Unserved revives devices that nothing serves, until ctx ends.
func (w *Watcher) Unserved(ctx context.Context) {
	later := map[string]time.Time{}
	for pause.For(ctx, unservedPoll) == nil {
		w.ReviveAll(ctx, later)
	}
}

// ReviveAll revives every device that nothing serves, except those that are being given up: their I/O
// must not go on. later has those that could not be revived, and when they are tried again.
func (w *Watcher) ReviveAll(ctx context.Context, later map[string]time.Time) {
	w.eachDevice(ctx, func(v volume.Volume, dev cache.State) {
		if !unserved(v, dev) {
			delete(later, v.Name())
			return
		}
		if w.Now().Before(later[v.Name()]) {
			return
		}
		err := w.withDevice(ctx, v, host.WorkRevive, reviveTimeout, unserved, func(ctx context.Context, v volume.Volume) error {
			if err := w.Cache(v).Revive(ctx, v.Name()); err != nil {
				return err
			}
			w.log.Warn("a device is served again", "pool", v.Pool, "image", v.Image, "reason", dev.Unserved)
			return nil
		})
		if err != nil {
			w.log.Error("a device that nothing serves cannot be revived, it is tried again", "after", reviveAgain,
				"pool", v.Pool, "image", v.Image, "reason", dev.Unserved, "error", err)
			later[v.Name()] = w.Now().Add(reviveAgain)
		}
	})
}

func unserved(v volume.Volume, dev cache.State) bool {
	return v.Phase == volume.Ready && dev.Unserved != ""
}
