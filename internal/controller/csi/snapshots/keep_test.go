package snapshots_test

import (
	"context"
	"fmt"
	"testing"

	"google.golang.org/grpc/codes"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/escache/escache-csi/api/v1alpha1"
	"github.com/escache/escache-csi/internal/controller/volumes"
	"github.com/escache/escache-csi/test/csitest"
)

// kept fails unless the image of the volume a, which has no record any more, stays for its snapshots.
func (w *world) kept() {
	w.T.Helper()
	_, there := w.Images.Sizes[csitest.ImageNamed("a")]
	if !w.Gone("a") || !there || w.Images.Kept[csitest.ImageNamed("a")] != "a" || w.Fleet.Replicas() > 0 {
		w.T.Errorf("record gone: %v, image there: %v, noted as of %q, %d replicas",
			w.Gone("a"), there, w.Images.Kept[csitest.ImageNamed("a")], w.Fleet.Replicas())
	}
}

func TestAVolumeIsDeletedBeforeItsSnapshots(t *testing.T) {
	w := newWorld(t)
	w.UsedBefore("a")
	for _, name := range []string{"s", "s2"} {
		_, err := w.Snap(name, "a")
		csitest.Must(t, err)
	}
	csitest.Must(t, w.Delete("a"))
	w.kept()
	for _, u := range w.Book.Usage() {
		if u.Volumes > 0 || u.AllocatedBytes > 0 {
			t.Errorf("still reserved: %+v", u)
		}
	}
	csitest.Must(t, w.Delete("a")) // repeated

	// Its snapshots are as before.
	csitest.Must(t, w.restore("b", "s"))
	again, err := w.Snap("s", "a")
	csitest.Must(t, err)
	if again.GetSourceVolumeId() != "a" {
		t.Errorf("got %v", again)
	}
	_, err = w.Snap("s3", "a")
	csitest.Wants(t, err, codes.NotFound, "volume a")
	csitest.Wants(t, w.Clone("c", "a"), codes.NotFound, "volume a")
	_, err = w.Service.CreateVolume(t.Context(), csitest.CreateRequest("a"))
	csitest.Wants(t, err, codes.FailedPrecondition, "exists already")
	w.kept()

	// The last one takes the image along, also while a clone lives.
	csitest.Must(t, w.Unsnap("s2"))
	w.kept()
	csitest.Must(t, w.Unsnap("s"))
	csitest.Must(t, w.Unsnap("s"))
	if _, there := w.Images.Sizes[csitest.ImageNamed("a")]; there || len(w.Snapshots()) != 0 {
		t.Errorf("image there: %v, on record: %v", there, w.Snapshots())
	}
	csitest.Must(t, w.Delete("b"))
	w.Empty()
}

// restore makes a volume of a snapshot.
func (w *world) restore(name, snapshot string) error {
	_, err := w.Service.CreateVolume(context.Background(), csitest.FromSnapshot(name, snapshot))
	return err
}

// TestNoImageIsDeletedBecauseARecordIsMissing: only an image that says that its volume was deleted
// goes with its last snapshot.
func TestNoImageIsDeletedBecauseARecordIsMissing(t *testing.T) {
	w := newWorld(t)
	w.Snapshotted()
	v := w.Volume("a")
	v.Finalizers = nil // as if etcd had lost it
	csitest.Must(t, w.API.Update(t.Context(), v))
	csitest.Must(t, w.API.Delete(t.Context(), v))
	csitest.Must(t, w.Unsnap("s"))
	if _, there := w.Images.Sizes[csitest.ImageNamed("a")]; !there || len(w.Snapshots()) != 0 {
		t.Errorf("image there: %v, on record: %v", there, w.Snapshots())
	}
}

// TestAVolumeWhoseRecordIsBackKeepsItsImage: an older etcd was restored.
func TestAVolumeWhoseRecordIsBackKeepsItsImage(t *testing.T) {
	w := newWorld(t)
	w.Snapshotted()
	v := w.Volume("a")
	csitest.Must(t, w.Delete("a"))
	w.kept()
	status := v.Status
	v.ResourceVersion, v.UID = "", ""
	csitest.Must(t, w.API.Create(t.Context(), v))
	v.Status = status
	csitest.Must(t, w.API.Status().Update(t.Context(), v))
	csitest.Must(t, w.Unsnap("s"))
	if _, there := w.Images.Sizes[csitest.ImageNamed("a")]; !there {
		t.Error("the image of a volume that is on record was deleted")
	}
	csitest.Must(t, w.Delete("a"))
	w.Restart()
	w.Empty()
}

