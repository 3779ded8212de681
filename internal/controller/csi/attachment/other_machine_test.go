package attachment_test

import (
	"context"
	"slices"
	"testing"

	"github.com/escache/escache-csi/api/escache"
	"github.com/escache/escache-csi/api/v1alpha1"
	"github.com/escache/escache-csi/test/csitest"
)

// TestAnotherMachineDoesNotEndAFence: a machine that was installed under the name of a dead host
// has no map of the volume. That says nothing of the first machine, which may still have its own.
func TestAnotherMachineDoesNotEndAFence(t *testing.T) {
	w := newWorld(t)
	_, dead, partner := w.Fenced("pvc-1")
	_, err := w.Publish("pvc-1", partner)
	csitest.Must(t, err)
	w.Host(dead).Replace()
	if left := w.Lift("pvc-1"); !slices.Contains(left, csitest.OldClient) {
		t.Error("lifted on the word of another machine")
	}
	// Once the other copy is written back, no replica is expected of the new machine any more.
	w.Host(partner).Write(csitest.Ref(w.Volume("pvc-1")), 0)
	csitest.Must(t, w.Unpublish("pvc-1", partner))
	if left := w.Lift("pvc-1"); !slices.Contains(left, csitest.OldClient) {
		t.Error("lifted on the word of another machine, with the truth in Ceph")
	}
}

// TestAnotherHostsAnswerDoesNotSettle: two hosts have exchanged their addresses, or one got the
// address that the other had. A clean standby of the one is not the other's.
func TestAnotherHostsAnswerDoesNotSettle(t *testing.T) {
	w := newWorld(t)
	v, dead, survivor, third := w.PowerLoss("pvc-1")
	w.Host(survivor).Write(csitest.Ref(v), 0)
	w.Host(dead).Restart(t)
	w.Host(dead).GiveAddressTo(w.Host(survivor))
	out, err := w.Publish("pvc-1", third)
	csitest.Must(t, err)
	if out[v1alpha1.PublishContextEpoch] != "3" { // the lost one, the flush's, the pod's
		t.Errorf("%s has not written its copy back first, and %s has not answered: %v", survivor, dead, out)
	}
}

// TestAForcedDetachIsNotSparedByAnotherHost: the standby that answers in the holder's place has no
// device, and the holder has one.
func TestAForcedDetachIsNotSparedByAnotherHost(t *testing.T) {
	w := newWorld(t)
	v := w.Create("pvc-1")
	holder, partner := v.Spec.Replicas[0], v.Spec.Replicas[1]
	_, err := w.Publish("pvc-1", holder)
	csitest.Must(t, err)
	w.Host(holder).Connect(csitest.Ref(v), csitest.OldClient)
	v = w.Volume("pvc-1")
	v.Status.ClientAddress = csitest.OldClient
	csitest.Must(t, w.API.Status().Update(context.Background(), v))
	w.Host(holder).GiveAddressTo(w.Host(partner))
	w.Taint(holder)
	csitest.Must(t, w.Unpublish("pvc-1", holder))
	if !slices.Contains(w.Images.Fenced, csitest.OldClient) {
		t.Errorf("fenced %v: the holder still has its map", w.Images.Fenced)
	}
}

// TestAReplicaOnAnotherMachineIsNotACopy: the partner's name and a replica are on another machine
// than when the volume was attached, for example on a clone of its disks.
func TestAReplicaOnAnotherMachineIsNotACopy(t *testing.T) {
	w := newWorld(t)
	v, dead, survivor, _ := w.PowerLoss("pvc-1")
	if recorded := v.Status.Hosts; len(recorded) != 2 || v.Status.HostID(dead) == "" || v.Status.HostID(survivor) == "" {
		t.Fatalf("on record are the machines %+v", recorded)
	}
	w.Reinstall(dead)
	w.Host(dead).Replace()
	layAsOn(w, dead, v)
	_, err := w.Publish("pvc-1", survivor)
	csitest.Must(t, err)
	s := w.Volume("pvc-1").Status
	if !s.IsOutdated(dead) || s.AttachedNode != survivor || s.HostID(dead) == v.Status.HostID(dead) {
		t.Errorf("status %+v", s)
	}
}

// layAsOn puts a replica with the record's parameters on a host.
func layAsOn(w *world, host string, v *v1alpha1.CacheVolume) {
	w.T.Helper()
	request := escache.ReplicaRequest{
		VolumeRef: csitest.Ref(v), ImageID: v.Status.ImageID, SizeBytes: v.Spec.SizeBytes, CacheBytes: v.Spec.CacheBytes,
		Port: int(v.Spec.Port), Minor: int(v.Spec.Minor),
	}
	for _, node := range slices.Sorted(slices.Values(v.Spec.Replicas)) {
		request.Nodes = append(request.Nodes, escache.ReplicaNode{Name: node, Address: w.Fleet.Node(node).Status.Addresses[0].Address})
	}
	csitest.Must(w.T, w.Host(host).Lay(request))
}

// TestAnOldReplicaOnAnotherMachineIsCreatedAgain: a host was away for long, and another machine had its name meanwhile. It
// comes back with a replica that is dirty from an attachment of long ago. Everything is in Ceph since.
func TestAnOldReplicaOnAnotherMachineIsCreatedAgain(t *testing.T) {
	for name, tc := range map[string]struct{ toPartner, cordoned, third bool }{
		"the volume goes to that host":              {toPartner: true},
		"the volume goes to the other host":         {},
		"the host is cordoned":                      {cordoned: true},
		"the volume goes to a host without replica": {third: true},
	} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t)
			v, holder, back := w.UsedBefore("pvc-1")
			w.Host(back).Replace()
			if w.Host(back).Has(csitest.Ref(v)) {
				t.Fatal("the other machine has a replica already")
			}
			layAsOn(w, back, v)
			w.Host(back).Write(csitest.Ref(v), csitest.DirtyBytes)
			node := holder
			switch {
			case tc.toPartner:
				node = back
			case tc.third:
				node = csitest.Other(v)
			case tc.cordoned:
				w.cordon(back)
			}
			_, err := w.Publish("pvc-1", node)
			csitest.Must(t, err)
			_, err = w.Publish("pvc-1", node) // as after a timeout
			csitest.Must(t, err)
			now := w.Volume("pvc-1")
			if now.Spec.HasReplica(back) && w.Holds(back, v) {
				t.Errorf("%s goes on with what it had before", back)
			}
			if id := now.Status.HostID(back); now.Spec.HasReplica(back) && id != w.Host(back).Status(csitest.Ref(v)).HostID {
				t.Errorf("on record is the machine %s", id)
			}
		})
	}
}
