//go:build e2e

package controller

import (
	"context"
	"encoding/json"
	"fmt"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
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
	// A new leader that has not heard of the hosts yet removes their replicas after the record.
	eventually(t, time.Minute, func() bool {
		return len(w.volumes(t)) == 0 && w.fleet.Replicas() == 0 && slices.Equal(w.images(t), []string{image})
	}, func() string {
		return fmt.Sprintf("%d records, %d replicas, images %v", len(w.volumes(t)), w.fleet.Replicas(), w.images(t))
	})
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
	w.withoutHosts(t, image)
	id := w.imageID(t, "rbd/"+image)
	printed := w.escache(t, 0, "release", "--volume", crashed)
	w.released(t, image)
	w.usableAsPrinted(t, printed, id)
	until(t, func() error { return d.delete(t.Context(), crashed) }) // nothing any more
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

// withoutHosts asks for the release of a dirty volume while its hosts are down: it waits and says for what, nothing is
// changed, and it can be cancelled. Then it asks again, and has the hosts come back, which the release waits for.
func (w *world) withoutHosts(t *testing.T, image string) {
	t.Helper()
	for _, n := range w.one(t).Spec.Replicas {
		w.fleet.Hosts[n].Stop()
	}
	before, marks := w.one(t), w.rbd(t, "image-meta", "list", "rbd/"+image)
	_, why := w.escacheSays(t, 3, "release", "--volume", crashed, "--timeout", "30s")
	t.Logf("%s", why)
	says(t, why, "dirty data", "as last reported", before.Spec.Replicas[0], before.Spec.Replicas[1], "Bring ", "release --cancel --volume "+crashed)
	now := w.one(t)
	now.Status.Conditions, before.Status.Conditions = nil, nil
	if !reflect.DeepEqual(now.Status, before.Status) || w.fleet.Replicas() != 2 || w.rbd(t, "image-meta", "list", "rbd/"+image) != marks {
		t.Errorf("changed: %d replicas, and the record was\n%+v\nand is\n%+v", w.fleet.Replicas(), before.Status, now.Status)
	}
	w.escache(t, 0, "release", "--cancel", "--volume", crashed)
	eventually(t, time.Minute, func() bool {
		now = w.one(t)
		return !now.Spec.Release && meta.FindStatusCondition(now.Status.Conditions, v1alpha1.ConditionReleased) == nil
	}, func() string { return fmt.Sprintf("it is still on record: %+v", now) })
	w.escache(t, 3, "release", "--volume", crashed, "--timeout", "2s")
	for _, n := range before.Spec.Replicas {
		w.fleet.Hosts[n].Restart(t)
	}
}

// usableAsPrinted shows that the API server takes the PersistentVolume which kubectl escache release has printed, that a
// claim can be bound to it, and that it and the line for rbd name the image.
func (w *world) usableAsPrinted(t *testing.T, printed, id string) {
	t.Helper()
	for _, line := range []string{"use the image on a host:", "rbd map "} {
		if _, printed, _ = strings.Cut(printed, line); printed == "" {
			t.Fatalf("it does not say %q", line)
		}
	}
	name, text, _ := strings.Cut(printed, "\n")
	if is := w.imageID(t, strings.Fields(name)...); is != id {
		t.Errorf("rbd map %s is about the image with the id %s, not %s", name, is, id)
	}
	_, object, _ := strings.Cut(text, "\napiVersion:")
	w.kubectl(t, "apiVersion:"+object, "create", "-f", "-")
	pv := strings.TrimPrefix(strings.TrimSpace(w.kubectl(t, "apiVersion:"+object, "get", "-f", "-", "-o", "name")), "persistentvolume/")
	w.kubectl(t, `{"apiVersion":"v1","kind":"PersistentVolumeClaim","metadata":{"name":"theirs"},"spec":{"accessModes":["ReadWriteOnce"],`+
		`"storageClassName":"","volumeName":"`+pv+`","resources":{"requests":{"storage":"1Gi"}}}}`, "create", "-f", "-")
	w.kubectl(t, "", "wait", "--for=jsonpath={.status.phase}=Bound", "pvc/theirs", "--timeout=60s")
	image := w.kubectl(t, "", "get", "pv", pv, "-o", "jsonpath={.spec.csi.volumeAttributes.pool}/{.spec.csi.volumeHandle}")
	if is := w.imageID(t, image); is != id {
		t.Errorf("the PersistentVolume is about the image %s with the id %s, not %s", image, is, id)
	}
	w.kubectl(t, "", "delete", "pvc", "theirs", "--timeout=60s")
	w.kubectl(t, "", "delete", "pv", pv, "--timeout=60s")
}

// imageID asks rbd for the id of the image that its arguments name.
func (w *world) imageID(t *testing.T, args ...string) string {
	t.Helper()
	var info struct {
		ID string `json:"id"`
	}
	must(t, json.Unmarshal([]byte(w.rbd(t, append([]string{"info", "--format", "json"}, args...)...)), &info))
	return info.ID
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
