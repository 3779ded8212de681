package move_test

import (
	"testing"

	"k8s.io/client-go/tools/events"

	"github.com/escache/escache-csi/test/csitest"
)

// world is the whole service, and a volume that moves.
type world struct {
	*csitest.World

	events *events.FakeRecorder
}

func newWorld(t *testing.T, more ...string) *world {
	t.Helper()
	return &world{csitest.New(t, more...), events.NewFakeRecorder(1000)}
}