// unpatched is an API server that removes no finalizer.
type unpatched struct{ client.Client }

func (unpatched) Patch(context.Context, client.Object, client.Patch, ...client.PatchOption) error {
	return fmt.Errorf("no patches: %w", volumes.ErrUnavailable)
}

func TestADeletionThatWasInterruptedGoesOn(t *testing.T) {
	slow := fmt.Errorf("the monitors are gone: %w", volumes.ErrUnavailable)
	t.Run("DeleteVolume, and the snapshots are gone when it is repeated", func(t *testing.T) {
		w := newWorld(t)
		w.Snapshotted()
		w.Cached = unpatched{w.API}
		w.Restart()
		csitest.Wants(t, w.Delete("a"), codes.Unavailable, "no patches")
		if w.Images.Kept[csitest.ImageNamed("a")] != "a" {
			t.Error("the image does not say that its volume is deleted")
		}
		w.Cached = w.API
		w.Restart()
		csitest.Must(t, w.Unsnap("s"))
		if _, there := w.Images.Sizes[csitest.ImageNamed("a")]; !there {
			t.Error("DeleteSnapshot has done what is DeleteVolume's")
		}
		csitest.Must(t, w.Delete("a"))
		w.Empty()
	})
	t.Run("DeleteSnapshot, after the snapshot is removed", func(t *testing.T) {
		w := newWorld(t)
		w.Snapshotted()
		csitest.Must(t, w.Delete("a"))
		w.Images.Open[csitest.ImageNamed("a")] = []string{"192.0.2.9:0/1"}
		csitest.Wants(t, w.Unsnap("s"), codes.FailedPrecondition, "in use", "with its last snapshot")
		if len(w.Snapshots()) != 1 {
			t.Error("without the snapshot's record nobody deletes the image")
		}
		delete(w.Images.Open, csitest.ImageNamed("a"))
		csitest.Must(t, w.Unsnap("s"))
		w.Empty()
	})
	t.Run("DeleteVolume, before the image says so", func(t *testing.T) {
		w := newWorld(t)
		w.Snapshotted()
		w.Images.Keeping = slow
		csitest.Wants(t, w.Delete("a"), codes.Unavailable, "monitors")
		if w.Gone("a") {
			t.Error("the record is gone before the image says that the volume is deleted")
		}
		w.Images.Keeping = nil
		csitest.Must(t, w.Delete("a"))
		w.kept()
	})
}

func TestAVolumeIsNotDeletedWhileASnapshotIsTaken(t *testing.T) {
	w := newWorld(t)
	w.Create("a")
	w.Images.Fail = fmt.Errorf("the monitors are gone: %w", volumes.ErrUnavailable)
	_, err := w.Snap("s", "a")
	csitest.Wants(t, err, codes.Unavailable, "monitors")
	w.Images.Fail = nil
	csitest.Wants(t, w.Delete("a"), codes.FailedPrecondition, "snapshot s is being taken")
	if !w.Volume("a").DeletionTimestamp.IsZero() {
		t.Error("it is marked as deleted")
	}
	_, err = w.Snap("s", "a")
	csitest.Must(t, err)
	csitest.Must(t, w.Delete("a"))
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
		w := newWorld(t)
		w.Snapshotted()
		old := &laggard{Client: w.API}
		csitest.Must(t, w.API.List(t.Context(), &old.list))
		csitest.Must(t, w.Unsnap("s"))
		w.Cached = old
		w.Restart()
		csitest.Must(t, w.Delete("a"))
		w.Empty()
	})
	t.Run("and does not know that the snapshot was taken", func(t *testing.T) {
		w := newWorld(t)
		w.Snapshotted()
		w.Cached = &laggard{Client: w.API}
		w.Restart()
		csitest.Wants(t, w.Delete("a"), codes.FailedPrecondition, "has the snapshot escache-s")
		w.Cached = w.API
		w.Restart()
		csitest.Must(t, w.Delete("a"))
		w.kept()
	})
}
