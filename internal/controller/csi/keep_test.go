package csi_test

import (
	"context"
	"fmt"
	"testing"

	"google.golang.org/grpc/codes"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/escache/escache-csi/api/v1alpha1"
	"github.com/escache/escache-csi/internal/controller/volumes"
)

// kept fails unless the image of the volume a, which has no record any more, stays for its snapshots.
func (w *world) kept() {
	w.t.Helper()
	_, there := w.images.images[imageNamed("a")]
	if !w.gone("a") || !there || w.images.kept[imageNamed("a")] != "a" || w.fleet.Replicas() > 0 {
		w.t.Errorf("record gone: %v, image there: %v, noted as of %q, %d replicas",
			w.gone("a"), there, w.images.kept[imageNamed("a")], w.fleet.Replicas())
	}
}

func TestAVolumeIsDeletedBeforeItsSnapshots(t *testing.T) {
	w := newWorld(t)
	w.usedBefore("a")
	for _, name := range []string{"s", "s2"} {
		_, err := w.snap(name, "a")
		must(t, err)
	}
	must(t, w.delete("a"))
	w.kept()
	for _, u := range w.book.Usage() {
		if u.Volumes > 0 || u.AllocatedBytes > 0 {
			t.Errorf("still reserved: %+v", u)
		}
	}
	must(t, w.delete("a")) // repeated

	// Its snapshots are as before.
	must(t, w.restore("b", "s"))
	again, err := w.snap("s", "a")
	must(t, err)
	if again.GetSourceVolumeId() != "a" {
		t.Errorf("got %v", again)
	}
	_, err = w.snap("s3", "a")
	wants(t, err, codes.NotFound, "volume a")
	wants(t, w.clone("c", "a"), codes.NotFound, "volume a")
	_, err = w.service.CreateVolume(t.Context(), createRequest("a"))
	wants(t, err, codes.FailedPrecondition, "exists already")
	w.kept()

	// The last one takes the image along, also while a clone lives.
	must(t, w.unsnap("s2"))
	w.kept()
	must(t, w.unsnap("s"))
	must(t, w.unsnap("s"))
	if _, there := w.images.images[imageNamed("a")]; there || len(w.snapshots()) != 0 {
		t.Errorf("image there: %v, on record: %v", there, w.snapshots())
	}
	must(t, w.delete("b"))
	w.empty()
}

// restore makes a volume of a snapshot.
func (w *world) restore(name, snapshot string) error {
	_, err := w.service.CreateVolume(context.Background(), fromSnapshot(name, snapshot))
	return err
}

// TestNoImageIsDeletedBecauseARecordIsMissing: only an image that says that its volume was deleted
// goes with its last snapshot.
func TestNoImageIsDeletedBecauseARecordIsMissing(t *testing.T) {
	w := snapshotted(t)
	v := w.volume("a")
	v.Finalizers = nil // as if etcd had lost it
	must(t, w.api.Update(t.Context(), v))
	must(t, w.api.Delete(t.Context(), v))
	must(t, w.unsnap("s"))
	if _, there := w.images.images[imageNamed("a")]; !there || len(w.snapshots()) != 0 {
		t.Errorf("image there: %v, on record: %v", there, w.snapshots())
	}
}

// TestAVolumeWhoseRecordIsBackKeepsItsImage: an older etcd was restored.
func TestAVolumeWhoseRecordIsBackKeepsItsImage(t *testing.T) {
	w := snapshotted(t)
	v := w.volume("a")
	must(t, w.delete("a"))
	w.kept()
	status := v.Status
	v.ResourceVersion, v.UID = "", ""
	must(t, w.api.Create(t.Context(), v))
	v.Status = status
	must(t, w.api.Status().Update(t.Context(), v))
	must(t, w.unsnap("s"))
	if _, there := w.images.images[imageNamed("a")]; !there {
		t.Error("the image of a volume that is on record was deleted")
	}
	must(t, w.delete("a"))
	w.restart()
	w.empty()
}

// unpatched is an API server that removes no finalizer.
type unpatched struct{ client.Client }

