package unfence_test

import (
	"context"
	"slices"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/escache/escache-csi/api/escache"
	"github.com/escache/escache-csi/api/v1alpha1"
	"github.com/escache/escache-csi/internal/controller/volumes"
	"github.com/escache/escache-csi/test/csitest"
)

// connecting makes a volume that was taken by force from a node whose dev_connect had begun and had not
// mapped the image yet: nobody knew a client of that node.
func (w *world) connecting(id string) (v *v1alpha1.CacheVolume, dead, partner string) {
	w.T.Helper()
	v = w.Create(id)
	dead, partner = v.Spec.Replicas[0], v.Spec.Replicas[1]
	_, err := w.Publish(id, dead)
	csitest.Must(w.T, err)
	w.Host(dead).Stop()
	w.Taint(dead)
	w.Poll()
	csitest.Must(w.T, w.Unpublish(id, dead))
	return w.Volume(id), dead, partner
}

// clientAt is a Ceph client at the address of a host.
func (w *world) clientAt(node string) string {
	return w.Fleet.Node(node).Status.Addresses[0].Address + ":0/7"
}

func (w *world) open(v *v1alpha1.CacheVolume, clients ...string) {
	w.Images.Open[volumes.ImageOf(v)] = clients
}

// TestANodeOfWhichNoClientWasKnownMayStillMapTheImage: it was given up while it connected. Its map comes
// later. It would keep the next holder out, or write again when the entry that krbd makes for an hour is over.
func TestANodeOfWhichNoClientWasKnownMayStillMapTheImage(t *testing.T) {
	t.Run("before the next holder is chosen", func(t *testing.T) {
		w := newWorld(t)
		v, dead, partner := w.connecting("pvc-1")
		late := w.clientAt(dead)
		w.open(v, late)
		_, err := w.Publish("pvc-1", partner)
		csitest.Must(t, err)
		w.isFenced("pvc-1", dead, late)
	})
	t.Run("before somebody writes back for a third node", func(t *testing.T) {
		w := newWorld(t)
		v, dead, _ := w.connecting("pvc-1")
		late := w.clientAt(dead)
		w.open(v, late)
		_, err := w.Publish("pvc-1", csitest.Other(v))
		csitest.Must(t, err)
		w.isFenced("pvc-1", dead, late)
	})
	t.Run("after that", func(t *testing.T) {
		w := newWorld(t)
		v, dead, partner := w.connecting("pvc-1")
		_, err := w.Publish("pvc-1", partner)
		csitest.Must(t, err)
		late, holder := w.clientAt(dead), w.clientAt(partner)
		w.open(v, late, holder)
		csitest.Must(t, w.Locked.FenceLate(context.Background(), "pvc-1"))
		w.isFenced("pvc-1", dead, late)
		if slices.Contains(w.Images.Fenced, holder) {
			t.Errorf("the holder itself is fenced: %v", w.Images.Fenced)
		}
	})
	t.Run("after that, from an address that another volume's record tells", func(t *testing.T) {
		const late = "10.0.0.77:0/2"
		w := newWorld(t)
		v, dead, partner := w.connecting("pvc-1")
		second := w.Create("pvc-2")
		second.Status.AttachedNode, second.Status.ClientAddress = dead, "10.0.0.77:0/1"
		csitest.Must(t, w.API.Status().Update(t.Context(), second))
		_, err := w.Publish("pvc-1", partner)
		csitest.Must(t, err)
		w.open(v, late)
		csitest.Must(t, w.Locked.FenceLate(t.Context(), "pvc-1"))
		w.isFenced("pvc-1", dead, late)
	})
	t.Run("after the next holder's client is on record, whose lock it has broken", func(t *testing.T) {
		w := newWorld(t)
		v, dead, partner := w.connecting("pvc-1")
		_, err := w.Publish("pvc-1", partner)
		csitest.Must(t, err)
		late, holder := w.clientAt(dead), w.clientAt(partner)
		now := w.Volume("pvc-1")
		now.Status.ClientAddress = holder
		csitest.Must(t, w.API.Status().Update(t.Context(), now))
		w.open(v, late, holder)
		csitest.Must(t, w.Locked.FenceLate(t.Context(), "pvc-1"))
		w.isFenced("pvc-1", dead, late)
		if slices.Contains(w.Images.Fenced, holder) {
			t.Errorf("the holder itself is fenced: %v", w.Images.Fenced)
		}
	})
	t.Run("although its escached answered that there is no device", func(t *testing.T) {
		w := newWorld(t)
		v := w.Create("pvc-1")
		dead, partner := v.Spec.Replicas[0], v.Spec.Replicas[1]
		_, err := w.Publish("pvc-1", dead)
		csitest.Must(t, err)
		w.Taint(dead) // its kubelet is dead
		csitest.Must(t, w.Unpublish("pvc-1", dead))
		late := w.clientAt(dead)
		w.open(v, late)
		_, err = w.Publish("pvc-1", partner)
		csitest.Must(t, err)
		w.isFenced("pvc-1", dead, late)
	})
	t.Run("without a cache", func(t *testing.T) {
		w := newWorld(t)
		v := w.UsedOnce("pvc-1")
		_, err := w.Publish("pvc-1", "n9")
		csitest.Must(t, err)
		w.Host("n9").Stop()
		w.Taint("n9")
		csitest.Must(t, w.Unpublish("pvc-1", "n9"))
		late := w.clientAt("n9")
		w.open(v, late)
		_, err = w.Publish("pvc-1", v.Spec.Replicas[0])
		csitest.Must(t, err)
		w.isFenced("pvc-1", "n9", late)
	})
}

