package csi_test

import (
	"testing"
	"time"

	"github.com/escache/escache-csi/api/v1alpha1"
	"github.com/escache/escache-csi/internal/controller/volumes"
)

// looks does what csi-controller does every few seconds while a volume has fenced clients.
func (w *world) looks(id string) {
	w.t.Helper()
	must(w.t, w.locked.FenceLate(w.t.Context(), id))
	_, err := w.locked.Unfence(w.t.Context(), id)
	must(w.t, err)
}

// frozen is fenced for a host that does not answer. Nobody can say that its map is gone.
func (w *world) frozen(id string) (v *v1alpha1.CacheVolume, dead, partner string) {
	w.t.Helper()
	v, dead, partner = w.fenced(id)
	w.host(dead).Stop()
	return v, dead, partner
}

// TestAFenceThatIsGoneIsMadeAgain: somebody has removed the entry, or has put a shorter one in its place. The
// frozen host would write what it has, over what the next holder has written.
func TestAFenceThatIsGoneIsMadeAgain(t *testing.T) {
	t.Run("while nobody has the volume", func(t *testing.T) {
		w := newWorld(t)
		_, dead, _ := w.frozen("pvc-1")
		w.images.unblock(oldClient)
		w.looks("pvc-1")
		w.isFenced("pvc-1", dead, oldClient)
	})
	t.Run("while the next holder has it", func(t *testing.T) {
		w := newWorld(t)
		v, dead, partner := w.frozen("pvc-1")
		_, err := w.publish("pvc-1", partner)
		must(t, err)
		w.open(v, "10.0.0.2:0/1")
		w.images.unblock(oldClient)
		w.looks("pvc-1")
		w.isFenced("pvc-1", dead, oldClient)
	})
	t.Run("and krbd has put its own, of an hour, in its place", func(t *testing.T) {
		w := newWorld(t)
		_, dead, _ := w.frozen("pvc-1")
		w.images.unblock(oldClient)
		w.images.blocked = map[string]time.Time{oldClient: time.Now().Add(time.Hour)}
		w.looks("pvc-1")
		w.isFenced("pvc-1", dead, oldClient)
	})
	t.Run("before the next holder gets the volume", func(t *testing.T) {
		w := newWorld(t)
		_, dead, partner := w.frozen("pvc-1")
		w.images.unblock(oldClient)
		w.images.failFence = volumes.ErrUnavailable
		if _, err := w.publish("pvc-1", partner); err == nil || w.volume("pvc-1").Status.AttachedNode != "" {
			t.Errorf("node %s has the volume, and nobody knows whether the former holder is fenced: %v", partner, err)
		}
		w.images.failFence = nil
		_, err := w.publish("pvc-1", partner)
		must(t, err)
		w.isFenced("pvc-1", dead, oldClient)
	})
}

// TestAClientThatIsOnRecordIsFencedAfterACrash: csi-controller died after it had put the client on record, and
// before the client was on the blocklist.
func TestAClientThatIsOnRecordIsFencedAfterACrash(t *testing.T) {
	const late = "10.0.0.1:0/2"
	t.Run("which came before the next holder was chosen", func(t *testing.T) {
		w := newWorld(t)
		v, dead, partner := w.frozen("pvc-1")
		w.open(v, late)
		w.images.failFence = volumes.ErrUnavailable
		if _, err := w.publish("pvc-1", partner); err == nil {
			t.Fatal("the attachment goes on, and a client is not fenced")
		}
		w.images.failFence = nil
		w.restart()
		_, err := w.publish("pvc-1", partner)
		must(t, err)
		w.isFenced("pvc-1", dead, late)
	})
	t.Run("which came later; the next holder has the image by now", func(t *testing.T) {
		w := newWorld(t)
		v, dead, partner := w.frozen("pvc-1")
		_, err := w.publish("pvc-1", partner)
		must(t, err)
		w.open(v, late)
		w.images.failFence = volumes.ErrUnavailable
		if err := w.locked.FenceLate(t.Context(), "pvc-1"); err == nil || len(w.volume("pvc-1").Status.Fenced) != 2 {
			t.Fatalf("on record %+v: %v", w.volume("pvc-1").Status.Fenced, err)
		}
		w.images.failFence = nil
		w.restart()
		const holder = "10.0.0.2:0/1"
		v = w.volume("pvc-1")
		v.Status.ClientAddress = holder
		must(t, w.api.Status().Update(t.Context(), v))
		w.open(v, late, holder)
		w.looks("pvc-1")
		w.isFenced("pvc-1", dead, late)
	})
}
