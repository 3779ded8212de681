//go:build e2e

package controller

import (
	"errors"
	"slices"
	"strings"
	"syscall"
	"testing"

	"github.com/container-storage-interface/spec/lib/go/csi"

	"github.com/escache/escache-csi/api/v1alpha1"
)

const crashedReadOnly = "pvc-read-only"

// readOnlyScenes are the calls about a read-only volume of a snapshot.
func readOnlyScenes() []scene {
	const node = "n1"
	many := capability()
	many.AccessMode.Mode = csi.VolumeCapability_AccessMode_MULTI_NODE_READER_ONLY
	create := func(t *testing.T, _ *world, d *driver) error {
		r := creation(crashedReadOnly)
		r.VolumeCapabilities = []*csi.VolumeCapability{many}
		r.VolumeContentSource = &csi.VolumeContentSource{Type: &csi.VolumeContentSource_Snapshot{
			Snapshot: &csi.VolumeContentSource_SnapshotSource{SnapshotId: crashedSnapshot},
		}}
		_, err := d.CreateVolume(t.Context(), r)
		return err
	}
	publish := func(t *testing.T, _ *world, d *driver) error {
		r := &csi.ControllerPublishVolumeRequest{VolumeId: crashedReadOnly, NodeId: node, VolumeCapability: many, Readonly: true}
		_, err := d.ControllerPublishVolume(t.Context(), r)
		return err
	}
	unpublish := func(t *testing.T, _ *world, d *driver) error { return d.unpublish(t.Context(), crashedReadOnly, node) }
	remove := func(t *testing.T, _ *world, d *driver) error { return d.delete(t.Context(), crashedReadOnly) }

	snapshot := func(t *testing.T, _ *world, d *driver) {
		until(t, func() error { return d.create(t.Context(), crashed) })
		until(t, func() error { return d.snapshot(t.Context(), crashedSnapshot, crashed) })
	}
	after := func(steps ...func(*testing.T, *world, *driver) error) func(*testing.T, *world, *driver) {
		return func(t *testing.T, w *world, d *driver) {
			snapshot(t, w, d)
			for _, step := range steps {
				until(t, func() error { return step(t, w, d) })
			}
		}
	}
	clean := func(t *testing.T, w *world, d *driver) {
		for _, step := range []func(*testing.T, *world, *driver) error{unpublish, remove} {
			until(t, func() error { return step(t, w, d) })
		}
		w.oneImage(t)
		until(t, func() error { return d.deleteSnapshot(t.Context(), crashedSnapshot) })
		until(t, func() error { return d.delete(t.Context(), crashed) })
	}
	// has checks which nodes have an image, and that nobody else has one.
	has := func(nodes ...string) func(*testing.T, *world) {
		return func(t *testing.T, w *world) {
			v := w.readOnly(t)[0]
			want := []string{imageRef().Image}
			for _, node := range nodes {
				want = append(want, v.ImageOn(node))
				if c := v.CopyOn(node); c == nil || c.ImageID == "" {
					t.Errorf("status %+v", v.Status)
				}
			}
			images := slices.DeleteFunc(w.images(t), func(name string) bool { return strings.HasPrefix(name, "trash:") })
			if slices.Sort(images); !slices.Equal(images, want) || len(v.Status.Copies) != len(nodes) {
				t.Errorf("images %v, want %v; status %+v", images, want, v.Status)
			}
		}
	}
	var open *mapped
	return []scene{
		{
			name: "ControllerUnpublishVolume with ReadOnlyMany from a node that is given up",
			prepare: func(t *testing.T, w *world, d *driver) {
				after(create, publish)(t, w, d)
				open = w.open(t, w.readOnly(t)[0].ImageOn(node))
				w.kubectl(t, "", "taint", "node", node, "node.kubernetes.io/out-of-service=nodeshutdown:NoExecute")
			},
			call: unpublish, check: has(),
			clean: func(t *testing.T, w *world, d *driver) {
				if err := open.write(); !errors.Is(err, syscall.ESHUTDOWN) {
					t.Errorf("the node that was given up has the image: %v", err)
				}
				open.close()
				w.kubectl(t, "", "taint", "node", node, "node.kubernetes.io/out-of-service-")
				clean(t, w, d)
			},
		},
		{name: "CreateVolume with ReadOnlyMany", prepare: snapshot, call: create, check: has(), clean: clean},
		{name: "ControllerPublishVolume with ReadOnlyMany", prepare: after(create), call: publish, check: has(node), clean: clean},
		{name: "ControllerUnpublishVolume with ReadOnlyMany", prepare: after(create, publish), call: unpublish, check: has(), clean: clean},
		{
			name: "DeleteVolume with ReadOnlyMany", prepare: after(create), call: remove, clean: clean,
			check: func(t *testing.T, w *world) {
				if all := w.readOnly(t); len(all) > 0 {
					t.Errorf("left: %+v", all)
				}
			},
		},
	}
}

func (w *world) readOnly(t *testing.T) []v1alpha1.ReadOnlyVolume {
	t.Helper()
	all := &v1alpha1.ReadOnlyVolumeList{}
	must(t, w.api.List(t.Context(), all))
	return all.Items
}
