package csitest

import (
	"context"
	"slices"

	"github.com/container-storage-interface/spec/lib/go/csi"

	"github.com/escache/escache-csi/api/v1alpha1"
)

// Clone makes a volume of another one.
func (w *World) Clone(name, source string) error {
	_, err := w.Service.CreateVolume(context.Background(), FromVolume(name, source))
	return err
}

// DiscardRequest is a request to give up what only the caches of a volume have.
func (w *World) DiscardRequest(volume string, epoch int64) *v1alpha1.CacheDiscard {
	r := &v1alpha1.CacheDiscard{Spec: v1alpha1.CacheDiscardSpec{Volume: volume, Confirm: volume, Epoch: epoch, RequestedBy: "alice"}}
	r.UID = "u-1"
	return r
}

// SnapGroup takes a group snapshot of volumes.
func (w *World) SnapGroup(name string, ids ...string) (*csi.VolumeGroupSnapshot, error) {
	r, err := w.Service.CreateVolumeGroupSnapshot(context.Background(), GroupRequest(name, ids...))
	return r.GetGroupSnapshot(), err
}

// Modify changes a volume as a VolumeAttributesClass does. The pairs are keys and values.
func (w *World) Modify(id string, pairs ...string) error {
	attributes := map[string]string{}
	for pair := range slices.Chunk(pairs, 2) {
		attributes[pair[0]] = pair[1]
	}
	_, err := w.Service.ControllerModifyVolume(context.Background(), &csi.ControllerModifyVolumeRequest{
		VolumeId: id, MutableParameters: attributes,
	})
	return err
}

// AskMove asks on the volume's record that it move to a group, or not any more.
func (w *World) AskMove(id, group string) {
	w.T.Helper()
	v := w.Volume(id)
	v.Spec.MoveTo = nil
	if group != "" {
		v.Spec.MoveTo = &v1alpha1.MoveTarget{Group: group}
	}
	Must(w.T, w.API.Update(context.Background(), v))
}

// AskRelease asks on the volume's record that it be released, or not any more.
func (w *World) AskRelease(id string, release bool) {
	w.T.Helper()
	v := w.Volume(id)
	v.Spec.Release = release
	Must(w.T, w.API.Update(context.Background(), v))
}

// Snap takes a snapshot of a volume.
func (w *World) Snap(name, volume string) (*csi.Snapshot, error) {
	r, err := w.Service.CreateSnapshot(context.Background(), &csi.CreateSnapshotRequest{Name: name, SourceVolumeId: volume})
	return r.GetSnapshot(), err
}

// Unsnap deletes a snapshot.
func (w *World) Unsnap(id string) error {
	_, err := w.Service.DeleteSnapshot(context.Background(), &csi.DeleteSnapshotRequest{SnapshotId: id})
	return err
}

// Snapshots are the records of snapshots by name.
func (w *World) Snapshots() map[string]v1alpha1.CacheSnapshot {
	w.T.Helper()
	all := &v1alpha1.CacheSnapshotList{}
	Must(w.T, w.API.List(context.Background(), all))
	out := map[string]v1alpha1.CacheSnapshot{}
	for _, s := range all.Items {
		out[s.Name] = s
	}
	return out
}

// Create makes a volume, and returns its record.
func (w *World) Create(name string) *v1alpha1.CacheVolume {
	w.T.Helper()
	_, err := w.Service.CreateVolume(context.Background(), CreateRequest(name))
	Must(w.T, err)
	return w.Volume(name)
}

// Publish attaches a volume to a node.
func (w *World) Publish(id, node string) (map[string]string, error) {
	r, err := w.Service.ControllerPublishVolume(context.Background(), &csi.ControllerPublishVolumeRequest{
		VolumeId: id, NodeId: node, VolumeCapability: Capability(),
	})
	return r.GetPublishContext(), err
}

// Unpublish detaches a volume from a node.
func (w *World) Unpublish(id, node string) error {
	_, err := w.Service.ControllerUnpublishVolume(context.Background(), &csi.ControllerUnpublishVolumeRequest{VolumeId: id, NodeId: node})
	return err
}

// Delete deletes a volume.
func (w *World) Delete(id string) error {
	_, err := w.Service.DeleteVolume(context.Background(), &csi.DeleteVolumeRequest{VolumeId: id})
	return err
}
