//go:build e2e

package controller

import (
	"context"
	"strings"
	"testing"
	"time"

	"github.com/ceph/go-ceph/rbd"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/escache/escache-csi/api/v1alpha1"
)

// volumeOfOthers is an image as ceph-csi names it.
const volumeOfOthers = "csi-vol-7c1e8a52-0f3b-4a8e-9a55-1d2c3b4a5f60"

// volumeOfCinder is one as OpenStack Cinder names it, and cinderFeatures are those that Cinder gives it.
const (
	volumeOfCinder = "volume-5d8f0f0c-3c1e-4f57-9d0b-6c8a0d9f7e21"
	cinderFeatures = "layering,exclusive-lock,object-map,fast-diff,deep-flatten"
)

// adopt asks for an adoption under a fixed name, and waits until it has ended or the leader is dead.
func (w *world) adopt(ctx context.Context, d *driver, name, image string) (*v1alpha1.CacheAdoption, error) {
	a := &v1alpha1.CacheAdoption{
		ObjectMeta: metav1.ObjectMeta{Name: name},
		Spec:       v1alpha1.CacheAdoptionSpec{ClusterID: clusterID, Pool: "rbd", Image: image, Group: "g1"},
	}
	if err := w.api.Create(ctx, a); err != nil && !apierrors.IsAlreadyExists(err) {
		return nil, err
	}
	for end := time.Now().Add(time.Minute); d.alive() && time.Now().Before(end); time.Sleep(20 * time.Millisecond) {
		if err := w.api.Get(ctx, client.ObjectKeyFromObject(a), a); err != nil {
			return nil, err
		}
		switch a.Status.Phase {
		case v1alpha1.AdoptionDone:
			return a, nil
		case v1alpha1.AdoptionRefused:
			return a, status.Error(codes.FailedPrecondition, a.Status.Message)
		}
	}
	return nil, status.Errorf(codes.Unavailable, "not adopted: %+v", a.Status)
}

func (w *world) withdraw(t *testing.T, name string) {
	t.Helper()
	must(t, client.IgnoreNotFound(w.api.Delete(context.Background(), &v1alpha1.CacheAdoption{ObjectMeta: metav1.ObjectMeta{Name: name}})))
}

// contents writes a text into an image as another tool does, or reads it.
func (w *world) contents(t *testing.T, image string, text string) string {
	t.Helper()
	io, err := w.admin.OpenIOContext("rbd")
	must(t, err)
	defer io.Destroy()
	i, err := rbd.OpenImage(io, image, rbd.NoSnapshot)
	must(t, err)
	defer i.Close()
	if text != "" {
		_, err = i.WriteAt([]byte(text), 0)
		must(t, err)
	}
	has := make([]byte, 16)
	_, err = i.ReadAt(has, 0)
	must(t, err)
	return strings.TrimRight(string(has), "\x00")
}

