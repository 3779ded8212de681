package release_test

import (
	"testing"

	"google.golang.org/grpc/codes"

	"github.com/escache/escache-csi/internal/controller/volumes"
	"github.com/escache/escache-csi/test/csitest"
)

// TestAVolumeIsReleasedWhoseDeviceWasLeftOver: the client of the device has the image open, and the device keeps its
// replica. Neither goes by itself.
func TestAVolumeIsReleasedWhoseDeviceWasLeftOver(t *testing.T) {
	for name, begun := range map[string]bool{"from the beginning": false, "an interrupted release": true} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t)
			v, former, _ := w.Leftover("pvc-1")
			w.Images.Open[volumes.ImageOf(v)] = []string{csitest.OldClient}
			w.AskRelease("pvc-1", true)
			if begun {
				w.releasing("pvc-1")
			}
			w.GivesUp(v, former)
			csitest.Must(t, w.Locked.Release(t.Context(), "pvc-1"))
			if !w.Gone("pvc-1") || w.Fleet.Replicas() != 0 {
				t.Errorf("record gone: %t, %d replicas", w.Gone("pvc-1"), w.Fleet.Replicas())
			}
		})
	}
}

// TestADeviceWithoutProofKeepsItsVolumeFromBeingReleased: escached refuses to give it up, so its client stays.
func TestADeviceWithoutProofKeepsItsVolumeFromBeingReleased(t *testing.T) {
	w := newWorld(t)
	v, former, _ := w.Leftover("pvc-1")
	w.Images.Open[volumes.ImageOf(v)] = []string{csitest.OldClient}
	w.AskRelease("pvc-1", true)
	w.NotAsked(former)
	csitest.Wants(t, w.Locked.Release(t.Context(), "pvc-1"), codes.FailedPrecondition, csitest.OldClient)
	if w.Host(former).Status(csitest.Ref(v)).Device == "" {
		t.Errorf("node %s has given up its device", former)
	}
}
