package csi_test

import (
	"errors"
	"slices"
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
	must(w.t, errors.Join(err, w.locked.KeepFenced(w.t.Context())))
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

// TestAFenceThatLastsIsLeftAlone: each change of an entry lets its client in for a moment.
func TestAFenceThatLastsIsLeftAlone(t *testing.T) {
	w := newWorld(t)
	w.frozen("pvc-1")
	for range 2 {
		w.looks("pvc-1")
	}
	if w.images.fences != 1 {
		t.Errorf("the client was fenced %d times", w.images.fences)
	}
}

// TestAClientIsNotFencedByTheRecordAlone: csi-controller died before it fenced the holder. The holder has the
// volume until it is taken from it, and who takes it fences the client.
func TestAClientIsNotFencedByTheRecordAlone(t *testing.T) {
	w := newWorld(t)
	v := w.create("pvc-1")
	holder := v.Spec.Replicas[0]
	_, err := w.publish("pvc-1", holder)
	must(t, err)
	w.host(holder).Connect(ref(v), oldClient)
	w.open(v, oldClient)
	w.taint(holder)
	w.images.failFence = volumes.ErrUnavailable
	if err := w.unpublish("pvc-1", holder); err == nil || len(w.volume("pvc-1").Status.Fenced) == 0 {
		t.Fatalf("on record %+v: %v", w.volume("pvc-1").Status.Fenced, err)
	}
	w.images.failFence = nil
	w.looks("pvc-1")
	if len(w.images.fenced) > 0 || w.volume("pvc-1").Status.AttachedNode != holder {
		t.Errorf("fenced are %v, and node %q has the volume", w.images.fenced, w.volume("pvc-1").Status.AttachedNode)
	}
	must(t, w.unpublish("pvc-1", holder))
	if !slices.Contains(w.images.fenced, oldClient) {
		t.Errorf("taken from node %s, and fenced are %v", holder, w.images.fenced)
	}
}

// TestAFenceIsRenewedWhenTheVolumeIsFree: an operation that runs may be the one that lifts it.
func TestAFenceIsRenewedWhenTheVolumeIsFree(t *testing.T) {
	w := newWorld(t)
	_, dead, _ := w.frozen("pvc-1")
	w.images.unblock(oldClient)
	done, err := w.locks.Begin("pvc-1", "a test")
	must(t, err)
	if err := w.locked.KeepFenced(t.Context()); !errors.Is(err, volumes.ErrBusy) || w.images.fences != 1 {
		t.Errorf("fenced %d times while the volume is busy: %v", w.images.fences, err)
	}
	done()
	w.looks("pvc-1")
	w.isFenced("pvc-1", dead, oldClient)
}

// TestARenewedFenceIsLiftedToo: the entry is the driver's own then, whoever has made the one before.
func TestARenewedFenceIsLiftedToo(t *testing.T) {
	w := newWorld(t)
	w.images.blocked = map[string]time.Time{oldClient: time.Now().Add(time.Hour)}
	v, dead, _ := w.fenced("pvc-1")
	if w.volume("pvc-1").Status.Fenced[0].EarlierUntil == nil {
		t.Fatal("the record does not say that the client was on the blocklist before")
	}
	w.images.blocked = nil
	w.images.unblock(oldClient)
	w.looks("pvc-1")
	w.isFenced("pvc-1", dead, oldClient)
	w.host(dead).Release(ref(v))
	if left := w.lift("pvc-1"); len(left) > 0 || len(w.volume("pvc-1").Status.Fenced) > 0 {
		t.Errorf("on the blocklist are %v, on record %+v", left, w.volume("pvc-1").Status.Fenced)
	}
}

// TestTheBlocklistIsReadOnceForAllVolumes, and not at all while no client is fenced.
func TestTheBlocklistIsReadOnceForAllVolumes(t *testing.T) {
	w := newWorld(t)
	w.create("pvc-0")
	must(t, w.locked.KeepFenced(t.Context()))
	if w.images.lists != 0 {
		t.Errorf("%d times without a fenced client", w.images.lists)
	}
	for _, id := range []string{"pvc-1", "pvc-2", "pvc-3"} {
		v := w.create(id)
		v.Status.Fenced = []v1alpha1.FencedClient{{Address: "10.9.9.9:0/" + id[len("pvc-"):], Epoch: 1}, {Node: "n1", Epoch: 1}}
		must(t, w.api.Status().Update(t.Context(), v))
	}
	must(t, w.locked.KeepFenced(t.Context()))
	slices.Sort(w.images.fenced)
	if want := []string{"10.9.9.9:0/1", "10.9.9.9:0/2", "10.9.9.9:0/3"}; !slices.Equal(w.images.fenced, want) {
		t.Errorf("fenced are %v, want %v", w.images.fenced, want)
	}
	w.images.lists = 0
	must(t, w.locked.KeepFenced(t.Context()))
	if w.images.lists != 1 {
		t.Errorf("%d times for three volumes that have fenced clients", w.images.lists)
	}
	w.images.fail = volumes.ErrUnavailable
	if err := w.locked.KeepFenced(t.Context()); !errors.Is(err, volumes.ErrUnavailable) {
		t.Errorf("Ceph does not answer: %v", err)
	}
}
