//go:build e2e

package controller

import (
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/container-storage-interface/spec/lib/go/csi"

	"github.com/escache/escache-csi/api/v1alpha1"
)

const snapshotClass = `
apiVersion: snapshot.storage.k8s.io/v1
kind: VolumeSnapshotClass
metadata: {name: escache}
driver: csi.escache.io
deletionPolicy: Delete
`

const volumeSnapshot = `
apiVersion: snapshot.storage.k8s.io/v1
kind: VolumeSnapshot
metadata: {name: data}
spec: {volumeSnapshotClassName: escache, source: {persistentVolumeClaimName: data}}
`

const restored = `
apiVersion: v1
kind: PersistentVolumeClaim
metadata: {name: restored}
spec:
  accessModes: [ReadWriteOncePod]
  storageClassName: escache
  resources: {requests: {storage: 3Gi}}
  dataSource: {apiGroup: snapshot.storage.k8s.io, kind: VolumeSnapshot, name: data}
`

// snapshotLife is what a person does: a claim, a VolumeSnapshot of it, a larger claim of that; then
// all is deleted in an order that makes the driver wait.
func snapshotLife(t *testing.T, w *world) {
	d := w.launch(t, "a", soon...)
	leader(t, time.Minute, d)
	w.kube.SidecarsAs(t, w.account, "a", d.socket(), topologyArgs)
	for _, objects := range []string{class, claim, snapshotClass} {
		w.kubectl(t, objects, "apply", "-f", "-")
	}
	w.kubectl(t, "", "wait", "--for=jsonpath={.status.phase}=Bound", "pvc/data", "--timeout=60s")
	source := w.one(t)
	w.kubectl(t, volumeSnapshot, "apply", "-f", "-")
	w.kubectl(t, "", "wait", "--for=jsonpath={.status.readyToUse}=true", "volumesnapshot/data", "--timeout=60s")
	taken := w.snapshots(t)
	if len(taken) != 1 || taken[0].Spec.Volume != source.Name || taken[0].Status.SizeBytes != 2*gib || taken[0].Status.Taken == nil {
		t.Fatalf("on record: %+v", taken)
	}
	t.Logf("\n%s", w.kubectl(t, "", "get", "cachesnapshots"))

	w.kubectl(t, restored, "apply", "-f", "-")
	w.kubectl(t, "", "wait", "--for=jsonpath={.status.phase}=Bound", "pvc/restored", "--timeout=60s")
	clone := w.of(t, "restored")
	var image struct {
		Size   int64 `json:"size"`
		Parent struct {
			Image    string `json:"image"`
			Snapshot string `json:"snapshot"`
		} `json:"parent"`
	}
	must(t, json.Unmarshal([]byte(w.rbd(t, "info", "--format", "json", "fast/"+clone.Spec.Image)), &image))
	if image.Size != 3*gib || image.Parent.Image != source.Spec.Image || image.Parent.Snapshot != taken[0].Spec.Snapshot {
		t.Errorf("image %+v", image)
	}

	// The source goes before its snapshot, whose image stays, and the snapshot while it has clones.
	w.kubectl(t, "", "delete", "pvc", "data", "--timeout=60s")
	eventually(t, time.Minute, func() bool { return len(w.volumes(t)) == 1 }, func() string { return fmt.Sprint(w.volumes(t)) })
	if kept := w.rbd(t, "image-meta", "get", "fast/"+source.Spec.Image, "escache.io/deleted"); strings.TrimSpace(kept) == "" {
		t.Error("the image does not say that its volume is deleted")
	}
	later := strings.Replace(restored, "name: restored", "name: later", 1)
	w.kubectl(t, later, "apply", "-f", "-")
	w.kubectl(t, "", "wait", "--for=jsonpath={.status.phase}=Bound", "pvc/later", "--timeout=60s")
	w.kubectl(t, "", "delete", "volumesnapshot", "data", "--timeout=60s")
	eventually(t, time.Minute, func() bool {
		return len(w.snapshots(t)) == 0 && !slices.Contains(w.images(t), source.Spec.Image)
	}, func() string { return fmt.Sprintf("left: %v, %v", w.snapshots(t), w.images(t)) })
	w.kubectl(t, "", "delete", "pvc", "restored", "later", "--timeout=60s")
	w.empty(t)
	w.kubectl(t, "", "delete", "storageclass/escache", "volumesnapshotclass/escache")
}

// of is the volume of a claim.
func (w *world) of(t *testing.T, claim string) *v1alpha1.CacheVolume {
	t.Helper()
	for _, v := range w.volumes(t) {
		if v.Annotations[v1alpha1.AnnotationClaim] == "default/"+claim {
			return &v
		}
	}
	t.Fatalf("no volume of claim %s", claim)
	return nil
}

