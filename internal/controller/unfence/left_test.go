package unfence_test

import (
	"slices"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/escache/escache-csi/api/v1alpha1"
	"github.com/escache/escache-csi/internal/authority"
	"github.com/escache/escache-csi/internal/controller/volumes"
	"github.com/escache/escache-csi/test/csitest"
)

// deletedFenced deletes a clean volume of which a host that was cut off still has the device, and whose client was fenced
// an hour ago.
func (w *world) deletedFenced(id string) (v *v1alpha1.CacheVolume, dead string) {
	w.T.Helper()
	_, dead, _ = w.Leftover(id)
	v = w.Volume(id)
	v.Status.Fenced = []v1alpha1.FencedClient{{
		Node: dead, HostID: v.Status.HostID(dead), Address: csitest.OldClient, Epoch: 1, Time: metav1.NewTime(time.Now().Add(-time.Hour)),
	}}
	csitest.Must(w.T, w.API.Status().Update(w.T.Context(), v))
	csitest.Must(w.T, w.Images.Fence(w.T.Context(), "", csitest.OldClient, authority.FenceSeconds*time.Second))
	w.Host(dead).Stop()
	w.Poll()
	csitest.Must(w.T, w.Delete(id))
	return v, dead
}

// left does what csi-controller does every few seconds, and returns who is fenced and on the group's list then.
func (w *world) left() (blocked []string, listed []v1alpha1.LeftFence) {
	w.T.Helper()
	w.Poll()
	csitest.Must(w.T, w.Locked.KeepFenced(w.T.Context()))
	csitest.Must(w.T, w.Locked.UnfenceLeft(w.T.Context()))
	g, err := w.Group()
	csitest.Must(w.T, err)
	return w.Images.Fenced, g.Status.LeftFences
}

func (w *world) staysFenced(when string) {
	w.T.Helper()
	if blocked, listed := w.left(); !slices.Equal(blocked, []string{csitest.OldClient}) || len(listed) != 1 {
		w.T.Errorf("%s: fenced %v, on the list %+v", when, blocked, listed)
	}
}

// TestTheFenceOfADeletedVolumeIsLifted once the host that was cut off has been booted. The record was the only place that
// knew the client.
func TestTheFenceOfADeletedVolumeIsLifted(t *testing.T) {
	w := newWorld(t)
	v, dead := w.deletedFenced("pvc-1")
	w.staysFenced("its host is silent")
	w.Host(dead).Restart(t)
	w.staysFenced("its host still has the device")
	w.Host(dead).Release(csitest.Ref(v)) // a reboot
	w.Poll()
	w.Images.Fail = volumes.ErrUnavailable
	if err := w.Locked.UnfenceLeft(t.Context()); err == nil {
		t.Error("forgotten while Ceph does not answer")
	}
	w.Images.Fail = nil
	if blocked, listed := w.left(); len(blocked)+len(listed) > 0 {
		t.Errorf("fenced %v, on the list %+v", blocked, listed)
	}
	w.Empty()
}

// TestAnotherMachineDoesNotLiftTheFenceOfADeletedVolume: it knows nothing of the old one's map.
func TestAnotherMachineDoesNotLiftTheFenceOfADeletedVolume(t *testing.T) {
	w := newWorld(t)
	v, dead := w.deletedFenced("pvc-1")
	g, err := w.Group()
	csitest.Must(t, err)
	g.Status.LeftFences[0].Client.HostID = "disks-of-another"
	csitest.Must(t, w.API.Status().Update(t.Context(), g))
	w.Host(dead).Restart(t)
	w.Host(dead).Release(csitest.Ref(v))
	w.staysFenced("the host is another machine")
}

// TestTheFenceOfADeletedVolumeWithoutAReplicaIsLifted: the node had it without a cache.
func TestTheFenceOfADeletedVolumeWithoutAReplicaIsLifted(t *testing.T) {
	w := newWorld(t)
	v := w.UsedOnce("pvc-1")
	elsewhere := csitest.Other(v)
	v.Status.Fenced = []v1alpha1.FencedClient{
		{Node: elsewhere, Address: csitest.OldClient, Epoch: 1, Time: metav1.NewTime(time.Now().Add(-time.Hour))},
		{Address: "10.9.9.9:0/9", Epoch: 1}, // of nobody known
	}
	csitest.Must(t, w.API.Status().Update(t.Context(), v))
	csitest.Must(t, w.Images.Fence(t.Context(), "", csitest.OldClient, authority.FenceSeconds*time.Second))
	w.Host(elsewhere).Stop()
	csitest.Must(t, w.Delete("pvc-1"))
	w.staysFenced("its host is silent")
	w.Host(elsewhere).Restart(t)
	if blocked, listed := w.left(); len(blocked)+len(listed) > 0 {
		t.Errorf("fenced %v, on the list %+v", blocked, listed)
	}
}
