package csi_test

import (
	"testing"

	"google.golang.org/grpc/codes"

	"github.com/escache/escache-csi/api/escache"
	"github.com/escache/escache-csi/test/csitest"
)

// TestAVolumeIsDeletedWhoseDeviceWasLeftOver: nobody stages it any more, so nobody but DeleteVolume asks for the device.
func TestAVolumeIsDeletedWhoseDeviceWasLeftOver(t *testing.T) {
	for name, cordoned := range map[string]bool{"on a ready host": false, "on a cordoned host": true} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t)
			v, former, _ := w.Leftover("pvc-1")
			if cordoned {
				g, err := w.Group()
				csitest.Must(t, err)
				g.Spec.CordonedNodes = []string{former}
				csitest.Must(t, w.API.Update(t.Context(), g))
				w.Poll()
			}
			w.GivesUp(v, former)
			csitest.Must(t, w.Delete("pvc-1"))
			w.Poll() // a cordoned host is cleaned up
			w.Empty()
		})
	}
}

// TestADeviceWithoutProofKeepsItsVolume: escached asks the record itself, and what it says counts.
func TestADeviceWithoutProofKeepsItsVolume(t *testing.T) {
	w := newWorld(t)
	v, former, _ := w.Leftover("pvc-1")
	w.NotAsked(former)
	csitest.Wants(t, w.Delete("pvc-1"), codes.FailedPrecondition, former)
	if !w.Host(former).Has(csitest.Ref(v)) {
		t.Errorf("node %s has lost its replica", former)
	}
	w.Host(former).Supersede(csitest.Ref(v), 1)
	csitest.Must(t, w.Delete("pvc-1"))
	w.Empty()
}

// TestNobodyIsAskedForADeviceThatMayBeNeeded: a host that says that it has none, or whose device contradicts the record.
func TestNobodyIsAskedForADeviceThatMayBeNeeded(t *testing.T) {
	w := newWorld(t)
	w.UsedBefore("pvc-1")
	w.NotAsked("")
	csitest.Must(t, w.Delete("pvc-1"))
	v, former, _ := w.UsedBefore("pvc-2")
	w.Host(former).Supersede(csitest.Ref(v), 1)
	w.Host(former).Stage(csitest.Ref(v), csitest.OldClient, 1, escache.ModeWriteback)
	csitest.Wants(t, w.Delete("pvc-2"), codes.FailedPrecondition, former)
}

// TestAHostThatDiesWhenItIsAskedForItsDeviceDoesNotKeepTheVolume: its replica is removed when it is back.
func TestAHostThatDiesWhenItIsAskedForItsDeviceDoesNotKeepTheVolume(t *testing.T) {
	w := newWorld(t)
	_, former, _ := w.Leftover("pvc-1")
	w.Host(former).Before("POST "+escache.PathAbandon, w.Host(former).Stop)
	csitest.Must(t, w.Delete("pvc-1"))
	group, err := w.Group()
	csitest.Must(t, err)
	if s := group.Status.StaleReplicas; len(s) != 1 || s[0].Node != former {
		t.Errorf("stale replicas %+v", s)
	}
}
