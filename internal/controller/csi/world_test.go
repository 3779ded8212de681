package csi_test

import (
	"testing"

	"github.com/escache/escache-csi/test/csitest"
)

// world is a service with hosts, and what the tests of this package do with it.
type world struct{ *csitest.World }

func newWorld(t *testing.T, more ...string) *world {
	t.Helper()
	return &world{csitest.New(t, more...)}
}
