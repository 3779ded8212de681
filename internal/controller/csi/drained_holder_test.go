package csi_test

import (
	"context"
	"testing"

	"google.golang.org/grpc/codes"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/escache/escache-csi/api/escache"
	"github.com/escache/escache-csi/api/v1alpha1"
)

// takenDrained makes a drained volume that was taken by force from a holder that lives: its kubelet is
// dead, its host is not. Ceph has everything.
func (w *world) takenDrained(id string) (v *v1alpha1.CacheVolume, holder, partner string) {
	w.t.Helper()
	v = w.create(id)
	holder, partner = v.Spec.Replicas[0], v.Spec.Replicas[1]
	_, err := w.publish(id, holder)
	must(w.t, err)
	w.host(holder).Stage(ref(v), oldClient, 1, escache.ModeWritethrough)
	v = w.volume(id)
	v.Status.Authority, v.Status.ClientAddress = v1alpha1.AuthorityCeph, oldClient
	v.Status.WriteThrough = []v1alpha1.WriteThroughClaim{{Owner: "somebody", Epoch: 1}}
	must(w.t, w.api.Status().Update(context.Background(), v))
	w.taint(holder)
	must(w.t, w.unpublish(id, holder))
	v = w.volume(id)
	if s := v.Status; s.AttachedNode != "" || s.Authority != v1alpha1.AuthorityCeph || len(s.Fenced) != 1 {
		w.t.Fatalf("status %+v", s)
	}
	return v, holder, partner
}

// TestADrainedVolumeIsUsableWhileItsFormerHolderLives: Ceph has everything, so the device that the former
// holder still has keeps nobody out.
func TestADrainedVolumeIsUsableWhileItsFormerHolderLives(t *testing.T) {
	linked := func(w *world, v *v1alpha1.CacheVolume, holder, partner string) {
		w.host(holder).Change(ref(v), func(s *escache.VolumeStatus) {
			s.Peers = []escache.Peer{{Name: partner, ConnectionState: escache.LinkConnected, DiskState: escache.DiskUpToDate}}
		})
	}
	t.Run("on its partner", func(t *testing.T) {
		w := newWorld(t)
		v, holder, partner := w.takenDrained("pvc-1")
		linked(w, v, holder, partner)
		w.host(holder).Supersede(ref(v), 2)
		_, err := w.publish("pvc-1", partner)
		must(t, err)
		if s := w.host(holder).Status(ref(v)); s.Device != "" {
			t.Errorf("node %s still has the device: %+v", holder, s)
		}
	})
	t.Run("on a third node", func(t *testing.T) {
		w := newWorld(t)
		v, holder, _ := w.takenDrained("pvc-1")
		w.host(holder).Supersede(ref(v), 2)
		_, err := w.publish("pvc-1", other(v))
		must(t, err)
		if now := w.volume("pvc-1"); !now.Spec.HasReplica(other(v)) || now.Status.AttachedNode != other(v) {
			t.Errorf("record %+v %+v", now.Spec, now.Status)
		}
	})
	t.Run("but not on its partner while the device keeps that out", func(t *testing.T) {
		w := newWorld(t)
		v, holder, partner := w.takenDrained("pvc-1")
		linked(w, v, holder, partner)
		_, err := w.publish("pvc-1", partner)
		wants(t, err, codes.Unavailable, holder, "still has its device")
	})
}

// TestADeviceThatWasGivenUpAndIsStillOpenKeepsNobodyOut: nobody unmounts it while the kubelet is dead. All
// its I/O fails, and its link is down.
func TestADeviceThatWasGivenUpAndIsStillOpenKeepsNobodyOut(t *testing.T) {
	for name, choose := range map[string]func(v *v1alpha1.CacheVolume, partner string) string{
		"on its partner":  func(_ *v1alpha1.CacheVolume, partner string) string { return partner },
		"on a third node": func(v *v1alpha1.CacheVolume, _ string) string { return other(v) },
	} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t)
			v, holder, partner := w.takenDrained("pvc-1")
			w.host(holder).Supersede(ref(v), 2)
			mounted, err := w.host(holder).Open(t.Context(), w.host(holder).Status(ref(v)).Device)
			must(t, err)
			_, err = w.publish("pvc-1", choose(v, partner))
			must(t, err)
			now := w.volume("pvc-1")
			if now.Spec.HasReplica(holder) || !w.fleet.On(ref(v))[partner] || !w.fleet.On(ref(v))[other(v)] {
				t.Errorf("replicas on %v, by the record on %v", w.fleet.On(ref(v)), now.Spec.Replicas)
			}
			group := &v1alpha1.NodeGroup{}
			must(t, w.api.Get(t.Context(), client.ObjectKey{Name: "g1"}, group))
			if s := group.Status.StaleReplicas; len(s) != 1 || s[0].Node != holder {
				t.Fatalf("to clean up: %+v", s)
			}
			// Somebody closes it, and the host finishes what was decided.
			must(t, mounted.Close())
			must(t, w.host(holder).Abandon(t.Context(), escache.AbandonRequest{VolumeRef: ref(v), Epoch: 2}))
			w.poll()
			must(t, w.api.Get(t.Context(), client.ObjectKey{Name: "g1"}, group))
			if w.host(holder).Has(ref(v)) || len(group.Status.StaleReplicas) > 0 {
				t.Errorf("left on %s: %+v", holder, group.Status.StaleReplicas)
			}
		})
	}
}
