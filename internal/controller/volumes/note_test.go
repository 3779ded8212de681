package volumes_test

import (
	"testing"

	"google.golang.org/grpc/codes"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/escache/escache-csi/api/v1alpha1"
	"github.com/escache/escache-csi/internal/controller/volumes"
	"github.com/escache/escache-csi/test/csitest"
)

func TestTheImageTellsOfItsVolume(t *testing.T) {
	w := csitest.New(t)
	v := w.Create("pvc-1")
	note := w.Images.Notes[volumes.ImageOf(v)]
	if note.Volume != "pvc-1" || note.Version != volumes.NoteVersion || note.Epoch != 0 || note.Spec.Group != "g1" ||
		note.Spec.Replicas[0] != v.Spec.Replicas[0] {
		t.Errorf("after the creation: %+v", note)
	}
	csitest.Must(t, w.API.Create(t.Context(), &corev1.PersistentVolume{
		ObjectMeta: metav1.ObjectMeta{Name: "pvc-1"},
		Spec: corev1.PersistentVolumeSpec{
			StorageClassName: "fast", ClaimRef: &corev1.ObjectReference{Namespace: "shop", Name: "data"},
			PersistentVolumeSource: corev1.PersistentVolumeSource{
				CSI: &corev1.CSIPersistentVolumeSource{Driver: v1alpha1.DriverName, VolumeHandle: "pvc-1"},
			},
		},
	}))
	node := v.Spec.Replicas[0]
	_, err := w.Publish("pvc-1", node)
	csitest.Must(t, err)
	note = w.Images.Notes[volumes.ImageOf(v)]
	if note.Epoch != 1 || note.Authority != v1alpha1.AuthorityCache || note.AttachedNode != node || note.Claim != "shop/data" ||
		note.PersistentVolume != "pvc-1" || note.StorageClass != "fast" {
		t.Errorf("after the attach: %+v", note)
	}
	text, err := note.Text()
	csitest.Must(t, err)
	if read, err := volumes.ParseNote(text); err != nil || read.Spec.CacheBytes != v.Spec.CacheBytes || read.Epoch != 1 {
		t.Errorf("read again: %+v, %v", read, err)
	}
}

func TestNotesThatCannotBeRead(t *testing.T) {
	if n, err := volumes.ParseNote(`{"version": 2, "epoch": 9}`); err != nil || n.Epoch != 0 {
		t.Errorf("a later version: %+v, %v", n, err)
	}
	_, err := volumes.ParseNote("{")
	csitest.Wants(t, err, codes.FailedPrecondition, "rbd image-meta remove")
}

// TestAnImageOfALaterEpochStopsTheVolume: the record was set back, and no host can say so, because
// none has a replica any more.
func TestAnImageOfALaterEpochStopsTheVolume(t *testing.T) {
	w := csitest.New(t)
	v, holder, _ := w.UsedBefore("pvc-1")
	_, err := w.Publish("pvc-1", holder)
	csitest.Must(t, err)
	csitest.Must(t, w.Unpublish("pvc-1", holder))
	for _, host := range w.Fleet.Hosts {
		host.Forget()
	}
	w.SetBack(v)
	_, err = w.Publish("pvc-1", holder)
	csitest.Wants(t, err, codes.FailedPrecondition, "epoch 2", "the record says 1")
	csitest.Wants(t, w.Delete("pvc-1"), codes.FailedPrecondition, "epoch 2")
	now := w.Volume("pvc-1")
	if now.Status.Epoch != 1 || now.Status.AttachedNode != "" || !now.DeletionTimestamp.IsZero() ||
		!meta.IsStatusConditionTrue(now.Status.Conditions, v1alpha1.ConditionRecordBehindDisks) {
		t.Errorf("it was changed, or nothing tells of it: %+v", now.Status)
	}
	now.Status.Epoch = 2 // as docs/restore-etcd.md says
	csitest.Must(t, w.API.Status().Update(t.Context(), now))
	_, err = w.Publish("pvc-1", holder)
	csitest.Must(t, err)
}
