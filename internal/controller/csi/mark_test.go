package csi_test

import (
	"context"
	"testing"

	"google.golang.org/grpc/codes"

	"github.com/escache/escache-csi/api/v1alpha1"
	"github.com/escache/escache-csi/internal/controller/volumes"
)

var markedImage = volumes.ImageRef{ClusterID: "ceph", Pool: "rbd", Image: "escache-pvc-1"}

func (w *world) marked() string {
	w.images.mu.Lock()
	defer w.images.mu.Unlock()
	return w.images.marks[markedImage]
}

// TestARepeatedCreateMarksTheImage has a call end between the image and its mark.
func TestARepeatedCreateMarksTheImage(t *testing.T) {
	w := newWorld(t)
	v := w.create("pvc-1")
	if w.marked() != "pvc-1" {
		t.Errorf("a new image is marked %q", w.marked())
	}
	delete(w.images.marks, markedImage)
	v.Status = v1alpha1.CacheVolumeStatus{}
	must(t, w.api.Status().Update(context.Background(), v))
	if v = w.create("pvc-1"); v.Status.Phase != v1alpha1.VolumeReady || w.marked() != "pvc-1" {
		t.Errorf("phase %q, marked %q", v.Status.Phase, w.marked())
	}
}

func TestTheFirstAttachMarksAnImageOfAnOlderVersion(t *testing.T) {
	w := newWorld(t)
	v := w.create("pvc-1")
	delete(w.images.marks, markedImage)
	_, err := w.publish("pvc-1", v.Spec.Replicas[0])
	must(t, err)
	if w.marked() != "pvc-1" {
		t.Errorf("marked %q", w.marked())
	}
}

func TestAnImageOfAnotherKubernetesClusterIsNotAdopted(t *testing.T) {
	w := newWorld(t)
	w.images.images[markedImage], w.images.foreign[markedImage] = gib, true
	_, err := w.service.CreateVolume(context.Background(), createRequest("pvc-1"))
	wants(t, err, codes.FailedPrecondition, "another Kubernetes cluster")
	delete(w.images.images, markedImage)
	w.empty() // no record is left
}

// TestARecordDoesNotMakeAnImageOnesOwn has a record that was copied from another Kubernetes
// cluster.
func TestARecordDoesNotMakeAnImageOnesOwn(t *testing.T) {
	w := newWorld(t)
	v := w.create("pvc-1")
	w.images.foreign[markedImage] = true
	_, err := w.publish("pvc-1", v.Spec.Replicas[0])
	wants(t, err, codes.FailedPrecondition, "another Kubernetes cluster")
	if now := w.volume("pvc-1"); now.Status.AttachedNode != "" {
		t.Errorf("it is attached to %s on record", now.Status.AttachedNode)
	}
	wants(t, w.delete("pvc-1"), codes.FailedPrecondition, "another Kubernetes cluster")
	if w.images.images[markedImage] != gib {
		t.Error("the image is gone")
	}
}
