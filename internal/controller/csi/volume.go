package csi

import (
	"context"
	"errors"
	"fmt"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"k8s.io/apimachinery/pkg/api/meta"

	"github.com/escache/escache-csi/api/v1alpha1"
	"github.com/escache/escache-csi/internal/controller/volumes"
)

// publish gives a node a volume that can be used.
func (s *service) publish(ctx context.Context, id, node string) (map[string]string, error) {
	v, err := s.Volume(ctx, id)
	if err != nil {
		return nil, err
	}
	if err := usable(v); err != nil {
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

// usable refuses a volume that is not made yet, or about to go.
func usable(v *v1alpha1.CacheVolume) error {
	switch {
	case v.Status.Phase == v1alpha1.VolumeReleasing:
		return fmt.Errorf("volume %s is being released, and its image is given up: %w", v.Name, volumes.ErrRefused)
	case v.Spec.Release:
		return fmt.Errorf("volume %s is being released; to keep it: kubectl escache release --cancel --volume %s: %w",
			v.Name, v.Name, volumes.ErrRefused)
	case v.Status.Phase == v1alpha1.VolumeConflict:
		return inConflict(v)
	case v.Status.Phase != v1alpha1.VolumeReady:
		return fmt.Errorf("volume %s is not created yet: %w", v.Name, volumes.ErrRefused)
	case v.Status.Move != nil:
		return moving(v)
	}
	return nil
}

// moving refuses a volume while it goes to another group. That takes seconds, and the call is repeated.
func moving(v *v1alpha1.CacheVolume) error {
	return fmt.Errorf("volume %s is moving to group %s: %w", v.Name, v.Status.Move.Group, volumes.ErrBusy)
}

// inConflict says what keeps a volume whose record was re-created from being used.
func inConflict(v *v1alpha1.CacheVolume) error {
	why := ""
	if c := meta.FindStatusCondition(v.Status.Conditions, v1alpha1.ConditionCopyProven); c != nil {
		why = ": " + c.Message
	}
	return fmt.Errorf("volume %s is stopped, because nothing proves which copy of its data is current%s; "+
		"kubectl escache adopt --all says what helps: %w", v.Name, why, volumes.ErrRefused)
}
