package drain_test

import (
	"context"
	"testing"

	"google.golang.org/grpc/codes"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/escache/escache-csi/api/escache"
	"github.com/escache/escache-csi/api/v1alpha1"
	"github.com/escache/escache-csi/test/csitest"
)

// takenDrained makes a drained volume that was taken by force from a holder that lives: its kubelet is
// dead, its host is not. Ceph has everything.
func (w *world) takenDrained(id string) (v *v1alpha1.CacheVolume, holder, partner string) {
	w.T.Helper()
	v = w.Create(id)
	holder, partner = v.Spec.Replicas[0], v.Spec.Replicas[1]
	_, err := w.Publish(id, holder)
	csitest.Must(w.T, err)
	w.Host(holder).Stage(csitest.Ref(v), csitest.OldClient, 1, escache.ModeWritethrough)
	v = w.Volume(id)
	v.Status.Authority, v.Status.ClientAddress = v1alpha1.AuthorityCeph, csitest.OldClient
	v.Status.WriteThrough = []v1alpha1.WriteThroughClaim{{Owner: "somebody", Epoch: 1}}
	csitest.Must(w.T, w.API.Status().Update(context.Background(), v))
	w.Taint(holder)
	csitest.Must(w.T, w.Unpublish(id, holder))
	v = w.Volume(id)
	if s := v.Status; s.AttachedNode != "" || s.Authority != v1alpha1.AuthorityCeph || len(s.Fenced) != 1 {
		w.T.Fatalf("status %+v", s)
	}
	return v, holder, partner
}

// TestADrainedVolumeIsUsableWhileItsFormerHolderLives: Ceph has everything, so the device that the former
// holder still has keeps nobody out.
func TestADrainedVolumeIsUsableWhileItsFormerHolderLives(t *testing.T) {
	linked := func(w *world, v *v1alpha1.CacheVolume, holder, partner string) {
		w.Host(holder).Change(csitest.Ref(v), func(s *escache.VolumeStatus) {
			s.Peers = []escache.Peer{{Name: partner, ConnectionState: escache.LinkConnected, DiskState: escache.DiskUpToDate}}
		})
	}
	t.Run("on its partner", func(t *testing.T) {
		w := newWorld(t)
		v, holder, partner := w.takenDrained("pvc-1")
		linked(w, v, holder, partner)
		w.Host(holder).Supersede(csitest.Ref(v), 2)
		_, err := w.Publish("pvc-1", partner)
		csitest.Must(t, err)
		if s := w.Host(holder).Status(csitest.Ref(v)); s.Device != "" {
			t.Errorf("node %s still has the device: %+v", holder, s)
		}
	})
	t.Run("on a third node", func(t *testing.T) {
		w := newWorld(t)
		v, holder, _ := w.takenDrained("pvc-1")
		w.Host(holder).Supersede(csitest.Ref(v), 2)
		_, err := w.Publish("pvc-1", csitest.Other(v))
		csitest.Must(t, err)
		if now := w.Volume("pvc-1"); !now.Spec.HasReplica(csitest.Other(v)) || now.Status.AttachedNode != csitest.Other(v) {
			t.Errorf("record %+v %+v", now.Spec, now.Status)
		}
	})
	t.Run("but not on its partner while the device keeps that out", func(t *testing.T) {
		w := newWorld(t)
		v, holder, partner := w.takenDrained("pvc-1")
		linked(w, v, holder, partner)
		_, err := w.Publish("pvc-1", partner)
		csitest.Wants(t, err, codes.Unavailable, holder, "still has its device")
	})
}

// TestADeviceThatWasGivenUpAndIsStillOpenKeepsNobodyOut: nobody unmounts it while the kubelet is dead. All
// its I/O fails, and its link is down.
func TestADeviceThatWasGivenUpAndIsStillOpenKeepsNobodyOut(t *testing.T) {
	for name, choose := range map[string]func(v *v1alpha1.CacheVolume, partner string) string{
		"on its partner":  func(_ *v1alpha1.CacheVolume, partner string) string { return partner },
		"on a third node": func(v *v1alpha1.CacheVolume, _ string) string { return csitest.Other(v) },
	} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t)
			v, holder, partner := w.takenDrained("pvc-1")
			w.Host(holder).Supersede(csitest.Ref(v), 2)
			mounted, err := w.Host(holder).Open(t.Context(), w.Host(holder).Status(csitest.Ref(v)).Device)
			csitest.Must(t, err)
			_, err = w.Publish("pvc-1", choose(v, partner))
			csitest.Must(t, err)
			now := w.Volume("pvc-1")
			if now.Spec.HasReplica(holder) || !w.Fleet.On(csitest.Ref(v))[partner] || !w.Fleet.On(csitest.Ref(v))[csitest.Other(v)] {
				t.Errorf("replicas on %v, by the record on %v", w.Fleet.On(csitest.Ref(v)), now.Spec.Replicas)
			}
			group := &v1alpha1.NodeGroup{}
			csitest.Must(t, w.API.Get(t.Context(), client.ObjectKey{Name: "g1"}, group))
			if s := group.Status.StaleReplicas; len(s) != 1 || s[0].Node != holder {
				t.Fatalf("to clean up: %+v", s)
			}
			// Somebody closes it, and the host finishes what was decided.
			csitest.Must(t, mounted.Close())
			csitest.Must(t, w.Host(holder).Abandon(t.Context(), escache.AbandonRequest{VolumeRef: csitest.Ref(v), Epoch: 2}))
			w.Poll()
			csitest.Must(t, w.API.Get(t.Context(), client.ObjectKey{Name: "g1"}, group))
			if w.Host(holder).Has(csitest.Ref(v)) || len(group.Status.StaleReplicas) > 0 {
				t.Errorf("left on %s: %+v", holder, group.Status.StaleReplicas)
			}
		})
	}
}
