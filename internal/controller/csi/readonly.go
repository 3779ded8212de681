package csi

import (
	"context"
	"errors"
	"fmt"
	"reflect"
	"slices"

	"github.com/container-storage-interface/spec/lib/go/csi"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/escache/escache-csi/api/v1alpha1"
	"github.com/escache/escache-csi/internal/controller/csi/requests"
	"github.com/escache/escache-csi/internal/controller/readonly"
	"github.com/escache/escache-csi/internal/controller/volumes"
)

// createReadOnly makes a read-only volume of a snapshot, or returns the one that an earlier call has made.
// The lock of the snapshot's volume keeps the snapshot from being deleted meanwhile.
func (s *service) createReadOnly(ctx context.Context, r requests.Create) (*csi.CreateVolumeResponse, error) {
	groups, err := s.groupsFor(ctx, r)
	if err != nil {
		return nil, err
	}
	v, err := s.readOnly.Get(ctx, r.ID)
	if errors.Is(err, volumes.ErrNotFound) {
		v, err = s.newReadOnly(ctx, r)
	} else if err == nil {
		err = compareReadOnly(v, r)
	}
	if err != nil {
		return nil, err
	}
	out := readOnlyVolumeOf(v)
	for _, group := range groups {
		out.AccessibleTopology = append(out.AccessibleTopology, &csi.Topology{Segments: map[string]string{v1alpha1.TopologyKey: group}})
	}
	return &csi.CreateVolumeResponse{Volume: out}, nil
}

func (s *service) newReadOnly(ctx context.Context, r requests.Create) (*v1alpha1.ReadOnlyVolume, error) {
	switch _, err := s.Volume(ctx, r.ID); {
	case err == nil:
		return nil, fmt.Errorf("volume %s can be written to, and a read-only one of that name is wanted: %w", r.ID, volumes.ErrDifferent)
	case !errors.Is(err, volumes.ErrNotFound):
		return nil, err
	}
	snapshot, err := s.snapshots.Get(ctx, r.Snapshot)
	if err != nil {
		return nil, err
	}
	done, err := s.turn(ctx, snapshot.Spec.Volume, makingReadOnly)
	if err != nil {
		return nil, err
	}
	defer done()
	if _, err := s.source(ctx, &r); err != nil {
		return nil, err
	}
	if err := s.checkFitsPool(ctx, roomOf(r.ClusterID, r.Pool, r.DataPool, r.Overcommit), r.Size.Want); err != nil {
		return nil, fmt.Errorf("volume %s: %w", r.ID, err)
	}
	if err := s.Images.EnsurePool(ctx, r.ClusterID, r.Pool, r.CreatePool); err != nil {
		return nil, unknown(err)
	}
	v := &v1alpha1.ReadOnlyVolume{
		ObjectMeta: metav1.ObjectMeta{Name: r.ID},
		Spec: v1alpha1.ReadOnlyVolumeSpec{
			ClusterID: r.ClusterID, Pool: r.Pool, DataPool: r.DataPool, Image: s.imagePrefix + r.ID, SizeBytes: r.Size.Want,
			Layout: r.Layout, Snapshot: r.Snapshot,
		},
	}
	if r.Claim != "" {
		v.Annotations = map[string]string{v1alpha1.AnnotationClaim: r.Claim}
	}
	return v, s.readOnly.Create(ctx, v)
}

// compareReadOnly returns an error if an existing volume differs from what is requested now.
func compareReadOnly(v *v1alpha1.ReadOnlyVolume, r requests.Create) error {
	is := v.Spec
	wanted := v1alpha1.ReadOnlyVolumeSpec{
		ClusterID: r.ClusterID, Pool: r.Pool, DataPool: r.DataPool, Image: is.Image, SizeBytes: is.SizeBytes, Layout: r.Layout,
		Snapshot: r.Snapshot,
	}
	switch {
	case !v.DeletionTimestamp.IsZero():
		return fmt.Errorf("volume %s is being deleted: %w", v.Name, volumes.ErrBusy)
	case !r.Size.Allows(is.SizeBytes) || !reflect.DeepEqual(is, wanted):
		return fmt.Errorf("volume %s is there, of snapshot %s in pool %s with %d bytes, and another one of that name is wanted: %w",
			v.Name, is.Snapshot, is.Pool, is.SizeBytes, volumes.ErrDifferent)
	}
	return nil
}

