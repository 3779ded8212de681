package csi_test

import (
	"slices"
	"testing"

	"google.golang.org/grpc/codes"

	"github.com/escache/escache-csi/api/escache"
	"github.com/escache/escache-csi/api/v1alpha1"
)

// leftover makes a clean, detached volume of which a host still has the device of an attachment that ended. No
// client of it was fenced.
func (w *world) leftover(id string) (v *v1alpha1.CacheVolume, former, partner string) {
	w.t.Helper()
	v, former, partner = w.usedBefore(id)
	w.host(former).Stage(ref(v), oldClient, 1, escache.ModeWritethrough)
	if s := w.volume(id).Status; s.AttachedNode != "" || len(s.Fenced) > 0 {
		w.t.Fatalf("status %+v", s)
	}
	return v, former, partner
}

// TestALeftoverDeviceIsGivenUpAlthoughNothingWasFenced: nobody stages the volume there any more, so it would stay
// until the host is booted again. It keeps the image's lock, and its replica cannot be removed.
func TestALeftoverDeviceIsGivenUpAlthoughNothingWasFenced(t *testing.T) {
	for name, choose := range map[string]func(v *v1alpha1.CacheVolume, partner string) string{
		"for its partner":  func(_ *v1alpha1.CacheVolume, partner string) string { return partner },
		"for a third node": func(v *v1alpha1.CacheVolume, _ string) string { return other(v) },
	} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t)
			v, former, partner := w.leftover("pvc-1")
			node := choose(v, partner)
			w.host(former).Supersede(ref(v), 2) // the arbiter confirms it
			_, err := w.publish("pvc-1", node)
			must(t, err)
			if s := w.host(former).Status(ref(v)); s.Device != "" || w.volume("pvc-1").Status.AttachedNode != node {
				t.Errorf("node %s still has the device: %+v", former, s)
			}
		})
	}
}

// TestALeftoverDeviceOfACallThatIsRepeatedIsGivenUp: the first call has put the node on record, and died.
func TestALeftoverDeviceOfACallThatIsRepeatedIsGivenUp(t *testing.T) {
	w := newWorld(t)
	v, former, partner := w.usedBefore("pvc-1")
	died := w.mortal(1)
	w.restart()
	if _, err := w.publish("pvc-1", partner); err == nil || !*died {
		t.Fatal("it does not die")
	}
	w.cached = w.api
	w.restart()
	w.host(former).Stage(ref(v), oldClient, 1, escache.ModeWritethrough) // it comes late
	w.host(former).Supersede(ref(v), 2)
	_, err := w.publish("pvc-1", partner)
	must(t, err)
	if s := w.host(former).Status(ref(v)); s.Device != "" {
		t.Errorf("node %s still has the device: %+v", former, s)
	}
}

// TestALeftoverDeviceStaysWithoutProof: escached asks the record itself, and the link says that it keeps the node
// out.
func TestALeftoverDeviceStaysWithoutProof(t *testing.T) {
	w := newWorld(t)
	v, former, partner := w.leftover("pvc-1")
	w.host(former).See(ref(v), partner, escache.LinkConnected, escache.DiskUpToDate)
	_, err := w.publish("pvc-1", partner)
	wants(t, err, codes.Unavailable, former, "still has its device")
}

// TestAFencedClientOfNobodyKnownIsLookedForOnBothHosts: the entry does not say whose device it is.
func TestAFencedClientOfNobodyKnownIsLookedForOnBothHosts(t *testing.T) {
	w := newWorld(t)
	_, former, partner := w.usedBefore("pvc-1")
	v := w.volume("pvc-1")
	v.Status.Authority = v1alpha1.AuthorityCache // so that the partner takes it over, and nobody asks for leftovers
	v.Status.Fenced = []v1alpha1.FencedClient{{Address: oldClient, Epoch: 1}}
	must(t, w.api.Status().Update(t.Context(), v))
	w.host(former).Stage(ref(v), oldClient, 1, escache.ModeWriteback)
	w.host(former).Supersede(ref(v), 2)
	_, err := w.publish("pvc-1", partner)
	must(t, err)
	if s := w.host(former).Status(ref(v)); s.Device != "" || !slices.Equal(w.volume("pvc-1").Spec.Replicas, v.Spec.Replicas) {
		t.Errorf("node %s still has the device: %+v", former, s)
	}
}
