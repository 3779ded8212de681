package engine

import (
	"context"
	"errors"
	"testing"

	"github.com/escache/escache-csi/api/escache"
	"github.com/escache/escache-csi/internal/escached/cache"
	"github.com/escache/escache-csi/internal/escached/cache/cachetest"
	"github.com/escache/escache-csi/internal/escached/volume"
)

// halfCache is an engine that is broken off when I/O rests already and the image lacks what is dirty. Then
// nothing lets I/O go on.
type halfCache struct {
	*cachetest.Fake

	kill bool
}

var errHalf = errors.New("the image takes too long")

func (h halfCache) WriteBack(context.Context, string) error { return nil } // users go on writing

func (h halfCache) Hold(_ context.Context, name string, _ bool) error {
	h.Alter(name, func(s *cache.State) { s.Held = true })
	if h.kill {
		panic(cachetest.Killed{})
	}
	return errHalf
}

func (h halfCache) Resume(context.Context, string) error { return errHalf }

// TestAHoldThatWasBrokenOffIsBegunAgain: a snapshot of the image that lacked what was dirty would count.
func TestAHoldThatWasBrokenOffIsBegunAgain(t *testing.T) {
	for name, kill := range map[string]bool{"escached is killed": true, "I/O cannot go on at once": false} {
		t.Run(name, func(t *testing.T) {
			w, e := inUse(t)
			w.setDirty(4 * cache.BlockBytes)
			hold := func(e *Engine) (_ escache.HoldResponse, err error) {
				defer func() {
					if r := recover(); r != nil {
						err = errHalf
					}
				}()
				return e.Hold(t.Context(), escache.HoldRequest{VolumeRef: ref, MaxSeconds: 60})
			}
			whole := e.Caches[escache.EngineWritecache]
			e.Caches[escache.EngineWritecache] = halfCache{w.caches, kill}
			if _, err := hold(e); !errors.Is(err, errHalf) {
				t.Fatalf("it was broken off: %v", err)
			}
			if s := w.state(); !s.Held || s.Dirty == 0 || e.Holds.Get(volume.NameOf(ref)) == nil {
				t.Fatalf("it is %+v", s)
			}
			if kill {
				e = w.restarted()
			}
			e.Caches[escache.EngineWritecache] = whole
			held, err := hold(e)
			if s := w.state(); err != nil || !s.Held || s.Dirty > 0 {
				t.Errorf("held until %s, %v, and it is %+v", held.HeldUntil, err, s)
			}
		})
	}
}