// adoptLife takes an image of another driver in, uses it, gives it up and takes it in again. Its data
// stays all the time.
func adoptLife(t *testing.T, w *world) {
	d := leader(t, time.Minute, w.launch(t, "a", soon...))
	w.rbd(t, "create", "--size", "1G", "--image-feature", "layering,exclusive-lock,journaling", "rbd/"+volumeOfOthers)
	w.contents(t, volumeOfOthers, "their data")
	before := w.rbd(t, "info", "rbd/"+volumeOfOthers)
	_, err := w.adopt(t.Context(), d, "early", volumeOfOthers)
	wants(t, err, []codes.Code{codes.FailedPrecondition}, "rbd feature disable rbd/"+volumeOfOthers+" journaling")
	if n := len(w.volumes(t)); n > 0 || w.rbd(t, "info", "rbd/"+volumeOfOthers) != before {
		t.Errorf("%d records; image was\n%s\nand is\n%s", n, before, w.rbd(t, "info", "rbd/"+volumeOfOthers))
	}
	w.withdraw(t, "early")
	w.rbd(t, "feature", "disable", "rbd/"+volumeOfOthers, "journaling")

	first, err := w.adopt(t.Context(), d, "first", volumeOfOthers)
	must(t, err)
	if first.Status.Group != "g1" || first.Status.SizeBytes != gib || first.Status.Volume != "adopted-"+string(first.UID) {
		t.Errorf("status %+v", first.Status)
	}
	_, err = w.adopt(t.Context(), d, "again", volumeOfOthers)
	wants(t, err, []codes.Code{codes.FailedPrecondition}, "volume "+first.Status.Volume+" has it")
	w.useOnce(t, d, first.Status.Volume)
	must(t, w.release(t.Context(), d, first.Status.Volume))
	w.released(t, volumeOfOthers)

	second, err := w.adopt(t.Context(), d, "second", volumeOfOthers)
	must(t, err)
	if v := w.one(t); v.Status.Epoch != 1 || len(v.Status.Outdated) != 2 {
		t.Errorf("it has forgotten its epoch: %+v", v.Status)
	}
	w.useOnce(t, d, second.Status.Volume)
	if has := w.contents(t, volumeOfOthers, ""); has != "their data" {
		t.Errorf("the image has %q", has)
	}
	for _, name := range []string{"first", "again", "second"} {
		w.withdraw(t, name)
	}
	until(t, func() error { return d.delete(t.Context(), second.Status.Volume) }) // as with reclaimPolicy Delete
	w.empty(t)
	w.adoptOfCinder(t, d)
}

// adoptOfCinder takes a volume of OpenStack Cinder in, uses it and gives it back.
func (w *world) adoptOfCinder(t *testing.T, d *driver) {
	t.Helper()
	w.rbd(t, "create", "--size", "1G", "--image-feature", cinderFeatures, "rbd/"+volumeOfCinder)
	w.contents(t, volumeOfCinder, "cinder's data")
	adopted, err := w.adopt(t.Context(), d, "cinder", volumeOfCinder)
	must(t, err)
	w.useOnce(t, d, adopted.Status.Volume)
	must(t, w.release(t.Context(), d, adopted.Status.Volume))
	w.released(t, volumeOfCinder)
	has, info := w.contents(t, volumeOfCinder, ""), w.rbd(t, "info", "rbd/"+volumeOfCinder)
	if has != "cinder's data" || !strings.Contains(info, strings.ReplaceAll(cinderFeatures, ",", ", ")) {
		t.Errorf("it has %q, and is\n%s", has, info)
	}
	w.withdraw(t, "cinder")
	w.rbd(t, "rm", "--no-progress", "rbd/"+volumeOfCinder)
}

func (w *world) useOnce(t *testing.T, d *driver, volume string) {
	t.Helper()
	until(t, func() error { return d.publish(t.Context(), volume, w.one(t).Spec.Replicas[0]) })
	until(t, func() error { return d.unpublish(t.Context(), volume, "") })
}

func adoptScenes() []scene {
	return []scene{{
		name: "adoption",
		prepare: func(t *testing.T, w *world, _ *driver) {
			w.rbd(t, "create", "--size", "1G", "--image-feature", "layering,exclusive-lock", "rbd/"+volumeOfOthers)
		},
		call: func(t *testing.T, w *world, d *driver) error {
			_, err := w.adopt(t.Context(), d, "crash", volumeOfOthers)
			return err
		},
		check: func(t *testing.T, w *world) {
			v := w.one(t)
			mark := w.rbd(t, "image-meta", "get", "rbd/"+volumeOfOthers, "escache.io/volume")
			if v.Status.Phase != v1alpha1.VolumeReady || v.Status.ImageID == "" || strings.TrimSpace(mark) != v.Name {
				t.Errorf("record %+v, mark %s", v.Status, mark)
			}
		},
		clean: func(t *testing.T, w *world, d *driver) {
			until(t, func() error { return d.delete(t.Context(), w.one(t).Name) })
			w.withdraw(t, "crash")
		},
	}}
}
