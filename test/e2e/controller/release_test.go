//go:build e2e

package controller

import (
	"context"
	"slices"
	"strings"
	"testing"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/escache/escache-csi/api/v1alpha1"
)

// release asks for a release, and waits until the volume is gone or the leader is dead.
func (w *world) release(ctx context.Context, d *driver, volume string) error {
	v := &v1alpha1.CacheVolume{ObjectMeta: metav1.ObjectMeta{Name: volume}}
	err := w.api.Patch(ctx, v, client.RawPatch(types.MergePatchType, []byte(`{"spec":{"release":true}}`)))
	if err != nil {
		return client.IgnoreNotFound(err)
	}
	return d.asked(ctx, func() (bool, error) {
		err := w.api.Get(ctx, client.ObjectKey{Name: volume}, v)
		return apierrors.IsNotFound(err), client.IgnoreNotFound(err)
	})
}

// released looks at what a release has to leave.
func (w *world) released(t *testing.T, image string) {
	t.Helper()
	if n := len(w.volumes(t)); n > 0 || w.fleet.Replicas() > 0 || !slices.Equal(w.images(t), []string{image}) {
		t.Errorf("%d records, %d replicas, images %v", n, w.fleet.Replicas(), w.images(t))
	}
	meta := w.rbd(t, "image-meta", "list", "rbd/"+image)
	if !strings.Contains(meta, "escache.io/released") || strings.Contains(meta, "escache.io/kubernetes-cluster") ||
		strings.Contains(meta, "escache.io/volume") || strings.Contains(meta, "escache.io/record") {
		t.Errorf("metadata of the image:\n%s", meta)
	}
}

// releaseLife attaches a volume, leaves it dirty, releases it, and shows that the driver has nothing to
// do with the image any more.
func releaseLife(t *testing.T, w *world) {
	d := leader(t, time.Minute, w.launch(t, "a", soon...))
	leaveDirty(t, w, d)
	image := w.one(t).Spec.Image
	if note := w.rbd(t, "image-meta", "get", "rbd/"+image, "escache.io/record"); !strings.Contains(note, `"epoch":1,"authority":"Cache"`) {
		t.Errorf("note: %s", note)
	}
	must(t, w.release(t.Context(), d, crashed))
	w.released(t, image)
	must(t, d.delete(t.Context(), crashed)) // nothing any more
	// The search looks into the pools of StorageClasses.
	const class = `{"apiVersion":"storage.k8s.io/v1","kind":"StorageClass","metadata":{"name":"former"},"provisioner":"csi.escache.io",` +
		`"parameters":{"clusterID":"lab","pool":"rbd"}}`
	w.kubectl(t, class, "apply", "-f", "-")
	defer w.kubectl(t, "", "delete", "storageclass", "former")
	out, err := w.orphans()
	if err != nil || strings.Contains(out, image) {
		t.Errorf("orphans: %v\n%s", err, out)
	}
	out, err = w.orphans("--remove-image", "lab/rbd/"+image, "--allow-unmarked")
	if err == nil || !strings.Contains(out, "was released") {
		t.Errorf("removed, or refused for another reason: %v\n%s", err, out)
	}
	w.rbd(t, "rm", "--no-progress", "rbd/"+image)
}

// leaveDirty leaves the volume detached, with data that only its replicas have.
func leaveDirty(t *testing.T, w *world, d *driver) {
	t.Helper()
	until(t, func() error { return d.create(t.Context(), crashed) })
	until(t, func() error { return d.publish(t.Context(), crashed, w.one(t).Spec.Replicas[0]) })
	for _, n := range w.one(t).Spec.Replicas {
		w.fleet.Hosts[n].Write(imageRef(), 4<<20)
	}
	until(t, func() error { return d.unpublish(t.Context(), crashed, "") })
}

func releaseScenes() []scene {
	return []scene{{
		name: "release of a dirty volume", prepare: leaveDirty,
		call:  func(t *testing.T, w *world, d *driver) error { return w.release(t.Context(), d, crashed) },
		check: func(t *testing.T, w *world) { w.released(t, "escache-"+crashed) },
		clean: func(t *testing.T, w *world, _ *driver) { w.rbd(t, "rm", "--no-progress", "rbd/escache-"+crashed) },
	}}
}
