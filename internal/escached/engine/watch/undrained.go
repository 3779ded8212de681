package watch

import (
	"context"
	"time"

	"github.com/escache/escache-csi/internal/escached/cache"
	"github.com/escache/escache-csi/internal/escached/host"
	"github.com/escache/escache-csi/internal/escached/volume"
	"github.com/escache/escache-csi/internal/pause"
)

// undrainedPoll is how often Undrained looks. It costs a look at the devices' states.
const undrainedPoll = 5 * time.Second

// drainTimeout bounds one attempt, which waits for no write-back.
const drainTimeout = 20 * time.Second

// Undrained makes devices that write through go on with what is dirty, until ctx ends.
func (w *Watcher) Undrained(ctx context.Context) {
	for pause.For(ctx, undrainedPoll) == nil {
		w.DrainAll(ctx)
	}
}

// DrainAll makes every device that writes through, and writes nothing back although something is dirty, go on.
func (w *Watcher) DrainAll(ctx context.Context) {
	w.eachDevice(ctx, func(v volume.Volume, dev cache.State) {
		if !undrained(v, dev) {
			return
		}
		if err := w.withDevice(ctx, v, host.WorkDrain, drainTimeout, undrained, w.drain); err != nil {
			w.log.Warn("a device that writes through does not write back what is dirty, it is tried again",
				"pool", v.Pool, "image", v.Image, "after", undrainedPoll, "error", err)
		}
	})
}

func undrained(v volume.Volume, dev cache.State) bool {
	return v.Phase == volume.Ready && dev.Options.Mode == cache.Writethrough && dev.Dirty > 0 && dev.WritingBack == 0 &&
		!dev.Held && !dev.Failed
}

func (w *Watcher) drain(ctx context.Context, v volume.Volume) error {
	if st, up, err := w.Replica(v.Minor); err != nil || up && st.Suspended {
		return err // it would hang in the frozen I/O
	}
	return w.Cache(v).SetMode(ctx, v.Name(), cache.Writethrough)
}
