package move_test

import (
	"testing"

	"github.com/escache/escache-csi/test/csitest"
)

// world is the whole service, and a volume that moves.
type world struct{ *csitest.World }

func newWorld(t *testing.T, more ...string) *world {
	t.Helper()
	return &world{csitest.New(t, more...)}
}
