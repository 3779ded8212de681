package engine

import (
	"context"
	"sync"

	"github.com/escache/escache-csi/api/escache"
	"github.com/escache/escache-csi/internal/crashpoint"
	"github.com/escache/escache-csi/internal/escached/cache"
	"github.com/escache/escache-csi/internal/escached/volume"
)

// turns counts the calls of SetMode that have come and not ended, by the name of the volume. Those that wait for
// the volume count too. Only SetMode and DevConnect can change a device from write-through to write-back: all
// other verbs keep the mode that they find.
type turns struct {
	mu    sync.Mutex
	calls map[string]int
}

func newTurns() *turns { return &turns{calls: map[string]int{}} }

// begin counts a call until end.
func (t *turns) begin(name string) (end func()) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.calls[name]++
	return func() {
		t.mu.Lock()
		defer t.mu.Unlock()
		if t.calls[name]--; t.calls[name] == 0 {
			delete(t.calls, name)
		}
	}
}

func (t *turns) has(name string) bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.calls[name] > 0
}

// SetMode turns draining on and off. The running device is the only record of the mode. SetMode goes on if its
// caller leaves, so Status says write-back until it has ended, also in a change to write-through: that may be undone.
func (e *Engine) SetMode(ctx context.Context, req escache.ModeRequest) error {
	defer e.turns.begin(volume.NameOf(req.VolumeRef))()
	mode := cache.Mode(req.Mode)
	return e.Change(ctx, req.VolumeRef, "mode", func(ctx context.Context, v volume.Volume, dev cache.State) error {
		if err := v.NotLate(req.Epoch); err != nil {
			return err
		}
		if dev.Options.Mode == mode && !dev.Held { // what completed an interrupted change may have set another one
			return nil
		}
		crashpoint.Reach("mode/begin")
		err := e.Cache(v).SetMode(ctx, v.Name(), mode)
		crashpoint.Reach("mode/reloaded")
		return err
	})
}
