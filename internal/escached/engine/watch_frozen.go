package engine

import (
	"context"
	"fmt"
	"time"

	"github.com/escache/escache-csi/internal/escached/host"
	"github.com/escache/escache-csi/internal/escached/volume"
	"github.com/escache/escache-csi/internal/pause"
)

// askAgainEvery is how often the arbiter is asked again about a frozen Primary.
const askAgainEvery = 10 * time.Second

// frozenPoll is how often watchFrozen looks for frozen I/O. The load on an idle host is negligible.
const frozenPoll = 3 * time.Second

// watchFrozen asks the arbiter again about Primaries that have lost their peer and whose I/O is
// frozen, because the arbiter may have been unreachable before. DRBD asks only once by itself; a
// disconnect makes it ask again.
func (e *Engine) watchFrozen(ctx context.Context) {
	since := map[string]time.Time{}
	for pause.For(ctx, frozenPoll) == nil {
		if len(e.Volumes.List()) == 0 {
			continue
		}
		e.finishAbandoned(ctx)
		table, err := e.States.Read()
		if err != nil {
			continue
		}
		for _, v := range e.Volumes.List() {
			st := table.Devices[v.Minor]
			if !st.Suspended || st.Linked() || v.Phase == volume.Abandoning {
				delete(since, v.Name())
				continue
			}
			if since[v.Name()].IsZero() {
				since[v.Name()] = e.Now()
			}
			if e.Now().Sub(since[v.Name()]) < askAgainEvery {
				continue
			}
			since[v.Name()] = e.Now()
			if err := e.askAgain(ctx, v); err != nil {
				e.log.Warn("frozen I/O: the arbiter could not be asked again", "pool", v.Pool, "image", v.Image, "error", err)
			}
		}
	}
}

func (e *Engine) askAgain(ctx context.Context, v volume.Volume) error {
	ctx, done, err := e.Begin(ctx, v.VolumeRef, verbAskArbiter, host.ChangeTimeout)
	if err != nil {
		return nil // a verb is running; the next round asks
	}
	defer done()
	if err := e.Replicator.Disconnect(ctx, v.Name()); err != nil {
		return fmt.Errorf("disconnect: %w", err)
	}
	return e.Replicator.Connect(ctx, v.Name())
}
