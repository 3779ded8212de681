package csi

import (
	"context"
	"errors"
	"fmt"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/escache/escache-csi/api/v1alpha1"
	"github.com/escache/escache-csi/internal/controller/csi/attachment"
	"github.com/escache/escache-csi/internal/controller/csi/requests"
	"github.com/escache/escache-csi/internal/controller/csi/snapshots"
	"github.com/escache/escache-csi/internal/controller/readonly"
	"github.com/escache/escache-csi/internal/controller/volumes"
	"github.com/escache/escache-csi/internal/csiserver"
	"github.com/escache/escache-csi/internal/operation"
)

// Config holds what NewService needs.
type Config struct {
	// Steps do the work on one volume.
	Steps *volumes.Steps
	// Operations are the locks of volumes, shared with the reconcilers of this process.
	Operations *operation.Locks
	// ImagePrefix begins the names of all images of this Kubernetes cluster.
	ImagePrefix string
	// UncachedFallback allows StorageClasses with uncachedFallback: package fallback runs.
	UncachedFallback bool
	// Version is the version that GetPluginInfo answers.
	Version string
}

// service carries out the calls. It does not lock: only Service uses it, and Service locks.
type service struct {
	*volumes.Steps

	attachments      *attachment.Attacher
	snapshots        *snapshots.Snapshots
	readOnly         *readonly.Volumes
	operations       *operation.Locks
	imagePrefix      string
	uncachedFallback bool
}

// Service is the CSI Controller, GroupController and Identity service. Its errors are those of the domain; the gRPC
// server maps them with volumes.Code.
type Service struct {
	csi.UnimplementedControllerServer
	csi.UnimplementedGroupControllerServer
	csiserver.Identity

	service *service
}

var (
	_ csi.ControllerServer      = (*Service)(nil)
	_ csi.GroupControllerServer = (*Service)(nil)
	_ csi.IdentityServer        = (*Service)(nil)
)

// NewService returns the service. The book must know all volumes and groups before the first call.
func NewService(config Config) *Service {
	steps := config.Steps
	return &Service{
		Identity: csiserver.Identity{Version: config.Version},
		service: &service{
			Steps: steps, attachments: &attachment.Attacher{Steps: steps},
			snapshots: &snapshots.Snapshots{Steps: steps, ImagePrefix: config.ImagePrefix},
			readOnly: &readonly.Volumes{
				Kube: steps.Cached, Live: steps.Live, Images: steps.Images, Nodes: steps.Hosts, Log: steps.Log,
			},
			operations: config.Operations, imagePrefix: config.ImagePrefix, uncachedFallback: config.UncachedFallback,
		},
	}
}

// CreateVolume makes a volume, or returns the one that an earlier call has made.
func (s *Service) CreateVolume(ctx context.Context, r *csi.CreateVolumeRequest) (*csi.CreateVolumeResponse, error) {
	request, err := requests.ParseCreate(r)
	if err != nil {
		return nil, err
	}
	return locked(ctx, s, request.ID, "CreateVolume", func() (*csi.CreateVolumeResponse, error) {
		if request.ReadOnly {
			return s.service.createReadOnly(ctx, request)
		}
		return s.service.create(ctx, request)
	})
}

// DeleteVolume removes a volume: replicas, image, record. A volume that is gone is success.
func (s *Service) DeleteVolume(ctx context.Context, r *csi.DeleteVolumeRequest) (*csi.DeleteVolumeResponse, error) {
	if err := requests.Required("volume id", r.GetVolumeId()); err != nil {
		return nil, err
	}
	return locked(ctx, s, r.GetVolumeId(), "DeleteVolume", func() (*csi.DeleteVolumeResponse, error) {
		return &csi.DeleteVolumeResponse{}, s.service.ReportBehind(ctx, r.GetVolumeId(), s.service.delete(ctx, r.GetVolumeId()))
	})
}

// ControllerPublishVolume makes a node of the group the only one that may write, or gives a node a
// read-only volume.
func (s *Service) ControllerPublishVolume(
	ctx context.Context, r *csi.ControllerPublishVolumeRequest,
) (*csi.ControllerPublishVolumeResponse, error) {
	if err := requests.CheckPublish(r); err != nil {
		return nil, err
	}
	if requests.WantsReadOnly([]*csi.VolumeCapability{r.GetVolumeCapability()}) {
		done, err := s.service.readOnlyTurn(ctx, r.GetVolumeId(), attachingReadOnly)
		return whileLocked(done, err, func() (*csi.ControllerPublishVolumeResponse, error) {
			return &csi.ControllerPublishVolumeResponse{}, s.service.publishReadOnly(ctx, r.GetVolumeId(), r.GetNodeId())
		})
	}
	return locked(ctx, s, r.GetVolumeId(), "ControllerPublishVolume", func() (*csi.ControllerPublishVolumeResponse, error) {
		published, err := s.service.publish(ctx, r.GetVolumeId(), r.GetNodeId())
		err = s.service.explain(ctx, r.GetVolumeId(), "it can be attached with ReadOnlyMany only", err)
		return &csi.ControllerPublishVolumeResponse{PublishContext: published}, s.service.ReportBehind(ctx, r.GetVolumeId(), err)
	})
}

