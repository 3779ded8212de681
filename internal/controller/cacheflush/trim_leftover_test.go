package cacheflush_test

import (
	"testing"

	"google.golang.org/grpc/codes"

	"github.com/escache/escache-csi/api/escache"
	"github.com/escache/escache-csi/test/csitest"
)

// TestAVolumeIsTrimmedWhoseDeviceWasLeftOver: the device keeps the image's lock from the host that is to trim it.
func TestAVolumeIsTrimmedWhoseDeviceWasLeftOver(t *testing.T) {
	w, fs := newWorld(t), &trims{left: 1}
	v, third := w.unused("pvc-1", fs)
	w.persistentVolume("pvc-1", nil)
	former := v.Spec.Replicas[0]
	w.Host(former).Stage(csitest.Ref(v), csitest.OldClient, 1, escache.ModeWritethrough)

	w.NotAsked(former)
	_, err := w.trim("pvc-1", 0) // escached has no proof
	csitest.Wants(t, err, codes.FailedPrecondition, former, string(escache.CodeNotSuperseded))
	if w.Volume("pvc-1").Status.AttachedNode != "" || w.Host(former).Status(csitest.Ref(v)).Device == "" {
		t.Fatalf("refused, and on record: %+v", w.Volume("pvc-1").Status)
	}

	w.GivesUp(v, former)
	trimmed, err := w.trim("pvc-1", 0)
	csitest.Must(t, err)
	if s := w.Host(former).Status(csitest.Ref(v)); !trimmed.Done || trimmed.Node != third || s.Device != "" {
		t.Errorf("%+v, and node %s has %+v", trimmed, former, s)
	}
}
