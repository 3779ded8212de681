package attachment_test

import (
	"testing"

	"google.golang.org/grpc/codes"
	corev1 "k8s.io/api/core/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/escache/escache-csi/api/escache"
	"github.com/escache/escache-csi/internal/authority"
	"github.com/escache/escache-csi/test/csitest"
)

// cutOff makes the detached volume pvc-1. Its first holder was cut off and fenced, and has a frozen device and dirty data.
// The second one has taken the volume over since, and has written it back.
func (w *world) cutOff() (ref escache.VolumeRef, first, second string) {
	w.T.Helper()
	v := w.Create("pvc-1")
	ref, first, second = csitest.Ref(v), v.Spec.Replicas[0], v.Spec.Replicas[1]
	_, err := w.Publish("pvc-1", first)
	csitest.Must(w.T, err)
	w.Host(first).Stage(ref, csitest.OldClient, 1, escache.ModeWriteback)
	w.Host(first).Write(ref, csitest.DirtyBytes)
	v = w.Volume("pvc-1")
	v.Status.ClientAddress = csitest.OldClient
	csitest.Must(w.T, w.API.Status().Update(w.T.Context(), v))
	w.Taint(first)
	w.Host(first).Stop()
	w.Poll()
	csitest.Must(w.T, w.Unpublish("pvc-1", first))
	_, err = w.Publish("pvc-1", second)
	csitest.Must(w.T, err)
	w.outdate("pvc-1", first) // as the second one's arbiter does
	w.Host(second).Stage(ref, csitest.NewClient, 2, escache.ModeWriteback)
	w.Host(second).Release(ref)
	csitest.Must(w.T, w.Unpublish("pvc-1", second))
	return ref, first, second
}

// back plays the network of a host that can be reached again.
func (w *world) back(name string) {
	w.T.Helper()
	w.Host(name).Restart(w.T)
	w.untaint(name)
}

// untaint says of a node that it is in service again.
func (w *world) untaint(name string) {
	w.T.Helper()
	n := &corev1.Node{}
	csitest.Must(w.T, w.API.Get(w.T.Context(), client.ObjectKey{Name: name}, n))
	n.Spec.Taints = nil
	csitest.Must(w.T, w.API.Update(w.T.Context(), n))
}

// reached plays the network of a host that is back, and csi-node there: it has its escached give up the frozen device.
func (w *world) reached(name string, ref escache.VolumeRef) {
	w.T.Helper()
	w.back(name)
	host := w.Host(name)
	v, epoch := w.Volume("pvc-1"), host.Status(ref).Epoch
	if !authority.IsSuperseded(v, name, epoch) {
		w.T.Fatalf("the device of epoch %d is not superseded: %+v", epoch, v.Status)
	}
	host.Supersede(ref, v.Status.Epoch) // its arbiter reads that record
	if d := v.Status.Discarded; d != nil {
		host.Discard(ref, d.Epoch)
	}
	csitest.Must(w.T, host.Abandon(w.T.Context(), escache.AbandonRequest{VolumeRef: ref, Epoch: authority.GivenUpIn(v, epoch)}))
	w.Poll()
}

// discarded makes the detached volume pvc-1. Its holder was cut off with a frozen device and dirty data, which an operator has
// discarded.
func (w *world) discarded() (ref escache.VolumeRef, dead, partner string) {
	w.T.Helper()
	v, dead, partner := w.Lose("pvc-1")
	ref = csitest.Ref(v)
	w.Host(dead).Stage(ref, csitest.OldClient, 1, escache.ModeWriteback)
	_, err := w.Locked.Discard(w.T.Context(), w.DiscardRequest("pvc-1", 1))
	csitest.Must(w.T, err)
	return ref, dead, partner
}

// lostDevices are the ways in which a host that was cut off has lost a volume whose device it still has.
var lostDevices = map[string]func(w *world) (ref escache.VolumeRef, first, second string){
	"another host has taken the volume over and written it back": (*world).cutOff,
	"an operator has discarded what only it had":                 (*world).discarded,
}

// TestWhatAHostGaveUpWhileTheVolumeIsPublishedIsRenewed: the first call has put the new attachment on record, and found no second
// host. The copy that was given up is of an earlier attachment than that.
func TestWhatAHostGaveUpWhileTheVolumeIsPublishedIsRenewed(t *testing.T) {
	for name, lose := range lostDevices {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t)
			ref, first, second := lose(w)
			third := csitest.Other(w.Volume("pvc-1"))
			w.Host(third).Stop()
			w.Poll()
			_, err := w.Publish("pvc-1", second)
			csitest.Wants(t, err, codes.Unavailable, "no other host can stand in")
			w.reached(first, ref)
			_, err = w.Publish("pvc-1", second)
			csitest.Must(t, err)
			if s := w.Host(first).Status(ref); s.State == escache.StateAbsent || s.DirtyBytes == nil || *s.DirtyBytes > 0 {
				t.Errorf("the copy was not created again: %+v", s)
			}
		})
	}
}

// TestWhatAHostGaveUpAfterAnotherStoodInForItIsRemoved: its copy waits to be removed.
func TestWhatAHostGaveUpAfterAnotherStoodInForItIsRemoved(t *testing.T) {
	for name, lose := range lostDevices {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t)
			ref, first, second := lose(w)
			_, err := w.Publish("pvc-1", second)
			csitest.Must(t, err)
			if got := w.stale(); len(got) != 1 || got[0] != first {
				t.Fatalf("to clean up: %v", got)
			}
			w.reached(first, ref)
			if got := w.stale(); len(got) > 0 || w.Host(first).Has(ref) {
				t.Errorf("left on %v, to clean up: %v", w.Fleet.On(ref), got)
			}
		})
	}
}

// TestAHostGetsTheVolumeAgainAfterADiscard: once the volume is attached there, the host would keep the old device.
func TestAHostGetsTheVolumeAgainAfterADiscard(t *testing.T) {
	w := newWorld(t)
	ref, dead, _ := w.discarded()
	w.back(dead)
	w.Host(dead).Supersede(ref, 1) // its arbiter reads the record of the discard
	w.Host(dead).Discard(ref, 1)
	w.Poll()
	_, err := w.Publish("pvc-1", dead)
	csitest.Must(t, err)
	if s := w.Host(dead).Status(ref); s.Device != "" || s.Epoch != 2 || s.DirtyBytes == nil || *s.DirtyBytes > 0 {
		t.Errorf("the copy was not created again: %+v", s)
	}
}

// TestANodeThatDoesNotAnswerDoesNotGetTheVolumeAgain: nobody knows whether its old device is there. Once the volume is the node's
// on record, nobody can prove that the device is left over.
func TestANodeThatDoesNotAnswerDoesNotGetTheVolumeAgain(t *testing.T) {
	for name, starts := range map[string]bool{"nothing answers": false, "its escached is still starting": true} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t)
			ref, first, _ := w.cutOff()
			w.untaint(first)
			if starts {
				w.Host(first).Restart(t)
				w.Host(first).Refuse(statusCall, escache.CodeRecovering)
			}
			_, err := w.Publish("pvc-1", first)
			csitest.Wants(t, err, codes.Unavailable, first)
			if s := w.Volume("pvc-1").Status; s.AttachedNode != "" {
				t.Fatalf("nobody can remove the device any more: %+v", s)
			}
			w.Host(first).Refuse(statusCall, "")
			w.Host(first).Stop()
			w.reached(first, ref)
			_, err = w.Publish("pvc-1", first)
			csitest.Must(t, err)
		})
	}
}

const statusCall = "GET " + escache.PathStatus
