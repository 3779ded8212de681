package attachment_test

import (
	"slices"
	"testing"

	"google.golang.org/grpc/codes"
	"k8s.io/apimachinery/pkg/api/meta"

	"github.com/escache/escache-csi/api/escache"
	"github.com/escache/escache-csi/api/v1alpha1"
	"github.com/escache/escache-csi/test/csitest"
)

// halfReplaced makes a clean volume of which one of two copies is gone: both were to be replaced
// around the third node, csi-controller removed one of them, and died. Nobody has the volume.
func (w *world) halfReplaced(id string) (v *v1alpha1.CacheVolume, kept, removed string) {
	w.T.Helper()
	v, kept, removed = w.UsedBefore(id)
	dead := w.Mortal(1)
	w.Restart()
	w.Host(kept).Stop() // the poll has not noticed
	if _, err := w.Publish(id, csitest.Other(v)); err == nil {
		w.T.Fatal("attached")
	}
	w.Cached = w.API
	w.Host(kept).Restart(w.T)
	w.Restart()
	csitest.Must(w.T, w.Unpublish(id, csitest.Other(v)))
	now := w.Volume(id)
	if !w.Host(kept).Has(csitest.Ref(v)) || w.Host(removed).Has(csitest.Ref(v)) || !slices.Equal(now.Spec.Replicas, v.Spec.Replicas) {
		w.T.Fatalf("died: %v, record %+v", *dead, now.Spec)
	}
	return now, kept, removed
}

// emptied gives a host other disks, which are empty.
func (w *world) emptied(name string) {
	w.T.Helper()
	w.Host(name).Stop()
	w.Reinstall(name)
}

// TestAMissingCopyDoesNotCountBeforeItIsFilled: the truth is in Ceph, so a copy that is gone is created
// again, and the one that is kept fills it. If the disk of the kept one failed meanwhile, it would be put on
// record as outdated, although it alone has what was written.
func TestAMissingCopyDoesNotCountBeforeItIsFilled(t *testing.T) {
	for name, lose := range map[string]func(*world) (v *v1alpha1.CacheVolume, kept, lost string){
		"a replacement of both copies has removed it": func(w *world) (*v1alpha1.CacheVolume, string, string) {
			return w.halfReplaced("pvc-1")
		},
		"its host has other disks": func(w *world) (*v1alpha1.CacheVolume, string, string) {
			v, kept, lost := w.UsedBefore("pvc-1")
			w.emptied(lost)
			return v, kept, lost
		},
	} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t)
			v, kept, lost := lose(w)
			_, err := w.Publish("pvc-1", kept)
			csitest.Must(t, err)
			if s := w.Volume("pvc-1").Status; s.Authority != v1alpha1.AuthorityCache || !slices.Equal(s.Outdated, []string{lost}) {
				t.Errorf("status %+v", s)
			}
			if !w.Host(lost).Has(csitest.Ref(v)) {
				t.Error("it is not created again")
			}
		})
	}
}

// publishMortal has csi-controller die after so many writes of a publish, if it makes more, and starts another one.
func (w *world) publishMortal(writes int, id, node string) (died bool) {
	w.T.Helper()
	dead := w.Mortal(writes)
	w.Restart()
	_, err := w.Publish(id, node)
	if (err != nil) != *dead {
		w.T.Fatal(err)
	}
	w.Cached = w.API
	w.Restart()
	return *dead
}

// TestAMissingCopyIsOnRecordBeforeItIsCreated has csi-controller die before each of its writes: the next
// attachment must not find a copy that nobody knows to be empty.
func TestAMissingCopyIsOnRecordBeforeItIsCreated(t *testing.T) {
	for writes := 0; ; writes++ {
		w := newWorld(t)
		_, kept, lost := w.UsedBefore("pvc-1")
		w.emptied(lost)
		died := w.publishMortal(writes, "pvc-1", kept)
		_, err := w.Publish("pvc-1", kept)
		csitest.Must(t, err)
		if s := w.Volume("pvc-1").Status; s.Authority != v1alpha1.AuthorityCache || !slices.Equal(s.Outdated, []string{lost}) {
			t.Fatalf("after %d writes: status %+v", writes, s)
		}
		if !died {
			if writes < 3 {
				t.Errorf("it makes only %d writes", writes)
			}
			return
		}
	}
}

