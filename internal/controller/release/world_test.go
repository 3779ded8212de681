package release_test

import (
	"testing"

	"github.com/escache/escache-csi/test/csitest"
)

// world is the whole service, and volumes that are given up.
type world struct{ *csitest.World }

func newWorld(t *testing.T) *world {
	t.Helper()
	return &world{csitest.New(t)}
}
