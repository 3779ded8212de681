package csi

import (
	"context"
	"errors"

	"github.com/container-storage-interface/spec/lib/go/csi"

	"github.com/escache/escache-csi/api/v1alpha1"
	"github.com/escache/escache-csi/internal/controller/volumes"
)

// publish gives a node a volume that can be used.
func (s *service) publish(ctx context.Context, id, node string) (map[string]string, error) {
	v, err := s.Volume(ctx, id)
	if err != nil {
		return nil, err
	}
	if err := volumes.Usable(v); err != nil {
		return nil, err
	}
	return s.attachments.Publish(ctx, v, node)
}

// unpublish takes a volume from a node, also a read-only one.
func (s *service) unpublish(ctx context.Context, id, node string) error {
	v, err := s.Volume(ctx, id)
	if errors.Is(err, volumes.ErrNotFound) {
		return gone(s.readOnly.Unpublish(ctx, id, node)) // what is gone is attached nowhere
	}
	if err != nil {
		return err
	}
	return s.attachments.Unpublish(ctx, v, node)
}

// volumeOf returns the volume as CSI sees it. Any node of the group can have it. One with uncachedFallback
// can also be had by a node outside, while that has the label: see package fallback.
func volumeOf(v *v1alpha1.CacheVolume) *csi.Volume {
	out := &csi.Volume{
		VolumeId: v.Name, CapacityBytes: v.Spec.SizeBytes,
		AccessibleTopology: []*csi.Topology{{Segments: map[string]string{v1alpha1.TopologyKey: v.Spec.Group}}},
	}
	if v.Spec.UncachedFallback {
		allowed := map[string]string{v1alpha1.UncachedKey(v.Spec.Group): "true"}
		out.AccessibleTopology = append(out.AccessibleTopology, &csi.Topology{Segments: allowed})
	}
	if v.Spec.FromSnapshot != "" {
		out.ContentSource = &csi.VolumeContentSource{Type: &csi.VolumeContentSource_Snapshot{
			Snapshot: &csi.VolumeContentSource_SnapshotSource{SnapshotId: v.Spec.FromSnapshot},
		}}
	}
	if v.Spec.FromVolume != "" {
		out.ContentSource = &csi.VolumeContentSource{Type: &csi.VolumeContentSource_Volume{
			Volume: &csi.VolumeContentSource_VolumeSource{VolumeId: v.Spec.FromVolume},
		}}
	}
	return out
}

// publishedOn returns the nodes that Kubernetes has asked for. A node that only writes the cache
// back is not one of them.
func publishedOn(v *v1alpha1.CacheVolume) []string {
	if v.Status.AttachedNode == "" || v.Status.FlushAttached() {
		return nil
	}
	return []string{v.Status.AttachedNode}
}
