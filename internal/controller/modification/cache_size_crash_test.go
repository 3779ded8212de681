package modification_test

import (
	"testing"

	"google.golang.org/grpc/codes"

	"github.com/escache/escache-csi/api/v1alpha1"
	"github.com/escache/escache-csi/test/csitest"
)

// TestAVolumeIsAttachedWithItsFormerCacheIfThereIsNoRoom: a wish does not keep a pod from its volume.
func TestAVolumeIsAttachedWithItsFormerCacheIfThereIsNoRoom(t *testing.T) {
	others := []string{"other-1", "other-2", "other-3"}
	for name, tc := range map[string]struct {
		prepare func(w *world, node string)
		reason  string
		mend    func(w *world, node string)
	}{
		"on the disks": {func(w *world, _ string) {
			w.Book.Forget("pvc-1")
			for _, name := range others { // each on two of the three hosts, which leaves 128Mi on each
				_, err := w.Book.Reserve(name, 50*csitest.GiB-small, "", nil)
				csitest.Must(w.T, err)
			}
			w.Book.Observe(w.Volume("pvc-1"))
		}, v1alpha1.ReasonResizeNoRoom, func(w *world, _ string) {
			for _, name := range others {
				w.Book.Forget(name)
			}
		}},
		"in memory": {func(w *world, node string) {
			w.Host(node).SetConnectable(large - 1)
			w.Poll()
		}, v1alpha1.ReasonResizeNoMemory, func(w *world, node string) {
			w.Host(node).SetConnectable(csitest.GiB)
			w.Poll()
		}},
	} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t)
			v := w.wanted("pvc-1")
			node := v.Spec.Replicas[0]
			tc.prepare(w, node)
			counted := w.allocated()
			_, err := w.Publish("pvc-1", node)
			csitest.Must(t, err)
			now := w.Volume("pvc-1")
			if now.Spec.CacheBytes != small || now.Spec.WantedCacheBytes != large || w.CacheSizes(now)[node] != small ||
				w.resized("pvc-1") != tc.reason ||
				w.allocated() != counted {
				t.Errorf("record %+v, %+v, copies %v; %d bytes are counted, of %d", now.Spec, now.Status, w.CacheSizes(now), w.allocated(),
					counted)
			}
			if w.report("pvc-1") || w.resized("pvc-1") != tc.reason {
				t.Error("what is in the way is forgotten while the volume is attached")
			}
			csitest.Must(t, w.Unpublish("pvc-1", node))
			tc.mend(w, node)
			_, err = w.Publish("pvc-1", node)
			csitest.Must(t, err)
			w.hasCache("pvc-1", large)
		})
	}
}

// TestAChangeOfTheCacheGoesOnAfterACrash has csi-controller die before each of its writes: with all hosts and
// with one of them away, and while the pod waits and after it went away.
func TestAChangeOfTheCacheGoesOnAfterACrash(t *testing.T) {
	for _, away := range []bool{false, true} {
		for _, leaves := range []bool{false, true} {
			for writes := 0; ; writes++ {
				w := newWorld(t)
				died := w.resizeAndDie(writes, away, leaves)
				if t.Failed() {
					t.Fatalf("away %v, leaves %v, after %d writes", away, leaves, writes)
				}
				if !died {
					if writes < 3 {
						t.Errorf("it makes only %d writes", writes)
					}
					break
				}
			}
		}
	}
}

func (w *world) resizeAndDie(writes int, away, leaves bool) (died bool) {
	w.T.Helper()
	v := w.wanted("pvc-1")
	node, partner := v.Spec.Replicas[0], v.Spec.Replicas[1]
	dead := w.Mortal(writes)
	if away {
		w.Host(partner).Stop()
		w.Poll()
	}
	_, err := w.Publish("pvc-1", node)
	if (err != nil) != *dead {
		w.T.Fatal(err)
	}
	w.Cached = w.API
	w.Restart()
	w.onlyOneSize(writes)
	if *dead && leaves {
		csitest.Must(w.T, w.Unpublish("pvc-1", node))
	}
	if away {
		w.Host(partner).Restart(w.T)
		w.Poll()
	}
	_, err = w.Publish("pvc-1", node)
	csitest.Must(w.T, err)
	w.report("pvc-1")
	w.hasCache("pvc-1", large)
	w.Poll()
	if sizes := w.CacheSizes(v); len(sizes) != 2 {
		w.T.Errorf("copies %v", sizes)
	}
	return *dead
}

// onlyOneSize fails if a copy that the record names has another size than the record says, unless the truth
// is in Ceph and it will be removed.
func (w *world) onlyOneSize(writes int) {
	w.T.Helper()
	v := w.Volume("pvc-1")
	for node, size := range w.CacheSizes(v) {
		if v.Spec.HasReplica(node) && size != v.Spec.CacheBytes && v.Status.Authority == v1alpha1.AuthorityCache {
			w.T.Errorf("after %d writes the record says %d bytes, and the copy on %s has %d", writes, v.Spec.CacheBytes, node, size)
		}
	}
}

// TestAChangeThatWasTakenBackCreatesBothCopiesAgain: an attachment had begun, and one of two copies was removed.
// The other one must not be taken for a copy that the first one need not be filled from.
func TestAChangeThatWasTakenBackCreatesBothCopiesAgain(t *testing.T) {
	w := newWorld(t)
	v := w.wanted("pvc-1")
	node, partner := v.Spec.Replicas[0], v.Spec.Replicas[1]
	w.Host(partner).Stop() // the poll has not noticed
	_, err := w.Publish("pvc-1", node)
	csitest.Wants(t, err, codes.Unavailable, partner)
	w.Host(partner).Restart(t)
	if sizes := w.CacheSizes(v); len(sizes) != 1 || sizes[partner] != small {
		t.Fatalf("copies %v", sizes)
	}
	csitest.Must(t, w.Unpublish("pvc-1", node))
	csitest.Must(t, w.Modify("pvc-1", "cacheSize", "64Mi"))
	w.report("pvc-1")
	if w.resized("pvc-1") != "" {
		t.Errorf("it waits for %q", w.resized("pvc-1"))
	}
	epoch := w.Host(partner).Status(csitest.Ref(v)).Epoch
	_, err = w.Publish("pvc-1", partner)
	csitest.Must(t, err)
	w.hasCache("pvc-1", small)
	if now := w.Host(partner).Status(csitest.Ref(v)).Epoch; now == epoch {
		t.Error("the old copy is still in use")
	}
}

// TestAChangeOfTheCacheDropsNothingThatIsDirtyAfterAll: the record was set back to one of the same epoch.
func TestAChangeOfTheCacheDropsNothingThatIsDirtyAfterAll(t *testing.T) {
	w := newWorld(t)
	v := w.wanted("pvc-1")
	for _, node := range v.Spec.Replicas {
		w.Host(node).Write(csitest.Ref(v), csitest.DirtyBytes)
	}
	for range 2 {
		_, err := w.Publish("pvc-1", v.Spec.Replicas[0])
		csitest.Wants(t, err, codes.FailedPrecondition, "older than", "pvc-1")
	}
	for _, node := range v.Spec.Replicas {
		if !w.Holds(node, v) {
			t.Errorf("what was dirty on %s is gone", node)
		}
	}
	if now := w.Volume("pvc-1"); now.Spec.CacheBytes != small {
		t.Errorf("record %+v", now.Spec)
	}
}
