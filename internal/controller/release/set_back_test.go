package release_test

import (
	"context"
	"testing"

	"google.golang.org/grpc/codes"
	"k8s.io/apimachinery/pkg/api/meta"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/escache/escache-csi/api/v1alpha1"
	"github.com/escache/escache-csi/internal/controller/volumes"
	"github.com/escache/escache-csi/test/csitest"
)

// adoptedElsewhere adopts the image that the volume has given up as volume b, on other hosts of the group, which have what
// nobody else has of it.
func (w *world) adoptedElsewhere(former *v1alpha1.CacheVolume) *v1alpha1.CacheVolume {
	w.T.Helper()
	g, err := w.Group()
	csitest.Must(w.T, err)
	g.Spec.Nodes, g.Spec.CordonedNodes = append(g.Spec.Nodes, "n9"), former.Spec.Replicas
	csitest.Must(w.T, w.API.Update(context.Background(), g))
	w.Poll()
	w.adopted(former)
	b := w.Volume("b")
	holder := b.Spec.Replicas[0]
	w.Host(holder).Stage(csitest.Ref(b), csitest.NewClient, b.Status.Epoch, "writeback")
	for _, node := range b.Spec.Replicas {
		w.Host(node).Write(csitest.Ref(b), csitest.DirtyBytes)
	}
	return b
}

// adopted adopts the image that the volume has given up as volume b, and attaches that.
func (w *world) adopted(former *v1alpha1.CacheVolume) (b *v1alpha1.CacheVolume) {
	w.T.Helper()
	image := volumes.ImageOf(former)
	w.Images.Seen[image] = volumes.Inspection{SizeBytes: former.Spec.SizeBytes, Released: w.Images.Released[image]}
	b, err := w.Locked.Adopt(context.Background(), volumes.Adoption{
		ImageRef: image, Volume: "b", Request: "r", Mode: v1alpha1.CacheModeWriteback,
		Cache: func(int64) int64 { return former.Spec.CacheBytes },
	})
	csitest.Must(w.T, err)
	_, err = w.Publish("b", b.Spec.Replicas[0])
	csitest.Must(w.T, err)
	return b
}

// restore puts a record back that is gone, as a restored etcd does.
func (w *world) restore(old *v1alpha1.CacheVolume) {
	w.T.Helper()
	back := old.DeepCopy()
	back.ResourceVersion, back.UID = "", ""
	csitest.Must(w.T, w.API.Create(context.Background(), back))
	w.SetBack(old)
}

// TestAReleaseThatIsOnRecordAgainLeavesTheImageToWhoHasIt: etcd was restored to the middle of a release. It has ended since,
// and another volume has the image.
func TestAReleaseThatIsOnRecordAgainLeavesTheImageToWhoHasIt(t *testing.T) {
	w := newWorld(t)
	w.UsedBefore("pvc-1")
	old := w.releasing("pvc-1")
	csitest.Must(t, w.Locked.Release(t.Context(), "pvc-1"))
	b := w.adoptedElsewhere(old)
	image := volumes.ImageOf(b)
	note := w.Images.Notes[image]
	w.restore(old)
	err := w.Locked.Release(t.Context(), "pvc-1")
	if mark, now := w.Images.Marks[image], w.Images.Notes[image]; mark != "b" || now.Volume != "b" || now.Epoch != note.Epoch {
		t.Errorf("the image has the mark of %q and the note %+v", mark, now)
	}
	csitest.Wants(t, err, codes.FailedPrecondition, "is volume b's", "docs/restore-etcd.md")
	if w.Gone("pvc-1") || !meta.IsStatusConditionTrue(w.Volume("pvc-1").Status.Conditions, v1alpha1.ConditionRecordBehindDisks) {
		t.Error("nobody is told of it")
	}
	for _, node := range b.Spec.Replicas {
		if !w.Holds(node, b) {
			t.Errorf("node %s has lost what volume b wrote", node)
		}
	}
}

// TestAReleaseDropsNoReplicaOfWhoHasTheImage: the volumes are on the same hosts, whose caches are empty.
func TestAReleaseDropsNoReplicaOfWhoHasTheImage(t *testing.T) {
	w := newWorld(t)
	w.UsedBefore("pvc-1")
	old := w.releasing("pvc-1")
	csitest.Must(t, w.Locked.Release(t.Context(), "pvc-1"))
	b := w.adopted(old)
	old.Spec.Replicas = b.Spec.Replicas
	before := w.Fleet.Replicas()
	w.restore(old)
	csitest.Wants(t, w.Locked.Release(t.Context(), "pvc-1"), codes.FailedPrecondition, "is volume b's")
	if now := w.Fleet.Replicas(); before != 2 || now != before {
		t.Errorf("%d replicas, and %d before", now, before)
	}
}

// TestTheMarkOfAnotherVolumeIsNotTakenOff: the mark alone says whose the image is, as after a note was lost.
func TestTheMarkOfAnotherVolumeIsNotTakenOff(t *testing.T) {
	w := newWorld(t)
	v, _, _ := w.UsedBefore("pvc-1")
	now := w.releasing("pvc-1")
	image := volumes.ImageOf(v)
	delete(w.Images.Notes, image)
	w.Images.Marks[image] = "b"
	csitest.Wants(t, w.Locked.Release(t.Context(), "pvc-1"), codes.FailedPrecondition, "it is volume b's")
	if err := w.API.Get(t.Context(), client.ObjectKey{Name: "pvc-1"}, now); err != nil || w.Images.Marks[image] != "b" {
		t.Errorf("the mark is %q, the record: %v", w.Images.Marks[image], err)
	}
}
