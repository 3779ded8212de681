package watch

import (
	"context"
	"fmt"
	"time"

	"github.com/escache/escache-csi/internal/escached/drbd"
	"github.com/escache/escache-csi/internal/escached/host"
	"github.com/escache/escache-csi/internal/escached/volume"
	"github.com/escache/escache-csi/internal/pause"
)

// askAgainEvery is how often the arbiter is asked again about a frozen Primary.
const askAgainEvery = 10 * time.Second

// frozenPoll is how often Frozen looks for frozen I/O. The load on an idle host is negligible.
const frozenPoll = 3 * time.Second

// Frozen asks the arbiter again about Primaries that have lost their peer and whose I/O is frozen,
// because the arbiter may have been unreachable before. DRBD asks only once by itself; a disconnect
// makes it ask again. Before each round Frozen calls finishAbandoned, which gives up devices that
// another node has taken over. It returns when ctx ends.
func (w *Watcher) Frozen(ctx context.Context, finishAbandoned func(context.Context)) {
	since := map[string]time.Time{}
	for pause.For(ctx, frozenPoll) == nil {
		if len(w.Volumes.List()) == 0 {
			continue
		}
		finishAbandoned(ctx)
		w.AskAll(ctx, since)
	}
}

// AskAll asks again about every volume that has been frozen for long enough. since has when it was found frozen, or asked about.
func (w *Watcher) AskAll(ctx context.Context, since map[string]time.Time) {
	w.eachReplica(func(v volume.Volume, st drbd.Status, _ bool) {
		if !frozen(v, st) {
			delete(since, v.Name())
			return
		}
		if since[v.Name()].IsZero() {
			since[v.Name()] = w.Now()
		}
		if w.Now().Sub(since[v.Name()]) < askAgainEvery {
			return
		}
		since[v.Name()] = w.Now()
		if err := w.askAgain(ctx, v); err != nil {
			w.log.Warn("frozen I/O: the arbiter could not be asked again", "pool", v.Pool, "image", v.Image, "error", err)
		}
	})
}

func frozen(v volume.Volume, st drbd.Status) bool {
	return st.Suspended && !st.Linked() && v.Phase != volume.Abandoning
}

// askAgain does not wait for a verb that may hang in the frozen I/O: that ends only if the answer is yes.
func (w *Watcher) askAgain(ctx context.Context, v volume.Volume) error {
	asking, done, err := w.TryBegin(ctx, v.VolumeRef, host.WorkAskArbiter, host.ChangeTimeout)
	switch {
	case err == nil:
		defer done()
	case host.EndsWithIO(w.Running(v.Name())):
		var cancel context.CancelFunc
		asking, cancel = context.WithTimeout(context.WithoutCancel(ctx), host.ChangeTimeout)
		defer cancel()
	default:
		return nil // a verb is running; the next round asks
	}
	now, known := w.Volumes.Get(v.Name())
	if st, up, err := w.Replica(v.Minor); err != nil || !known || !up || !frozen(now, st) {
		return err
	}
	if err := w.Replicator.Disconnect(asking, v.Name()); err != nil {
		return fmt.Errorf("disconnect: %w", err)
	}
	return w.Replicator.Connect(asking, v.Name())
}
