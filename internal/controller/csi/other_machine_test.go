package csi_test

import (
	"context"
	"slices"
	"testing"

	"github.com/escache/escache-csi/api/escache"
	"github.com/escache/escache-csi/api/v1alpha1"
)

// TestAnotherMachineDoesNotEndAFence: a machine that was installed under the name of a dead host
// has no map of the volume. That says nothing of the first machine, which may still have its own.
func TestAnotherMachineDoesNotEndAFence(t *testing.T) {
	w := newWorld(t)
	_, dead, partner := w.fenced("pvc-1")
	_, err := w.publish("pvc-1", partner)
	must(t, err)
	w.host(dead).Replace()
	if left := w.lift("pvc-1"); !slices.Contains(left, oldClient) {
		t.Error("lifted on the word of another machine")
	}
	// Once the other copy is written back, no replica is expected of the new machine any more.
	w.host(partner).Write(ref(w.volume("pvc-1")), 0)
	must(t, w.unpublish("pvc-1", partner))
	if left := w.lift("pvc-1"); !slices.Contains(left, oldClient) {
		t.Error("lifted on the word of another machine, with the truth in Ceph")
	}
}

// TestAnotherHostsAnswerDoesNotSettle: two hosts have exchanged their addresses, or one got the
// address that the other had. A clean standby of the one is not the other's.
func TestAnotherHostsAnswerDoesNotSettle(t *testing.T) {
	w := newWorld(t)
	v, dead, survivor, third := w.powerLoss("pvc-1")
	w.host(survivor).Write(ref(v), 0)
	w.host(dead).Restart(t)
	w.host(dead).GiveAddressTo(w.host(survivor))
	out, err := w.publish("pvc-1", third)
	must(t, err)
	if out[v1alpha1.PublishContextEpoch] != "3" { // the lost one, the flush's, the pod's
		t.Errorf("%s has not written its copy back first, and %s has not answered: %v", survivor, dead, out)
	}
}

// TestAForcedDetachIsNotSparedByAnotherHost: the standby that answers in the holder's place has no
// device, and the holder has one.
func TestAForcedDetachIsNotSparedByAnotherHost(t *testing.T) {
	w := newWorld(t)
	v := w.create("pvc-1")
	holder, partner := v.Spec.Replicas[0], v.Spec.Replicas[1]
	_, err := w.publish("pvc-1", holder)
	must(t, err)
	w.host(holder).Connect(ref(v), oldClient)
	v = w.volume("pvc-1")
	v.Status.ClientAddress = oldClient
	must(t, w.api.Status().Update(context.Background(), v))
	w.host(holder).GiveAddressTo(w.host(partner))
	w.taint(holder)
	must(t, w.unpublish("pvc-1", holder))
	if !slices.Contains(w.images.fenced, oldClient) {
		t.Errorf("fenced %v: the holder still has its map", w.images.fenced)
	}
}

// TestAReplicaOnAnotherMachineIsNotACopy: the partner's name and a replica are on another machine
// than when the volume was attached, for example on a clone of its disks.
func TestAReplicaOnAnotherMachineIsNotACopy(t *testing.T) {
	w := newWorld(t)
	v, dead, survivor, _ := w.powerLoss("pvc-1")
	if recorded := v.Status.Hosts; len(recorded) != 2 || v.Status.HostID(dead) == "" || v.Status.HostID(survivor) == "" {
		t.Fatalf("on record are the machines %+v", recorded)
	}
	w.reinstall(dead)
	w.host(dead).Replace()
	request := escache.ReplicaRequest{
		VolumeRef: ref(v), ImageID: v.Status.ImageID, SizeBytes: v.Spec.SizeBytes, CacheBytes: v.Spec.CacheBytes,
		Port: int(v.Spec.Port), Minor: int(v.Spec.Minor),
	}
	for _, node := range slices.Sorted(slices.Values(v.Spec.Replicas)) {
		request.Nodes = append(request.Nodes, escache.ReplicaNode{Name: node, Address: w.fleet.Node(node).Status.Addresses[0].Address})
	}
	must(t, w.host(dead).Lay(request))
	_, err := w.publish("pvc-1", survivor)
	must(t, err)
	s := w.volume("pvc-1").Status
	if !s.IsOutdated(dead) || s.AttachedNode != survivor || s.HostID(dead) == v.Status.HostID(dead) {
		t.Errorf("status %+v", s)
	}
}
