package move_test

import (
	"strings"
	"testing"

	"github.com/escache/escache-csi/api/escache"
	"github.com/escache/escache-csi/api/v1alpha1"
	"github.com/escache/escache-csi/test/csitest"
)

// TestAVolumeMovesWhoseDeviceWasLeftOver: a device writes through, nobody uses it, and only its host can give it up.
func TestAVolumeMovesWhoseDeviceWasLeftOver(t *testing.T) {
	w := twoGroups(t)
	v := w.Volume(moved)
	former := v.Spec.Replicas[0]
	w.Host(former).Stage(csitest.Ref(v), csitest.OldClient, 1, escache.ModeWritethrough)
	w.AskMove(moved, "g2")

	w.NotAsked(former)
	w.turn() // escached has no proof
	if c := w.moving(); c.Reason != v1alpha1.ReasonMoveRefused || !strings.Contains(c.Message, "still has the device") ||
		!strings.Contains(c.Message, string(escache.CodeNotSuperseded)) {
		t.Errorf("it says %s: %s", c.Reason, c.Message)
	}
	if now := w.Volume(moved); now.Spec.Group != "g1" || !w.Host(former).Has(csitest.Ref(v)) {
		t.Fatalf("it has moved: %+v", now.Spec)
	}

	w.GivesUp(v, former)
	for range 5 {
		if !w.turn() {
			break
		}
	}
	w.isIn("g2")
}
