//go:build e2e

package controller

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/ceph/go-ceph/rbd"
	"github.com/container-storage-interface/spec/lib/go/csi"
	corev1 "k8s.io/api/core/v1"
)

// manyClones makes fifty claims at once that are clones of one, whose data all of them have, also
// after that one is gone.
func manyClones(t *testing.T, w *world) {
	const clones, text = 50, "what the source has"
	const hung = 5 * time.Minute // on a quiet machine it takes a sixth of that
	d := w.launch(t, "a", soon...)
	leader(t, time.Minute, d)
	w.kube.SidecarsAs(t, w.account, "a", d.socket(), topologyArgs)
	w.kubectl(t, class+"---"+claim, "apply", "-f", "-")
	w.kubectl(t, "", "wait", "--for=jsonpath={.status.phase}=Bound", "pvc/data", "--timeout=60s")
	source := w.one(t)
	w.inImage(t, source.Spec.Image, func(image *rbd.Image) error { _, err := image.WriteAt([]byte(text), 0); return err })

	var all strings.Builder
	for n := range clones {
		all.WriteString(cloneClaim(fmt.Sprint("copy-", n), "2Gi") + "---")
	}
	begun := time.Now()
	w.kubectl(t, all.String(), "apply", "-f", "-")
	var pending []string
	eventually(t, hung, func() bool { pending = w.pending(t); return len(pending) == 0 },
		func() string { return fmt.Sprint("not bound: ", pending) })
	t.Logf("%d clones within %s", clones, time.Since(begun))
	if left := w.rbd(t, "snap", "ls", "fast/"+source.Spec.Image); left != "" {
		t.Errorf("the source still has %s", left)
	}

	w.kubectl(t, "", "delete", "pvc", "data", "--timeout=60s")
	eventually(t, time.Minute, func() bool { return len(w.volumes(t)) == clones }, func() string { return fmt.Sprint(len(w.volumes(t)), " volumes") })
	for _, v := range w.volumes(t) {
		got := make([]byte, len(text))
		w.inImage(t, v.Spec.Image, func(image *rbd.Image) error { _, err := image.ReadAt(got, 0); return err })
		if v.Spec.FromVolume != source.Name || string(got) != text {
			t.Errorf("%s is a clone of %q and has %q", v.Name, v.Spec.FromVolume, got)
		}
	}
	w.kubectl(t, "", "delete", "pvc", "--all", "--wait=false")
	eventually(t, hung, func() bool { return len(w.volumes(t)) == 0 }, func() string { return fmt.Sprint(len(w.volumes(t)), " volumes") })
	w.empty(t)
	w.kubectl(t, "", "delete", "storageclass/escache")
}

// pending are the claims that are not bound.
func (w *world) pending(t *testing.T) (names []string) {
	t.Helper()
	all := &corev1.PersistentVolumeClaimList{}
	must(t, w.api.List(t.Context(), all))
	for _, claim := range all.Items {
		if claim.Status.Phase != corev1.ClaimBound {
			names = append(names, claim.Name)
		}
	}
	return names
}

// inImage does something with an image of the pool fast.
func (w *world) inImage(t *testing.T, name string, do func(*rbd.Image) error) {
	t.Helper()
	io, err := w.admin.OpenIOContext("fast")
	must(t, err)
	defer io.Destroy()
	image, err := rbd.OpenImage(io, name, rbd.NoSnapshot)
	must(t, err)
	failed := do(image)
	must(t, image.Close())
	must(t, failed)
}

// everyOrder deletes a volume, a snapshot of it and a clone in every order. None may need one of the
// others, and nothing may stay, in the trash neither. Then it does so with a chain of two clones.
func everyOrder(t *testing.T, w *world) {
	const clone = "pvc-clone"
	d := leader(t, time.Minute, w.launch(t, "a", soon...))
	remove := map[string]func(context.Context) error{
		"volume":   func(ctx context.Context) error { return d.delete(ctx, crashed) },
		"snapshot": func(ctx context.Context) error { return d.deleteSnapshot(ctx, crashedSnapshot) },
		"clone":    func(ctx context.Context) error { return d.delete(ctx, clone) },
	}
	of := map[string]func(context.Context) error{
		"volume":   func(ctx context.Context) error { return d.clone(ctx, clone, crashed) },
		"snapshot": func(ctx context.Context) error { return d.restore(ctx, clone, crashedSnapshot, "rbd") },
	}
	for source, makeClone := range of {
		for _, order := range []string{
			"volume snapshot clone", "volume clone snapshot", "snapshot volume clone",
			"snapshot clone volume", "clone volume snapshot", "clone snapshot volume",
		} {
			t.Run("clone of the "+source+": "+order, func(t *testing.T) {
				until(t, func() error { return d.create(t.Context(), crashed) })
				until(t, func() error { return d.snapshot(t.Context(), crashedSnapshot, crashed) })
				until(t, func() error { return makeClone(t.Context()) })
				w.removeAll(t, order, remove)
			})
		}
	}
	w.cloneOfClone(t, d)
}

