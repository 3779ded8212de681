package attachment_test

import (
	"slices"
	"testing"

	"google.golang.org/grpc/codes"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

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

// takenWhileItLives makes the drained volume pvc-1, which Kubernetes has taken from a node whose host lives: its kubelet did
// not answer. The device of the fenced client is still there, and Ceph has everything.
func (w *world) takenWhileItLives() (v *v1alpha1.CacheVolume, node string) {
	w.T.Helper()
	v = w.Create("pvc-1")
	node = v.Spec.Replicas[0]
	_, err := w.Publish("pvc-1", node)
	csitest.Must(w.T, err)
	w.Host(node).Stage(csitest.Ref(v), csitest.OldClient, 1, escache.ModeWritethrough)
	v = w.Volume("pvc-1")
	v.Status.Authority, v.Status.ClientAddress = v1alpha1.AuthorityCeph, csitest.OldClient
	v.Status.WriteThrough = []v1alpha1.WriteThroughClaim{{Owner: v1alpha1.FlushOwner("f"), Epoch: 1, Since: metav1.Now()}}
	csitest.Must(w.T, w.API.Status().Update(w.T.Context(), v))
	w.Taint(node)
	csitest.Must(w.T, w.Unpublish("pvc-1", node))
	w.untaint(node)
	w.Poll()
	if s := w.Volume("pvc-1").Status; s.AttachedNode != "" || s.Authority != v1alpha1.AuthorityCeph || len(s.Fenced) == 0 {
		w.T.Fatalf("status %+v", s)
	}
	return v, node
}

// TestANodeThatGetsAVolumeAgainGivesItsOldDeviceUpFirst: its replica is to be created anew. Once the volume is the node's on
// record, nobody can prove that the device is left over.
func TestANodeThatGetsAVolumeAgainGivesItsOldDeviceUpFirst(t *testing.T) {
	for what, leave := range map[string]func(w *world, v *v1alpha1.CacheVolume, node string){
		"another host stands in for its partner": func(w *world, v *v1alpha1.CacheVolume, _ string) { w.cordon(v.Spec.Replicas[1]) },
		"its own replica is old":                 func(w *world, _ *v1alpha1.CacheVolume, node string) { w.outdate("pvc-1", node) },
	} {
		for by, proves := range map[string]bool{"csi-controller": true, "csi-node": false} {
			t.Run(what+", "+by, func(t *testing.T) {
				w := newWorld(t)
				v, node := w.takenWhileItLives()
				leave(w, v, node)
				if proves {
					w.Host(node).Supersede(csitest.Ref(v), 1)
				} else {
					_, err := w.Publish("pvc-1", node)
					csitest.Wants(t, err, codes.Unavailable, node, "still has the device of an earlier attachment")
					if s := w.Volume("pvc-1").Status; s.AttachedNode != "" {
						t.Fatalf("nobody can remove the device any more: %+v", s)
					}
					w.Host(node).Release(csitest.Ref(v))
				}
				_, err := w.Publish("pvc-1", node)
				csitest.Must(t, err)
				if s := w.Host(node).Status(csitest.Ref(v)); s.Device != "" || s.State != escache.StateStandby {
					t.Errorf("%+v", s)
				}
			})
		}
	}
}

// TestANodeThatKeepsItsReplicaIsNotAskedForItsOldDevice: csi-node replaces the device when it stages the volume.
func TestANodeThatKeepsItsReplicaIsNotAskedForItsOldDevice(t *testing.T) {
	w := newWorld(t)
	v, node := w.takenWhileItLives()
	w.NotAsked("")
	_, err := w.Publish("pvc-1", node)
	csitest.Must(t, err)
	if s := w.Host(node).Status(csitest.Ref(v)); s.Device == "" || !slices.Equal(w.Volume("pvc-1").Spec.Replicas, v.Spec.Replicas) {
		t.Errorf("%+v", s)
	}
}
