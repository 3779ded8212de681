package comparison_test

import (
	"testing"

	"github.com/escache/escache-csi/test/csitest"
)

// world is the whole service, and what nodes ask it.
type world struct{ *csitest.World }

func newWorld(t *testing.T) *world {
	t.Helper()
	return &world{csitest.New(t)}
}