// isFenced fails unless the client is on the blocklist, and on record as the node's.
func (w *world) isFenced(id, node, client string) {
	w.T.Helper()
	entries := w.Volume(id).Status.Fenced
	known := slices.ContainsFunc(entries, func(c v1alpha1.FencedClient) bool { return c.Node == node && c.Address == client })
	if !known || !slices.Contains(w.Images.Fenced, client) {
		w.T.Errorf("%s of %s: fenced are %v, on record are %+v", client, node, w.Images.Fenced, entries)
	}
}

// TestANodeThatMayStillMapTheImageIsForgottenOnceItCannot: nothing of it is on the blocklist.
func TestANodeThatMayStillMapTheImageIsForgottenOnceItCannot(t *testing.T) {
	begin := func(t *testing.T) (w *world, v *v1alpha1.CacheVolume, dead, partner string) {
		t.Helper()
		w = newWorld(t)
		v, dead, partner = w.connecting("pvc-1")
		if f := v.Status.Fenced; len(f) != 1 || f[0].Node != dead || f[0].HostID == "" || f[0].Address != "" || f[0].Epoch != 1 {
			t.Fatalf("on record %+v", f)
		}
		return w, v, dead, partner
	}
	left := func(w *world, want int) {
		w.T.Helper()
		n, err := w.Locked.Unfence(w.T.Context(), "pvc-1")
		csitest.Must(w.T, err)
		if got := len(w.Volume("pvc-1").Status.Fenced); n != want || got != want || len(w.Images.Fenced) > 0 {
			w.T.Errorf("%d are left, on record are %d, want %d; on the blocklist are %v", n, got, want, w.Images.Fenced)
		}
	}
	age := func(w *world) {
		v := w.Volume("pvc-1")
		v.Status.Fenced[0].Time = metav1.NewTime(time.Now().Add(-time.Hour))
		csitest.Must(w.T, w.API.Status().Update(w.T.Context(), v))
	}
	t.Run("it answers, and a dev_connect may still run", func(t *testing.T) {
		w, _, dead, _ := begin(t)
		w.Host(dead).Restart(t)
		left(w, 1)
		age(w)
		left(w, 0)
	})
	t.Run("it was frozen in a dev_connect, which goes on", func(t *testing.T) {
		w, v, dead, _ := begin(t)
		w.Host(dead).Restart(t)
		going := func(on bool) {
			w.Host(dead).Change(csitest.Ref(v), func(s *escache.VolumeStatus) { s.Connecting = on })
		}
		going(true)
		age(w)
		left(w, 1)
		going(false)
		left(w, 0)
	})
	t.Run("it does not answer", func(t *testing.T) {
		w, _, _, _ := begin(t)
		age(w)
		left(w, 1)
	})
	t.Run("it has the device", func(t *testing.T) {
		w, v, dead, _ := begin(t)
		w.Host(dead).Restart(t)
		w.Host(dead).Connect(csitest.Ref(v), w.clientAt(dead))
		age(w)
		left(w, 1)
	})
	t.Run("its escached has confirmed a later attachment", func(t *testing.T) {
		w, _, dead, partner := begin(t)
		w.Host(dead).Restart(t)
		_, err := w.Publish("pvc-1", partner) // which refuses an older dev_connect from then on
		csitest.Must(t, err)
		left(w, 0)
	})
}

// TestANodeThatMayHaveMappedTheImageGivesItsDeviceUp: its dev_connect ended after it was fenced, and its
// csi-node does not run.
func TestANodeThatMayHaveMappedTheImageGivesItsDeviceUp(t *testing.T) {
	w := newWorld(t)
	v, late, partner := w.connecting("pvc-1")
	w.Host(late).Restart(t)
	w.Host(late).Stage(csitest.Ref(v), w.clientAt(late), 1, escache.ModeWriteback)
	w.Host(late).Supersede(csitest.Ref(v), 2)
	w.open(v, w.clientAt(late))
	_, err := w.Publish("pvc-1", partner)
	csitest.Must(t, err)
	if s := w.Host(late).Status(csitest.Ref(v)); s.Device != "" {
		t.Errorf("node %s still has the device: %+v", late, s)
	}
	w.isFenced("pvc-1", late, w.clientAt(late))
}

// TestAnAttachmentThatNeverReachedItsHostLeavesNobodyToFence: the host answers that it has nothing of the
// volume, so no dev_connect can succeed there.
func TestAnAttachmentThatNeverReachedItsHostLeavesNobodyToFence(t *testing.T) {
	w := newWorld(t)
	v, kept, _ := w.UsedBefore("pvc-1")
	w.Host(kept).Stop() // the poll has not noticed
	dead := w.Mortal(1)
	w.Restart()
	if _, err := w.Publish("pvc-1", csitest.Other(v)); err == nil || !*dead {
		t.Fatalf("died: %v: %v", *dead, err)
	}
	w.Cached = w.API
	w.Restart()
	csitest.Must(t, w.Unpublish("pvc-1", csitest.Other(v)))
	if s := w.Volume("pvc-1").Status; s.AttachedNode != "" || len(s.Fenced) > 0 {
		t.Errorf("status %+v", s)
	}
}