// groupsFor returns the groups whose nodes can have a read-only volume: all, or those of the StorageClass.
// A node outside of all groups may run no csi-node.
func (s *service) groupsFor(ctx context.Context, r requests.Create) ([]string, error) {
	all := &v1alpha1.NodeGroupList{}
	if err := s.Cached.List(ctx, all); err != nil {
		return nil, fmt.Errorf("list groups: %w", err)
	}
	var names []string
	for i := range all.Items {
		if name := all.Items[i].Name; len(r.NodeGroups) == 0 || slices.Contains(r.NodeGroups, name) {
			names = append(names, name)
		}
	}
	if len(names) == 0 {
		return nil, fmt.Errorf("volume %s: no NodeGroup may have it: %w", r.ID, volumes.ErrNoRoom)
	}
	slices.Sort(names)
	return names, nil
}

// readOnlyVolumeOf returns the volume as CSI sees it.
func readOnlyVolumeOf(v *v1alpha1.ReadOnlyVolume) *csi.Volume {
	return &csi.Volume{
		VolumeId: v.Name, CapacityBytes: v.Spec.SizeBytes,
		ContentSource: &csi.VolumeContentSource{Type: &csi.VolumeContentSource_Snapshot{
			Snapshot: &csi.VolumeContentSource_SnapshotSource{SnapshotId: v.Spec.Snapshot},
		}},
	}
}

// notReadOnly returns an error if there is a read-only volume with that id.
func (s *service) notReadOnly(ctx context.Context, id string) error {
	switch _, err := s.readOnly.Get(ctx, id); {
	case err == nil:
		return fmt.Errorf("volume %s is read-only, and one of that name that can be written to is wanted: %w", id, volumes.ErrDifferent)
	case !errors.Is(err, volumes.ErrNotFound):
		return err
	}
	return nil
}

// explain says why a read-only volume is not found by a call that only other volumes have.
func (s *service) explain(ctx context.Context, id, why string, err error) error {
	if !errors.Is(err, volumes.ErrNotFound) {
		return err
	}
	if _, missing := s.readOnly.Get(ctx, id); missing != nil {
		return err
	}
	return fmt.Errorf("volume %s is read-only, of a snapshot: %s: %w", id, why, volumes.ErrRefused)
}

// unused returns ErrRefused if a read-only volume is made from one of the snapshots.
func (s *service) unused(ctx context.Context, snapshots ...*v1alpha1.CacheSnapshot) error {
	var names []string
	for _, snapshot := range snapshots {
		names = append(names, snapshot.Name)
	}
	using, err := s.readOnly.Using(ctx, names...)
	if err == nil && len(using) > 0 {
		err = fmt.Errorf("snapshot %v has the data of the read-only volume %v: delete its claim first: %w",
			names, using, volumes.ErrRefused)
	}
	return err
}

// publishReadOnly gives a node its image of a read-only volume. Any number of nodes may have the volume at
// the same time: none of them can write to what another one reads, so none has to be fenced.
func (s *service) publishReadOnly(ctx context.Context, id, node string) error {
	err := s.readOnly.Publish(ctx, id, node)
	if !errors.Is(err, volumes.ErrNotFound) {
		return err
	}
	if _, other := s.Volume(ctx, id); other == nil {
		return fmt.Errorf("volume %s has a cache and belongs to one node at a time: ReadOnlyMany needs a claim that is made from a "+
			"snapshot: %w", id, volumes.ErrUnsupported)
	}
	return err
}

// listReadOnly is the part of ListVolumes after the last volume with a cache.
func (s *service) listReadOnly(
	ctx context.Context, most int32, token string,
) (entries []*csi.ListVolumesResponse_Entry, next string, err error) {
	page := &v1alpha1.ReadOnlyVolumeList{}
	next, err = s.list(ctx, most, token, page, func() int {
		for i := range page.Items {
			if v := &page.Items[i]; v.DeletionTimestamp.IsZero() {
				entries = append(entries, &csi.ListVolumesResponse_Entry{
					Volume: readOnlyVolumeOf(v), Status: &csi.ListVolumesResponse_VolumeStatus{PublishedNodeIds: readonly.NodesOf(v)},
				})
			}
		}
		return len(entries)
	})
	return entries, next, err
}
