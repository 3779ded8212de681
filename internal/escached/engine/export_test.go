package engine

import "testing"

// What tests of the whole API need of a world.
var (
	NewWorld   func(t *testing.T) *world = newWorld
	PutRequest                           = putReq
)

func (w *world) Engine() *Engine { return w.engine() }
func (w *world) Left() []string  { return w.left() }