// cloneOfClone deletes a volume, its snapshot, the clone of that, the clone's snapshot and the clone of
// that one in several orders. What the volume had is in the last clone as long as that is there.
func (w *world) cloneOfClone(t *testing.T, d *driver) {
	t.Helper()
	const first, snapshotOfFirst, second, text = "pvc-clone", "snapshot-of-clone", "pvc-clone-of-clone", "what the volume"
	remove := map[string]func(context.Context) error{
		"volume":    func(ctx context.Context) error { return d.delete(ctx, crashed) },
		"snapshot":  func(ctx context.Context) error { return d.deleteSnapshot(ctx, crashedSnapshot) },
		"clone":     func(ctx context.Context) error { return d.delete(ctx, first) },
		"snapshot2": func(ctx context.Context) error { return d.deleteSnapshot(ctx, snapshotOfFirst) },
		"clone2":    func(ctx context.Context) error { return d.delete(ctx, second) },
	}
	for _, order := range []string{
		"volume snapshot clone snapshot2 clone2", // each before what was made of it
		"clone2 snapshot2 clone snapshot volume", // each after what was made of it
		"clone volume snapshot2 snapshot clone2", // the middle first
		"snapshot2 snapshot volume clone clone2", // the snapshots first
		"clone clone2 volume snapshot snapshot2", // the volumes first
		"snapshot clone2 snapshot2 volume clone",
	} {
		t.Run("clone of a clone: "+order, func(t *testing.T) {
			until(t, func() error { return d.create(t.Context(), crashed) })
			w.contents(t, imageRef().Image, text)
			until(t, func() error { return d.snapshot(t.Context(), crashedSnapshot, crashed) })
			until(t, func() error { return d.restore(t.Context(), first, crashedSnapshot, "rbd") })
			until(t, func() error { return d.snapshot(t.Context(), snapshotOfFirst, first) })
			until(t, func() error { return d.restore(t.Context(), second, snapshotOfFirst, "fast") })
			before, after, _ := strings.Cut(order, "clone2")
			w.removeEach(t, before, remove)
			has := make([]byte, len(text))
			w.inImage(t, "escache-"+second, func(image *rbd.Image) error { _, err := image.ReadAt(has, 0); return err })
			if string(has) != text {
				t.Errorf("after these were deleted: %s, the last clone has %q", before, has)
			}
			w.removeAll(t, "clone2"+after, remove)
		})
	}
}

// removeAll removes things in the order in which they are named, and shows that nothing is left.
func (w *world) removeAll(t *testing.T, order string, remove map[string]func(context.Context) error) {
	t.Helper()
	w.removeEach(t, order, remove)
	w.empty(t)
}

func (w *world) removeEach(t *testing.T, order string, remove map[string]func(context.Context) error) {
	t.Helper()
	for what := range strings.FieldsSeq(order) {
		// While a clone is removed for good, Ceph has its source open.
		var err error
		eventually(t, emptied, func() bool { err = remove[what](t.Context()); return err == nil },
			func() string { return fmt.Sprintf("delete the %s: %v", what, err) })
	}
}

// restore makes a volume of a snapshot in a pool.
func (d *driver) restore(ctx context.Context, name, snapshot, pool string) error {
	r := creation(name)
	r.Parameters["pool"] = pool
	r.VolumeContentSource = &csi.VolumeContentSource{Type: &csi.VolumeContentSource_Snapshot{
		Snapshot: &csi.VolumeContentSource_SnapshotSource{SnapshotId: snapshot},
	}}
	_, err := d.CreateVolume(ctx, r)
	return err
}
