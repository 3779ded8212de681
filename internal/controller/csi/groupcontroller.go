package csi

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/escache/escache-csi/api/v1alpha1"
	"github.com/escache/escache-csi/internal/controller/csi/requests"
	"github.com/escache/escache-csi/internal/controller/volumes"
)

// GroupControllerGetCapabilities says that there are group snapshots.
func (*Service) GroupControllerGetCapabilities(
	context.Context, *csi.GroupControllerGetCapabilitiesRequest,
) (*csi.GroupControllerGetCapabilitiesResponse, error) {
	const snapshots = csi.GroupControllerServiceCapability_RPC_CREATE_DELETE_GET_VOLUME_GROUP_SNAPSHOT
	return &csi.GroupControllerGetCapabilitiesResponse{Capabilities: []*csi.GroupControllerServiceCapability{{
		Type: &csi.GroupControllerServiceCapability_Rpc{Rpc: &csi.GroupControllerServiceCapability_RPC{Type: snapshots}},
	}}}, nil
}

// CreateVolumeGroupSnapshot takes snapshots of several volumes, all of one moment, or returns those
// that an earlier call has taken.
func (s *Service) CreateVolumeGroupSnapshot(
	ctx context.Context, r *csi.CreateVolumeGroupSnapshotRequest,
) (*csi.CreateVolumeGroupSnapshotResponse, error) {
	request, err := requests.ParseGroup(r)
	if err != nil {
		return nil, err
	}
	done, err := s.service.turns(ctx, request.Volumes, takingGroup)
	return whileLocked(done, err, func() (*csi.CreateVolumeGroupSnapshotResponse, error) {
		group, err := s.service.createGroup(ctx, request)
		if failed, ok := errors.AsType[*volumes.VolumeError](err); ok {
			err = s.service.ReportBehind(ctx, failed.Volume, err)
		}
		if err != nil {
			return nil, err
		}
		return &csi.CreateVolumeGroupSnapshotResponse{GroupSnapshot: csiGroup(group)}, nil
	})
}

// DeleteVolumeGroupSnapshot removes all snapshots of a group. Volumes that were made from them stay
// as they are. A group that is gone is success.
func (s *Service) DeleteVolumeGroupSnapshot(
	ctx context.Context, r *csi.DeleteVolumeGroupSnapshotRequest,
) (*csi.DeleteVolumeGroupSnapshotResponse, error) {
	group, err := s.service.groupOf(ctx, r.GetGroupSnapshotId(), r.GetSnapshotIds())
	if errors.Is(err, volumes.ErrNotFound) {
		return &csi.DeleteVolumeGroupSnapshotResponse{}, nil
	}
	if err != nil {
		return nil, err
	}
	done, err := s.service.turns(ctx, group[0].Spec.Group.Volumes, removingGroup)
	return whileLocked(done, err, func() (*csi.DeleteVolumeGroupSnapshotResponse, error) {
		if err := s.service.unused(ctx, group...); err != nil {
			return nil, err
		}
		return &csi.DeleteVolumeGroupSnapshotResponse{}, s.service.deleteGroup(ctx, group)
	})
}

// GetVolumeGroupSnapshot returns one group snapshot.
func (s *Service) GetVolumeGroupSnapshot(
	ctx context.Context, r *csi.GetVolumeGroupSnapshotRequest,
) (*csi.GetVolumeGroupSnapshotResponse, error) {
	group, err := s.service.groupOf(ctx, r.GetGroupSnapshotId(), r.GetSnapshotIds())
	if err != nil {
		return nil, err
	}
	if len(group) < len(group[0].Spec.Group.Volumes) || slices.ContainsFunc(group, isUntaken) {
		return nil, fmt.Errorf("group snapshot %s is not taken yet, or being deleted: %w", r.GetGroupSnapshotId(), volumes.ErrNotFound)
	}
	return &csi.GetVolumeGroupSnapshotResponse{GroupSnapshot: csiGroup(group)}, nil
}

// groupOf returns the records of a group snapshot that exist; one at least. ids are those that the
// caller knows; none if it knows none.
func (s *service) groupOf(ctx context.Context, id string, ids []string) ([]*v1alpha1.CacheSnapshot, error) {
	if err := requests.Required("group snapshot id", id); err != nil {
		return nil, err
	}
	group, err := s.groupNamed(ctx, id)
	if err != nil {
		return nil, err
	}
	if len(group) == 0 {
		return nil, fmt.Errorf("group snapshot %s: %w", id, volumes.ErrNotFound)
	}
	var all []string
	for _, volume := range group[0].Spec.Group.Volumes {
		all = append(all, memberID(id, volume))
	}
	slices.Sort(all)
	if len(ids) > 0 && !slices.Equal(slices.Sorted(slices.Values(ids)), all) {
		return nil, fmt.Errorf("group snapshot %s has the snapshots %s, not %s: %w",
			id, strings.Join(all, ", "), strings.Join(ids, ", "), volumes.ErrInvalid)
	}
	return group, nil
}

func csiGroup(group []*v1alpha1.CacheSnapshot) *csi.VolumeGroupSnapshot {
	out := &csi.VolumeGroupSnapshot{
		GroupSnapshotId: group[0].Spec.Group.Name, CreationTime: timestamppb.New(group[0].Status.Taken.Time), ReadyToUse: true,
	}
	for _, snapshot := range group {
		out.Snapshots = append(out.Snapshots, csiSnapshot(snapshot))
	}
	return out
}