const crashedSnapshot = "snapshot-crash"

// snapshotScenes are the calls about snapshots, of a volume that a host has connected.
func snapshotScenes() []scene {
	const clone = "pvc-clone"
	take := func(t *testing.T, w *world, d *driver) {
		connect(t, w, d)
		until(t, func() error { return d.snapshot(t.Context(), crashedSnapshot, crashed) })
	}
	takeDetached := func(t *testing.T, w *world, d *driver) {
		take(t, w, d)
		node := w.one(t).Spec.Replicas[0]
		w.fleet.Hosts[node].Write(imageRef(), 0)
		w.fleet.Hosts[node].Release(imageRef())
		until(t, func() error { return d.unpublish(t.Context(), crashed, "") })
	}
	clean := func(t *testing.T, w *world, d *driver) {
		until(t, func() error { return d.deleteSnapshot(t.Context(), crashedSnapshot) })
		disconnect(t, w, d)
	}
	return []scene{
		{
			name: "CreateSnapshot of an attached volume", prepare: connect, clean: clean,
			call: func(t *testing.T, _ *world, d *driver) error {
				return d.snapshot(t.Context(), crashedSnapshot, crashed)
			},
			check: func(t *testing.T, w *world) {
				all := w.snapshots(t)
				if len(all) != 1 || all[0].Status.Taken == nil || !strings.Contains(w.rbd(t, "snap", "ls", "rbd/"+all[0].Spec.Image), all[0].Spec.Snapshot) {
					t.Errorf("on record: %+v", all)
				}
				if w.fleet.Hosts[w.one(t).Spec.Replicas[0]].Held(imageRef()) {
					t.Error("the volume is still held")
				}
			},
		},
		{
			name: "DeleteSnapshot", prepare: take, clean: clean,
			call: func(t *testing.T, _ *world, d *driver) error { return d.deleteSnapshot(t.Context(), crashedSnapshot) },
			check: func(t *testing.T, w *world) {
				if all, left := w.snapshots(t), w.rbd(t, "snap", "ls", "rbd/"+imageRef().Image); len(all) != 0 || left != "" {
					t.Errorf("left: %v %s", all, left)
				}
			},
		},
		{
			name: "DeleteVolume of a volume with a snapshot", prepare: takeDetached,
			call: func(t *testing.T, _ *world, d *driver) error { return d.delete(t.Context(), crashed) },
			check: func(t *testing.T, w *world) {
				kept := w.rbd(t, "image-meta", "get", "rbd/"+imageRef().Image, "escache.io/deleted")
				if len(w.volumes(t)) != 0 || len(w.snapshots(t)) != 1 || strings.TrimSpace(kept) == "" {
					t.Errorf("%d volumes, %d snapshots, deleted %q", len(w.volumes(t)), len(w.snapshots(t)), kept)
				}
				eventually(t, time.Minute, func() bool { return w.fleet.Replicas() == 0 }, func() string { return "replicas are left" })
			},
			clean: func(t *testing.T, _ *world, d *driver) {
				until(t, func() error { return d.deleteSnapshot(t.Context(), crashedSnapshot) })
			},
		},
		{
			name: "DeleteSnapshot, the last of a deleted volume", clean: func(*testing.T, *world, *driver) {},
			prepare: func(t *testing.T, w *world, d *driver) {
				takeDetached(t, w, d)
				until(t, func() error { return d.delete(t.Context(), crashed) })
			},
			call: func(t *testing.T, _ *world, d *driver) error { return d.deleteSnapshot(t.Context(), crashedSnapshot) },
			check: func(t *testing.T, w *world) {
				if all := w.snapshots(t); len(all) != 0 || slices.Contains(w.images(t), imageRef().Image) {
					t.Errorf("left: %v, %v", all, w.images(t))
				}
			},
		},
		{
			name: "CreateVolume of a snapshot", prepare: take,
			call: func(t *testing.T, _ *world, d *driver) error {
				r := creation(clone)
				r.VolumeContentSource = &csi.VolumeContentSource{Type: &csi.VolumeContentSource_Snapshot{
					Snapshot: &csi.VolumeContentSource_SnapshotSource{SnapshotId: crashedSnapshot},
				}}
				_, err := d.CreateVolume(t.Context(), r)
				return err
			},
			check: func(t *testing.T, w *world) {
				if info := w.rbd(t, "info", "rbd/escache-"+clone); len(w.volumes(t)) != 2 || !strings.Contains(info, imageRef().Image+"@") {
					t.Errorf("%d volumes, image: %s", len(w.volumes(t)), info)
				}
			},
			clean: func(t *testing.T, w *world, d *driver) {
				until(t, func() error { return d.delete(t.Context(), clone) })
				w.oneImage(t)
				clean(t, w, d)
			},
		},
	}
}
