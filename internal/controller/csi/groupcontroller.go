package csi

import (
	"context"
	"errors"
	"fmt"

	"github.com/container-storage-interface/spec/lib/go/csi"

	"github.com/escache/escache-csi/internal/controller/csi/requests"
	"github.com/escache/escache-csi/internal/controller/csi/snapshots"
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
		group, err := s.service.snapshots.CreateGroup(ctx, request)
		if failed, ok := errors.AsType[*volumes.VolumeError](err); ok {
			err = s.service.ReportBehind(ctx, failed.Volume, err)
		}
		if err != nil {
			return nil, err
		}
		return &csi.CreateVolumeGroupSnapshotResponse{GroupSnapshot: snapshots.GroupToCSI(group)}, nil
	})
}

// DeleteVolumeGroupSnapshot removes all snapshots of a group. Volumes that were made from them stay
// as they are. A group that is gone is success.
func (s *Service) DeleteVolumeGroupSnapshot(
	ctx context.Context, r *csi.DeleteVolumeGroupSnapshotRequest,
) (*csi.DeleteVolumeGroupSnapshotResponse, error) {
	group, err := s.service.snapshots.GroupOf(ctx, r.GetGroupSnapshotId(), r.GetSnapshotIds())
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
		return &csi.DeleteVolumeGroupSnapshotResponse{}, s.service.snapshots.DeleteGroup(ctx, group)
	})
}

// GetVolumeGroupSnapshot returns one group snapshot.
func (s *Service) GetVolumeGroupSnapshot(
	ctx context.Context, r *csi.GetVolumeGroupSnapshotRequest,
) (*csi.GetVolumeGroupSnapshotResponse, error) {
	group, err := s.service.snapshots.GroupOf(ctx, r.GetGroupSnapshotId(), r.GetSnapshotIds())
	if err != nil {
		return nil, err
	}
	if !snapshots.Complete(group) {
		return nil, fmt.Errorf("group snapshot %s is not taken yet, or being deleted: %w", r.GetGroupSnapshotId(), volumes.ErrNotFound)
	}
	return &csi.GetVolumeGroupSnapshotResponse{GroupSnapshot: snapshots.GroupToCSI(group)}, nil
}
