package fallback_test

import (
	"testing"

	"google.golang.org/grpc/codes"

	"github.com/escache/escache-csi/api/escache"
	"github.com/escache/escache-csi/test/csitest"
)

// TestAVolumeLeavesItsGroupWhoseDeviceWasLeftOver: nobody in the group asks for the device then.
func TestAVolumeLeavesItsGroupWhoseDeviceWasLeftOver(t *testing.T) {
	w := newWorld(t)
	v := w.UsedOnce("pvc-1")
	former := v.Spec.Replicas[0]
	w.Host(former).Stage(csitest.Ref(v), csitest.OldClient, 1, escache.ModeWritethrough)

	w.NotAsked(former)
	_, err := w.Publish("pvc-1", "n9") // escached has no proof
	csitest.Wants(t, err, codes.FailedPrecondition, former, string(escache.CodeNotSuperseded))
	if w.Volume("pvc-1").Status.AttachedNode != "" || w.Host(former).Status(csitest.Ref(v)).Device == "" {
		t.Fatalf("refused, and on record: %+v", w.Volume("pvc-1").Status)
	}

	w.GivesUp(v, former)
	_, err = w.Publish("pvc-1", "n9")
	csitest.Must(t, err)
	if s := w.Host(former).Status(csitest.Ref(v)); s.Device != "" || !w.Volume("pvc-1").Status.UncachedAttached() {
		t.Errorf("node %s still has the device: %+v", former, s)
	}
}