func (unpatched) Patch(context.Context, client.Object, client.Patch, ...client.PatchOption) error {
	return fmt.Errorf("no patches: %w", volumes.ErrUnavailable)
}

func TestADeletionThatWasInterruptedGoesOn(t *testing.T) {
	slow := fmt.Errorf("the monitors are gone: %w", volumes.ErrUnavailable)
	t.Run("DeleteVolume, and the snapshots are gone when it is repeated", func(t *testing.T) {
		w := snapshotted(t)
		w.cached = unpatched{w.api}
		w.restart()
		wants(t, w.delete("a"), codes.Unavailable, "no patches")
		if w.images.kept[imageNamed("a")] != "a" {
			t.Error("the image does not say that its volume is deleted")
		}
		w.cached = w.api
		w.restart()
		must(t, w.unsnap("s"))
		if _, there := w.images.images[imageNamed("a")]; !there {
			t.Error("DeleteSnapshot has done what is DeleteVolume's")
		}
		must(t, w.delete("a"))
		w.empty()
	})
	t.Run("DeleteSnapshot, after the snapshot is removed", func(t *testing.T) {
		w := snapshotted(t)
		must(t, w.delete("a"))
		w.images.open[imageNamed("a")] = []string{"192.0.2.9:0/1"}
		wants(t, w.unsnap("s"), codes.FailedPrecondition, "in use", "with its last snapshot")
		if len(w.snapshots()) != 1 {
			t.Error("without the snapshot's record nobody deletes the image")
		}
		delete(w.images.open, imageNamed("a"))
		must(t, w.unsnap("s"))
		w.empty()
	})
	t.Run("DeleteVolume, before the image says so", func(t *testing.T) {
		w := snapshotted(t)
		w.images.keeping = slow
		wants(t, w.delete("a"), codes.Unavailable, "monitors")
		if w.gone("a") {
			t.Error("the record is gone before the image says that the volume is deleted")
		}
		w.images.keeping = nil
		must(t, w.delete("a"))
		w.kept()
	})
}

func TestAVolumeIsNotDeletedWhileASnapshotIsTaken(t *testing.T) {
	w := newWorld(t)
	w.create("a")
	w.images.fail = fmt.Errorf("the monitors are gone: %w", volumes.ErrUnavailable)
	_, err := w.snap("s", "a")
	wants(t, err, codes.Unavailable, "monitors")
	w.images.fail = nil
	wants(t, w.delete("a"), codes.FailedPrecondition, "snapshot s is being taken")
	if !w.volume("a").DeletionTimestamp.IsZero() {
		t.Error("it is marked as deleted")
	}
	_, err = w.snap("s", "a")
	must(t, err)
	must(t, w.delete("a"))
	w.kept()
}

// laggard is a cache whose list of snapshots is of another moment.
type laggard struct {
	client.Client

	list v1alpha1.CacheSnapshotList
}

func (l *laggard) List(ctx context.Context, into client.ObjectList, opts ...client.ListOption) error {
	if list, ok := into.(*v1alpha1.CacheSnapshotList); ok {
		l.list.DeepCopyInto(list)
		return nil
	}
	return l.Client.List(ctx, into, opts...)
}

// TestTheCacheLagsBehind by milliseconds.
func TestTheCacheLagsBehind(t *testing.T) {
	t.Run("and does not know that the snapshot is gone", func(t *testing.T) {
		w := snapshotted(t)
		old := &laggard{Client: w.api}
		must(t, w.api.List(t.Context(), &old.list))
		must(t, w.unsnap("s"))
		w.cached = old
		w.restart()
		must(t, w.delete("a"))
		w.empty()
	})
	t.Run("and does not know that the snapshot was taken", func(t *testing.T) {
		w := snapshotted(t)
		w.cached = &laggard{Client: w.api}
		w.restart()
		wants(t, w.delete("a"), codes.FailedPrecondition, "has the snapshot escache-s")
		w.cached = w.api
		w.restart()
		must(t, w.delete("a"))
		w.kept()
	})
}
