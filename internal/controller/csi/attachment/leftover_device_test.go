package attachment_test

import (
	"slices"
	"testing"

	"google.golang.org/grpc/codes"

	"github.com/escache/escache-csi/api/escache"
	"github.com/escache/escache-csi/api/v1alpha1"
	"github.com/escache/escache-csi/test/csitest"
)

// TestALeftoverDeviceIsGivenUpAlthoughNothingWasFenced: nobody stages the volume there any more, so it would stay
// until the host is booted again. It keeps the image's lock, and its replica cannot be removed.
func TestALeftoverDeviceIsGivenUpAlthoughNothingWasFenced(t *testing.T) {
	for name, choose := range map[string]func(v *v1alpha1.CacheVolume, partner string) string{
		"for its partner":  func(_ *v1alpha1.CacheVolume, partner string) string { return partner },
		"for a third node": func(v *v1alpha1.CacheVolume, _ string) string { return csitest.Other(v) },
	} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t)
			v, former, partner := w.Leftover("pvc-1")
			node := choose(v, partner)
			w.Host(former).Supersede(csitest.Ref(v), 2) // the arbiter confirms it
			_, err := w.Publish("pvc-1", node)
			csitest.Must(t, err)
			if s := w.Host(former).Status(csitest.Ref(v)); s.Device != "" || w.Volume("pvc-1").Status.AttachedNode != node {
				t.Errorf("node %s still has the device: %+v", former, s)
			}
		})
	}
}

// TestALeftoverDeviceOfACallThatIsRepeatedIsGivenUp: the first call has put the node on record, and died.
func TestALeftoverDeviceOfACallThatIsRepeatedIsGivenUp(t *testing.T) {
	w := newWorld(t)
	v, former, partner := w.UsedBefore("pvc-1")
	died := w.Mortal(1)
	w.Restart()
	if _, err := w.Publish("pvc-1", partner); err == nil || !*died {
		t.Fatal("it does not die")
	}
	w.Cached = w.API
	w.Restart()
	w.Host(former).Stage(csitest.Ref(v), csitest.OldClient, 1, escache.ModeWritethrough) // it comes late
	w.Host(former).Supersede(csitest.Ref(v), 2)
	_, err := w.Publish("pvc-1", partner)
	csitest.Must(t, err)
	if s := w.Host(former).Status(csitest.Ref(v)); s.Device != "" {
		t.Errorf("node %s still has the device: %+v", former, s)
	}
}

// TestALeftoverDeviceStaysWithoutProof: escached asks the record itself, and the link says that it keeps the node
// out.
func TestALeftoverDeviceStaysWithoutProof(t *testing.T) {
	w := newWorld(t)
	v, former, partner := w.Leftover("pvc-1")
	w.Host(former).See(csitest.Ref(v), partner, escache.LinkConnected, escache.DiskUpToDate)
	_, err := w.Publish("pvc-1", partner)
	csitest.Wants(t, err, codes.Unavailable, former, "still has its device")
}

// TestAFencedClientOfNobodyKnownIsLookedForOnBothHosts: the entry does not say whose device it is.
func TestAFencedClientOfNobodyKnownIsLookedForOnBothHosts(t *testing.T) {
	w := newWorld(t)
	_, former, partner := w.UsedBefore("pvc-1")
	v := w.Volume("pvc-1")
	v.Status.Authority = v1alpha1.AuthorityCache // so that the partner takes it over, and nobody asks for leftovers
	v.Status.Fenced = []v1alpha1.FencedClient{{Address: csitest.OldClient, Epoch: 1}}
	csitest.Must(t, w.API.Status().Update(t.Context(), v))
	w.Host(former).Stage(csitest.Ref(v), csitest.OldClient, 1, escache.ModeWriteback)
	w.Host(former).Supersede(csitest.Ref(v), 2)
	_, err := w.Publish("pvc-1", partner)
	csitest.Must(t, err)
	if s := w.Host(former).Status(csitest.Ref(v)); s.Device != "" || !slices.Equal(w.Volume("pvc-1").Spec.Replicas, v.Spec.Replicas) {
		t.Errorf("node %s still has the device: %+v", former, s)
	}
}
