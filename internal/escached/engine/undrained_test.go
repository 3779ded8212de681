package engine

import (
	"testing"

	"github.com/escache/escache-csi/api/escache"
	"github.com/escache/escache-csi/internal/escached/cache"
	"github.com/escache/escache-csi/internal/escached/volume"
)

func TestADeviceThatWritesThroughGoesOnWithWhatIsDirty(t *testing.T) {
	for name, c := range map[string]struct {
		mode  escache.Mode
		state func(*cache.State)
		phase volume.Phase
		// frozen says that it has lost its peer.
		frozen bool
		goes   bool
	}{
		"it writes nothing back":   {mode: escache.ModeWritethrough, goes: true},
		"it writes something back": {mode: escache.ModeWritethrough, state: func(s *cache.State) { s.WritingBack = cache.BlockBytes }},
		"it is held":               {mode: escache.ModeWritethrough, state: func(s *cache.State) { s.Held = true }},
		"Ceph refused a write":     {mode: escache.ModeWritethrough, state: func(s *cache.State) { s.Failed = true }},
		"its I/O is frozen":        {mode: escache.ModeWritethrough, frozen: true},
		"it is being given up":     {mode: escache.ModeWritethrough, phase: volume.Abandoning},
		"it writes back":           {mode: escache.ModeWriteback},
	} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t)
			e := w.engine()
			if err := e.PutReplica(t.Context(), putReq); err != nil {
				t.Fatal(err)
			}
			if _, err := e.DevConnect(t.Context(), escache.ConnectRequest{
				VolumeRef: ref, ImageID: "10ab", Epoch: 5, Options: escache.ConnectOptions{Mode: c.mode},
			}); err != nil {
				t.Fatal(err)
			}
			w.setDirty(2 * cache.BlockBytes)
			if c.state != nil {
				w.caches.Alter(volume.NameOf(ref), c.state)
			}
			if c.frozen {
				w.freeze(volume.NameOf(ref))
			}
			if c.phase != "" {
				v, _ := e.Volumes.Get(volume.NameOf(ref))
				v.Phase = c.phase
				e.Volumes.Put(v)
			}
			e.watcher.DrainAll(t.Context())
			if s := w.state(); (s.Dirty == 0) != c.goes {
				t.Errorf("it is %+v", s)
			}
		})
	}
}