// ControllerUnpublishVolume takes the volume from the node, by force if Kubernetes has given the
// node up.
func (s *Service) ControllerUnpublishVolume(
	ctx context.Context, r *csi.ControllerUnpublishVolumeRequest,
) (*csi.ControllerUnpublishVolumeResponse, error) {
	if err := requests.Required("volume id", r.GetVolumeId()); err != nil {
		return nil, err
	}
	done, err := s.service.detachTurn(ctx, r.GetVolumeId())
	return whileLocked(done, err, func() (*csi.ControllerUnpublishVolumeResponse, error) {
		err := s.service.unpublish(ctx, r.GetVolumeId(), r.GetNodeId())
		return &csi.ControllerUnpublishVolumeResponse{}, s.service.ReportBehind(ctx, r.GetVolumeId(), err)
	})
}

// ControllerExpandVolume grows the image. The node grows device and filesystem afterwards.
func (s *Service) ControllerExpandVolume(
	ctx context.Context, r *csi.ControllerExpandVolumeRequest,
) (*csi.ControllerExpandVolumeResponse, error) {
	if err := requests.Required("volume id", r.GetVolumeId()); err != nil {
		return nil, err
	}
	size, err := requests.ParseSize(r.GetCapacityRange())
	if err != nil {
		return nil, err
	}
	return locked(ctx, s, r.GetVolumeId(), "ControllerExpandVolume", func() (*csi.ControllerExpandVolumeResponse, error) {
		expanded, err := s.service.expand(ctx, r.GetVolumeId(), size)
		return expanded, s.service.explain(ctx, r.GetVolumeId(),
			"it cannot grow; restore the snapshot into a claim with ReadWriteOnce", err)
	})
}

// ControllerModifyVolume changes what a VolumeAttributesClass can change.
func (s *Service) ControllerModifyVolume(
	ctx context.Context, r *csi.ControllerModifyVolumeRequest,
) (*csi.ControllerModifyVolumeResponse, error) {
	if err := requests.CheckModify(r); err != nil {
		return nil, err
	}
	return locked(ctx, s, r.GetVolumeId(), "ControllerModifyVolume", func() (*csi.ControllerModifyVolumeResponse, error) {
		err := s.service.modify(ctx, r.GetVolumeId(), r.GetMutableParameters())
		return &csi.ControllerModifyVolumeResponse{}, s.service.explain(ctx, r.GetVolumeId(), "it has no cache to change", err)
	})
}

// CreateSnapshot takes a snapshot of a volume, or returns the one that an earlier call has taken.
func (s *Service) CreateSnapshot(ctx context.Context, r *csi.CreateSnapshotRequest) (*csi.CreateSnapshotResponse, error) {
	request, err := requests.ParseSnapshot(r)
	if err != nil {
		return nil, err
	}
	return inTurn(ctx, s, request.Volume, takingSnapshot, func() (*csi.CreateSnapshotResponse, error) {
		response, err := s.service.snapshots.Create(ctx, request)
		err = s.service.explain(ctx, request.Volume, "it stays what that snapshot is", err)
		return response, s.service.ReportBehind(ctx, request.Volume, err)
	})
}

// DeleteSnapshot removes a snapshot. Volumes that were made from it stay as they are. A snapshot
// that is gone is success.
func (s *Service) DeleteSnapshot(ctx context.Context, r *csi.DeleteSnapshotRequest) (*csi.DeleteSnapshotResponse, error) {
	if err := requests.Required("snapshot id", r.GetSnapshotId()); err != nil {
		return nil, err
	}
	snapshot, err := s.service.snapshots.Get(ctx, r.GetSnapshotId())
	if errors.Is(err, volumes.ErrNotFound) {
		return &csi.DeleteSnapshotResponse{}, nil
	}
	if err != nil {
		return nil, err
	}
	if group := snapshot.Spec.Group; group != nil {
		return nil, fmt.Errorf("snapshot %s is of group snapshot %s, and is deleted with the whole group: "+
			"delete the VolumeGroupSnapshot: %w", snapshot.Name, group.Name, volumes.ErrInvalid)
	}
	return inTurn(ctx, s, snapshot.Spec.Volume, removingSnapshot, func() (*csi.DeleteSnapshotResponse, error) {
		if err := s.service.unused(ctx, snapshot); err != nil {
			return nil, err
		}
		return &csi.DeleteSnapshotResponse{}, s.service.snapshots.Delete(ctx, snapshot)
	})
}

func locked[R any](ctx context.Context, s *Service, volume, operation string, run func() (*R, error)) (*R, error) {
	done, err := s.service.begin(ctx, volume, operation)
	return whileLocked(done, err, run)
}

func inTurn[R any](ctx context.Context, s *Service, volume, operation string, run func() (*R, error)) (*R, error) {
	done, err := s.service.turn(ctx, volume, operation)
	return whileLocked(done, err, run)
}

func whileLocked[R any](done func(), err error, run func() (*R, error)) (*R, error) {
	if err != nil {
		return nil, err
	}
	defer done()
	response, err := run()
	if err != nil {
		return nil, err
	}
	return response, nil
}

// Index adds the indexes that a Service needs to a cache.
func Index(ctx context.Context, cache client.FieldIndexer) error {
	return errors.Join(
		snapshots.Index(ctx, cache),
		cache.IndexField(ctx, &v1alpha1.CacheVolume{}, volumes.CloneSource, volumes.CloneSourceOf),
	)
}
