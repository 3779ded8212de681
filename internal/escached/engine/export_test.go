package engine

import (
	"testing"

	"github.com/escache/escache-csi/api/escache"
)

// What tests of the whole API need of a world.
var (
	NewWorld   func(t *testing.T) *world = newWorld
	PutRequest                           = putReq
)

func (w *world) Engine() *Engine { return w.engine() }
func (w *world) Left() []string  { return w.left() }

// Detached returns an engine over the real layers, with a volume that was attached before: its replica waits for
// dev_connect with this epoch.
func Detached(t *testing.T, epoch int64) *Engine {
	t.Helper()
	m := newMachine(t)
	e := m.start()
	again := putReq
	again.Epoch = epoch
	for what, do := range []func() error{
		func() error { return e.PutReplica(t.Context(), putReq) },
		func() error { _, err := connectWith(e, epoch-1); return err },
		func() error { return e.Stop(t.Context(), escache.StopRequest{VolumeRef: ref}) },
		func() error { return e.PutReplica(t.Context(), again) },
	} {
		if err := do(); err != nil {
			t.Fatal(what, err)
		}
	}
	return e
}
