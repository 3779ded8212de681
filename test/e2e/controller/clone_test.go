//go:build e2e

package controller

import (
	"context"
	"encoding/json"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/container-storage-interface/spec/lib/go/csi"

	"github.com/escache/escache-csi/api/escache"
	"github.com/escache/escache-csi/api/v1alpha1"
)

// cloneClaim asks for a clone of the claim data.
func cloneClaim(name, size string) string {
	return fmt.Sprintf(`
apiVersion: v1
kind: PersistentVolumeClaim
metadata: {name: %s}
spec:
  accessModes: [ReadWriteOncePod]
  storageClassName: escache
  resources: {requests: {storage: %s}}
  dataSource: {kind: PersistentVolumeClaim, name: data}
`, name, size)
}

// cloneLife is what a person does: a claim, a larger claim that is a clone of it, and one that is too
// small; then the source goes first.
func cloneLife(t *testing.T, w *world) {
	d := w.launch(t, "a", soon...)
	leader(t, time.Minute, d)
	w.kube.SidecarsAs(t, w.account, "a", d.socket(), topologyArgs)
	for _, objects := range []string{class, claim} {
		w.kubectl(t, objects, "apply", "-f", "-")
	}
	w.kubectl(t, "", "wait", "--for=jsonpath={.status.phase}=Bound", "pvc/data", "--timeout=60s")
	source := w.one(t)
	w.kubectl(t, cloneClaim("small", "1Gi")+"---"+cloneClaim("copy", "3Gi"), "apply", "-f", "-")
	w.kubectl(t, "", "wait", "--for=jsonpath={.status.phase}=Bound", "pvc/copy", "--timeout=60s")
	clone := w.of(t, "copy")
	if clone.Spec.FromVolume != source.Name {
		t.Errorf("on record as a clone of %q", clone.Spec.FromVolume)
	}
	var image struct {
		Size   int64 `json:"size"`
		Parent struct {
			Image string `json:"image"`
		} `json:"parent"`
	}
	must(t, json.Unmarshal([]byte(w.rbd(t, "info", "--format", "json", "fast/"+clone.Spec.Image)), &image))
	if image.Size != 3*gib || image.Parent.Image != source.Spec.Image {
		t.Errorf("image %+v", image)
	}
	if left := w.rbd(t, "snap", "ls", "fast/"+source.Spec.Image); left != "" {
		t.Errorf("the source still has %s", left)
	}
	if phase := w.kubectl(t, "", "get", "pvc", "small", "-o", "jsonpath={.status.phase}"); phase != "Pending" {
		t.Errorf("a clone that is smaller than its source is %s", phase)
	}
	w.countedUp(t, "small", "ProvisioningFailed")
	w.kubectl(t, "", "delete", "pvc", "small", "data", "--timeout=60s")
	eventually(t, time.Minute, func() bool { return len(w.volumes(t)) == 1 }, func() string { return fmt.Sprint(w.volumes(t)) })
	w.kubectl(t, "", "delete", "pvc", "copy", "--timeout=60s")
	w.empty(t)
	w.kubectl(t, "", "delete", "storageclass/escache")
}

// countedUp waits until a claim's Event has been told again, and shows that Kubernetes has counted it in the one that is
// there: its text is the same at each try.
func (w *world) countedUp(t *testing.T, claim, reason string) {
	t.Helper()
	counts := ""
	eventually(t, time.Minute, func() bool {
		counts = w.kubectl(t, "", "get", "events", "--field-selector", "involvedObject.name="+claim+",reason="+reason,
			"-o", `jsonpath={range .items[*]}{.count} {.message}{"\n"}{end}`)
		return counts != "" && !strings.HasPrefix(counts, "1 ") || strings.Count(counts, "\n") > 1
	}, func() string { return "it is not told again: " + counts })
	if strings.Count(counts, "\n") > 1 {
		t.Errorf("Kubernetes has made an Event of each try:\n%s", counts)
	}
}

const crashedClone = "pvc-crash-clone"

func (d *driver) clone(ctx context.Context, name, source string) error {
	r := creation(name)
	r.VolumeContentSource = &csi.VolumeContentSource{Type: &csi.VolumeContentSource_Volume{
		Volume: &csi.VolumeContentSource_VolumeSource{VolumeId: source},
	}}
	_, err := d.CreateVolume(ctx, r)
	return err
}

// connect makes a volume that a host has connected, with something dirty.
func connect(t *testing.T, w *world, d *driver) {
	t.Helper()
	connectVolume(t, w, d, crashed)
}

func connectVolume(t *testing.T, w *world, d *driver, name string) {
	t.Helper()
	until(t, func() error { return d.create(t.Context(), name) })
	w.useVolume(t, d, name)
}

// useVolume has a host connect a volume and write to it.
func (w *world) useVolume(t *testing.T, d *driver, name string) {
	t.Helper()
	v := w.recordOf(t, name)
	node, image := v.Spec.Replicas[0], escache.VolumeRef{Pool: v.Spec.Pool, Image: v.Spec.Image}
	until(t, func() error { return d.publish(t.Context(), name, node) })
	w.fleet.Hosts[node].Stage(image, "127.0.0.1:0/4712", w.recordOf(t, name).Status.Epoch, escache.ModeWriteback)
	w.fleet.Hosts[node].Write(image, 4<<20)
}

// disconnect undoes connect.
func disconnect(t *testing.T, w *world, d *driver) {
	t.Helper()
	disconnectVolume(t, w, d, crashed)
}

func disconnectVolume(t *testing.T, w *world, d *driver, name string) {
	t.Helper()
	w.leaveVolume(t, d, name)
	until(t, func() error { return d.delete(t.Context(), name) })
}

// leaveVolume undoes useVolume.
func (w *world) leaveVolume(t *testing.T, d *driver, name string) {
	t.Helper()
	v := w.recordOf(t, name)
	node, image := v.Spec.Replicas[0], escache.VolumeRef{Pool: v.Spec.Pool, Image: v.Spec.Image}
	w.fleet.Hosts[node].Write(image, 0)
	w.fleet.Hosts[node].Release(image)
	until(t, func() error { return d.unpublish(t.Context(), name, "") })
}

// cloneScenes are the calls about clones of volumes.
func cloneScenes() []scene {
	clean := func(t *testing.T, w *world, d *driver) {
		until(t, func() error { return d.delete(t.Context(), crashedClone) })
		w.oneImage(t)
		disconnect(t, w, d)
	}
	return []scene{
		{
			name: "CreateVolume of an attached volume", prepare: connect, clean: clean,
			call: func(t *testing.T, _ *world, d *driver) error { return d.clone(t.Context(), crashedClone, crashed) },
			check: func(t *testing.T, w *world) {
				info := w.rbd(t, "info", "rbd/escache-"+crashedClone)
				left := w.rbd(t, "snap", "ls", "rbd/"+imageRef().Image)
				if len(w.volumes(t)) != 2 || !strings.Contains(info, imageRef().Image+"@") || left != "" {
					t.Errorf("%d volumes, image: %s, snapshots of the source: %s", len(w.volumes(t)), info, left)
				}
				for _, v := range w.volumes(t) {
					if v.Status.Phase != v1alpha1.VolumeReady {
						t.Errorf("volume %s is %s", v.Name, v.Status.Phase)
					}
					if v.Name == crashed && w.fleet.Hosts[v.Spec.Replicas[0]].Held(imageRef()) {
						t.Error("the source is still held")
					}
				}
			},
		},
	}
}