// TestACopyThatIsBeingFilledIsNotCreatedAgain: csi-controller died when it had created the copy. The repeated call finds it half
// filled, with an epoch that no attachment before this one had.
func TestACopyThatIsBeingFilledIsNotCreatedAgain(t *testing.T) {
	filled := 0
	for writes := 0; ; writes++ {
		w := newWorld(t)
		v, kept, lost := w.UsedBefore("pvc-1")
		w.outdate("pvc-1", lost)
		died := w.publishMortal(writes, "pvc-1", kept)
		if died && w.Host(lost).Status(csitest.Ref(v)).Epoch == 2 {
			filled++
			w.Host(kept).Change(csitest.Ref(v), func(s *escache.VolumeStatus) {
				s.Peers = []escache.Peer{{Name: lost, ConnectionState: escache.LinkSyncSource, DiskState: escache.DiskInconsistent}}
			})
			w.Host(lost).Change(csitest.Ref(v), func(s *escache.VolumeStatus) { s.DirtyBytes, s.DiskState = nil, escache.DiskInconsistent })
		}
		_, err := w.Publish("pvc-1", kept)
		csitest.Must(t, err)
		s := w.Volume("pvc-1").Status
		if s.Authority != v1alpha1.AuthorityCache || !slices.Equal(s.Outdated, []string{lost}) {
			t.Fatalf("after %d writes: status %+v", writes, s)
		}
		if c := meta.FindStatusCondition(s.Conditions, v1alpha1.ConditionRecordBehindDisks); c != nil {
			t.Errorf("after %d writes: %+v", writes, c)
		}
		if !died {
			break
		}
	}
	if filled == 0 {
		t.Error("no copy was created before csi-controller died")
	}
}

// TestCopiesThatAreBothMissingAreEqual: there is nothing to fill them from.
func TestCopiesThatAreBothMissingAreEqual(t *testing.T) {
	w := newWorld(t)
	_, holder, partner := w.UsedBefore("pvc-1")
	w.emptied(holder)
	w.emptied(partner)
	_, err := w.Publish("pvc-1", holder)
	csitest.Must(t, err)
	if s := w.Volume("pvc-1").Status; s.Authority != v1alpha1.AuthorityCache || len(s.Outdated) > 0 {
		t.Errorf("status %+v", s)
	}
}

// TestWithTheNodesOwnCopyTheOtherIsCreatedAgainToo: nothing has to be filled before the node uses it. And the
// disk of the other host cannot fail while the record counts neither the one that is filled from it, nor
// that disk's failure.
func TestWithTheNodesOwnCopyTheOtherIsCreatedAgainToo(t *testing.T) {
	for name, lose := range map[string]func(w *world, v *v1alpha1.CacheVolume, holder string){
		"it is missing": func(w *world, _ *v1alpha1.CacheVolume, holder string) { w.emptied(holder) },
		"it is outdated": func(w *world, v *v1alpha1.CacheVolume, holder string) {
			v.Status.Outdated = []string{holder}
			csitest.Must(w.T, w.API.Status().Update(w.T.Context(), v))
		},
	} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t)
			v, holder, partner := w.UsedBefore("pvc-1")
			lose(w, v, holder)
			w.Host(partner).Sync(csitest.Ref(v), 50) // a new one has nothing to synchronise
			_, err := w.Publish("pvc-1", holder)
			csitest.Must(t, err)
			if s := w.Volume("pvc-1").Status; s.Authority != v1alpha1.AuthorityCache || len(s.Outdated) > 0 {
				t.Errorf("status %+v", s)
			}
			if s := w.Host(partner).Status(csitest.Ref(v)); !w.Host(holder).Has(csitest.Ref(v)) || s.SyncedPercent != 100 {
				t.Errorf("the copy on %s is the old one: %+v", partner, s)
			}
		})
	}
}

// TestAMissingCopyIsReplacedElsewhereIfItsHostDoesNotAnswer: then both copies are new.
func TestAMissingCopyIsReplacedElsewhereIfItsHostDoesNotAnswer(t *testing.T) {
	w := newWorld(t)
	v, kept, removed := w.halfReplaced("pvc-1")
	w.Host(removed).Stop() // the poll has not noticed
	_, err := w.Publish("pvc-1", kept)
	csitest.Wants(t, err, codes.Unavailable, removed)
	w.Poll()
	_, err = w.Publish("pvc-1", kept)
	csitest.Must(t, err)
	now := w.Volume("pvc-1")
	if !now.Spec.HasReplica(csitest.Other(v)) || len(now.Status.Outdated) > 0 {
		t.Errorf("record %+v, status %+v", now.Spec, now.Status)
	}
}
