package marking_test

import (
	"context"
	"testing"

	"google.golang.org/grpc/codes"

	"github.com/escache/escache-csi/api/v1alpha1"
	"github.com/escache/escache-csi/internal/controller/volumes"
	"github.com/escache/escache-csi/test/csitest"
)

var markedImage = volumes.ImageRef{ClusterID: "ceph", Pool: "rbd", Image: "escache-pvc-1"}

func (w *world) marked() string { return w.Images.MarkOf(markedImage) }

// TestARepeatedCreateMarksTheImage has a call end between the image and its mark.
func TestARepeatedCreateMarksTheImage(t *testing.T) {
	w := newWorld(t)
	v := w.Create("pvc-1")
	if w.marked() != "pvc-1" {
		t.Errorf("a new image is marked %q", w.marked())
	}
	delete(w.Images.Marks, markedImage)
	v.Status = v1alpha1.CacheVolumeStatus{}
	csitest.Must(t, w.API.Status().Update(context.Background(), v))
	if v = w.Create("pvc-1"); v.Status.Phase != v1alpha1.VolumeReady || w.marked() != "pvc-1" {
		t.Errorf("phase %q, marked %q", v.Status.Phase, w.marked())
	}
}

func TestTheFirstAttachMarksAnImageOfAnOlderVersion(t *testing.T) {
	w := newWorld(t)
	v := w.Create("pvc-1")
	delete(w.Images.Marks, markedImage)
	_, err := w.Publish("pvc-1", v.Spec.Replicas[0])
	csitest.Must(t, err)
	if w.marked() != "pvc-1" {
		t.Errorf("marked %q", w.marked())
	}
}

func TestAnImageOfAnotherKubernetesClusterIsNotAdopted(t *testing.T) {
	w := newWorld(t)
	w.Images.Sizes[markedImage], w.Images.Foreign[markedImage] = csitest.GiB, true
	_, err := w.Service.CreateVolume(context.Background(), csitest.CreateRequest("pvc-1"))
	csitest.Wants(t, err, codes.FailedPrecondition, "another Kubernetes cluster")
	delete(w.Images.Sizes, markedImage)
	w.Empty() // no record is left
}

// TestARecordDoesNotMakeAnImageOnesOwn has a record that was copied from another Kubernetes
// cluster.
func TestARecordDoesNotMakeAnImageOnesOwn(t *testing.T) {
	w := newWorld(t)
	v := w.Create("pvc-1")
	w.Images.Foreign[markedImage] = true
	_, err := w.Publish("pvc-1", v.Spec.Replicas[0])
	csitest.Wants(t, err, codes.FailedPrecondition, "another Kubernetes cluster")
	if now := w.Volume("pvc-1"); now.Status.AttachedNode != "" {
		t.Errorf("it is attached to %s on record", now.Status.AttachedNode)
	}
	csitest.Wants(t, w.Delete("pvc-1"), codes.FailedPrecondition, "another Kubernetes cluster")
	if w.Images.Sizes[markedImage] != csitest.GiB {
		t.Error("the image is gone")
	}
}
