package unfence_test

import (
	"errors"
	"slices"
	"testing"
	"time"

	"github.com/escache/escache-csi/api/v1alpha1"
	"github.com/escache/escache-csi/internal/controller/volumes"
	"github.com/escache/escache-csi/test/csitest"
)

// looks does what csi-controller does every few seconds while a volume has fenced clients.
func (w *world) looks(id string) {
	w.T.Helper()
	csitest.Must(w.T, w.Locked.FenceLate(w.T.Context(), id))
	_, err := w.Locked.Unfence(w.T.Context(), id)
	csitest.Must(w.T, errors.Join(err, w.Locked.KeepFenced(w.T.Context())))
}

// frozen is fenced for a host that does not answer. Nobody can say that its map is gone.
func (w *world) frozen(id string) (v *v1alpha1.CacheVolume, dead, partner string) {
	w.T.Helper()
	v, dead, partner = w.Fenced(id)
	w.Host(dead).Stop()
	return v, dead, partner
}

// TestAFenceThatIsGoneIsMadeAgain: somebody has removed the entry, or has put a shorter one in its place. The
// frozen host would write what it has, over what the next holder has written.
func TestAFenceThatIsGoneIsMadeAgain(t *testing.T) {
	t.Run("while nobody has the volume", func(t *testing.T) {
		w := newWorld(t)
		_, dead, _ := w.frozen("pvc-1")
		w.Images.Unblock(csitest.OldClient)
		w.looks("pvc-1")
		w.isFenced("pvc-1", dead, csitest.OldClient)
	})
	t.Run("while the next holder has it", func(t *testing.T) {
		w := newWorld(t)
		v, dead, partner := w.frozen("pvc-1")
		_, err := w.Publish("pvc-1", partner)
		csitest.Must(t, err)
		w.open(v, "10.0.0.2:0/1")
		w.Images.Unblock(csitest.OldClient)
		w.looks("pvc-1")
		w.isFenced("pvc-1", dead, csitest.OldClient)
	})
	t.Run("and krbd has put its own, of an hour, in its place", func(t *testing.T) {
		w := newWorld(t)
		_, dead, _ := w.frozen("pvc-1")
		w.Images.Unblock(csitest.OldClient)
		w.Images.Blocked = map[string]time.Time{csitest.OldClient: time.Now().Add(time.Hour)}
		w.looks("pvc-1")
		w.isFenced("pvc-1", dead, csitest.OldClient)
	})
	t.Run("before the next holder gets the volume", func(t *testing.T) {
		w := newWorld(t)
		_, dead, partner := w.frozen("pvc-1")
		w.Images.Unblock(csitest.OldClient)
		w.Images.FailFence = volumes.ErrUnavailable
		if _, err := w.Publish("pvc-1", partner); err == nil || w.Volume("pvc-1").Status.AttachedNode != "" {
			t.Errorf("node %s has the volume, and nobody knows whether the former holder is fenced: %v", partner, err)
		}
		w.Images.FailFence = nil
		_, err := w.Publish("pvc-1", partner)
		csitest.Must(t, err)
		w.isFenced("pvc-1", dead, csitest.OldClient)
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
		w.Images.FailFence = volumes.ErrUnavailable
		if _, err := w.Publish("pvc-1", partner); err == nil {
			t.Fatal("the attachment goes on, and a client is not fenced")
		}
		w.Images.FailFence = nil
		w.Restart()
		_, err := w.Publish("pvc-1", partner)
		csitest.Must(t, err)
		w.isFenced("pvc-1", dead, late)
	})
	t.Run("which came later; the next holder has the image by now", func(t *testing.T) {
		w := newWorld(t)
		v, dead, partner := w.frozen("pvc-1")
		_, err := w.Publish("pvc-1", partner)
		csitest.Must(t, err)
		w.open(v, late)
		w.Images.FailFence = volumes.ErrUnavailable
		if err := w.Locked.FenceLate(t.Context(), "pvc-1"); err == nil || len(w.Volume("pvc-1").Status.Fenced) != 2 {
			t.Fatalf("on record %+v: %v", w.Volume("pvc-1").Status.Fenced, err)
		}
		w.Images.FailFence = nil
		w.Restart()
		const holder = "10.0.0.2:0/1"
		v = w.Volume("pvc-1")
		v.Status.ClientAddress = holder
		csitest.Must(t, w.API.Status().Update(t.Context(), v))
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
	if w.Images.Fences != 1 {
		t.Errorf("the client was fenced %d times", w.Images.Fences)
	}
}

// TestAClientIsNotFencedByTheRecordAlone: csi-controller died before it fenced the holder. The holder has the
// volume until it is taken from it, and who takes it fences the client.
func TestAClientIsNotFencedByTheRecordAlone(t *testing.T) {
	w := newWorld(t)
	v := w.Create("pvc-1")
	holder := v.Spec.Replicas[0]
	_, err := w.Publish("pvc-1", holder)
	csitest.Must(t, err)
	w.Host(holder).Connect(csitest.Ref(v), csitest.OldClient)
	w.open(v, csitest.OldClient)
	w.Taint(holder)
	w.Images.FailFence = volumes.ErrUnavailable
	if err := w.Unpublish("pvc-1", holder); err == nil || len(w.Volume("pvc-1").Status.Fenced) == 0 {
		t.Fatalf("on record %+v: %v", w.Volume("pvc-1").Status.Fenced, err)
	}
	w.Images.FailFence = nil
	w.looks("pvc-1")
	if len(w.Images.Fenced) > 0 || w.Volume("pvc-1").Status.AttachedNode != holder {
		t.Errorf("fenced are %v, and node %q has the volume", w.Images.Fenced, w.Volume("pvc-1").Status.AttachedNode)
	}
	csitest.Must(t, w.Unpublish("pvc-1", holder))
	if !slices.Contains(w.Images.Fenced, csitest.OldClient) {
		t.Errorf("taken from node %s, and fenced are %v", holder, w.Images.Fenced)
	}
}

// TestAFenceIsRenewedWhenTheVolumeIsFree: an operation that runs may be the one that lifts it.
func TestAFenceIsRenewedWhenTheVolumeIsFree(t *testing.T) {
	w := newWorld(t)
	_, dead, _ := w.frozen("pvc-1")
	w.Images.Unblock(csitest.OldClient)
	done, err := w.Locks.Begin("pvc-1", "a test")
	csitest.Must(t, err)
	if err := w.Locked.KeepFenced(t.Context()); !errors.Is(err, volumes.ErrBusy) || w.Images.Fences != 1 {
		t.Errorf("fenced %d times while the volume is busy: %v", w.Images.Fences, err)
	}
	done()
	w.looks("pvc-1")
	w.isFenced("pvc-1", dead, csitest.OldClient)
}

// TestARenewedFenceIsLiftedToo: the entry is the driver's own then, whoever has made the one before.
func TestARenewedFenceIsLiftedToo(t *testing.T) {
	w := newWorld(t)
	w.Images.Blocked = map[string]time.Time{csitest.OldClient: time.Now().Add(time.Hour)}
	v, dead, _ := w.Fenced("pvc-1")
	if w.Volume("pvc-1").Status.Fenced[0].EarlierUntil == nil {
		t.Fatal("the record does not say that the client was on the blocklist before")
	}
	w.Images.Blocked = nil
	w.Images.Unblock(csitest.OldClient)
	w.looks("pvc-1")
	w.isFenced("pvc-1", dead, csitest.OldClient)
	w.Host(dead).Release(csitest.Ref(v))
	if left := w.Lift("pvc-1"); len(left) > 0 || len(w.Volume("pvc-1").Status.Fenced) > 0 {
		t.Errorf("on the blocklist are %v, on record %+v", left, w.Volume("pvc-1").Status.Fenced)
	}
}

// TestTheBlocklistIsReadOnceForAllVolumes, and not at all while no client is fenced.
func TestTheBlocklistIsReadOnceForAllVolumes(t *testing.T) {
	w := newWorld(t)
	w.Create("pvc-0")
	csitest.Must(t, w.Locked.KeepFenced(t.Context()))
	if w.Images.Lists != 0 {
		t.Errorf("%d times without a fenced client", w.Images.Lists)
	}
	for _, id := range []string{"pvc-1", "pvc-2", "pvc-3"} {
		v := w.Create(id)
		v.Status.Fenced = []v1alpha1.FencedClient{{Address: "10.9.9.9:0/" + id[len("pvc-"):], Epoch: 1}, {Node: "n1", Epoch: 1}}
		csitest.Must(t, w.API.Status().Update(t.Context(), v))
	}
	csitest.Must(t, w.Locked.KeepFenced(t.Context()))
	slices.Sort(w.Images.Fenced)
	if want := []string{"10.9.9.9:0/1", "10.9.9.9:0/2", "10.9.9.9:0/3"}; !slices.Equal(w.Images.Fenced, want) {
		t.Errorf("fenced are %v, want %v", w.Images.Fenced, want)
	}
	w.Images.Lists = 0
	csitest.Must(t, w.Locked.KeepFenced(t.Context()))
	if w.Images.Lists != 1 {
		t.Errorf("%d times for three volumes that have fenced clients", w.Images.Lists)
	}
	w.Images.Fail = volumes.ErrUnavailable
	if err := w.Locked.KeepFenced(t.Context()); !errors.Is(err, volumes.ErrUnavailable) {
		t.Errorf("Ceph does not answer: %v", err)
	}
}
