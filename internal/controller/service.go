package controller

import (
	"context"
	"errors"
	"log/slog"
	"time"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/escache/escache-csi/api/escache"
	"github.com/escache/escache-csi/api/v1alpha1"
	"github.com/escache/escache-csi/internal/authority"
	"github.com/escache/escache-csi/internal/controller/reservation"
	"github.com/escache/escache-csi/internal/operation"
)

// ImageRef names an RBD image of a Ceph cluster.
type ImageRef struct {
	ClusterID string
	Pool      string
	Image     string
}

// String is CLUSTERID/POOL/IMAGE.
func (r ImageRef) String() string { return r.ClusterID + "/" + r.Pool + "/" + r.Image }

// ImageSpec says how an image is made.
type ImageSpec struct {
	ImageRef

	DataPool  string
	SizeBytes int64
	Layout    *v1alpha1.ImageLayout
	// From is the snapshot that it is a clone of; nil for an empty image.
	From *SnapshotRef
}

// SnapshotRef names a snapshot of an RBD image.
type SnapshotRef struct {
	ImageRef

	Snapshot string
}

// String is CLUSTERID/POOL/IMAGE@SNAPSHOT.
func (r SnapshotRef) String() string { return r.ImageRef.String() + "@" + r.Snapshot }

// Snapshot is what Ceph has of one.
type Snapshot struct {
	SizeBytes int64 // of the image when it was taken
	Taken     time.Time
}

// Images is what the service needs of Ceph. Errors wrap ErrNotFound (cluster, pool or image), ErrRefused (wrong key, watched,
// another size), ErrNoRoom, ErrUnavailable or context.DeadlineExceeded. Every call returns soon after its context ends.
type Images interface {
	// EnsurePool checks that the pool is there and initialised, and with create makes it so.
	EnsurePool(ctx context.Context, clusterID, pool string, create bool) error
	// Create makes the image. One that is there is success too, but then it was not made now. An empty one has to have the same size;
	// how far an interrupted call has got with a clone nobody knows.
	Create(ctx context.Context, spec ImageSpec) (made bool, err error)
	// ID is Ceph's own id of the image.
	ID(ctx context.Context, image ImageRef) (string, error)
	// Resize grows the image; one that has the size is success.
	Resize(ctx context.Context, image ImageRef, sizeBytes int64) error
	// Delete moves the image to the trash and has it emptied in the background; one that is gone is success. An image that a
	// client has open, or that has snapshots, is ErrRefused.
	Delete(ctx context.Context, image ImageRef) error
	// TakeSnapshot takes a snapshot of what the image has in Ceph; one of that name, left by an interrupted call, is replaced. Where a
	// node has the image mapped, all I/O to it must rest.
	TakeSnapshot(ctx context.Context, snapshot SnapshotRef) (Snapshot, error)
	// DeleteSnapshot removes a snapshot; one that is gone is success. What clones need of it stays.
	DeleteSnapshot(ctx context.Context, snapshot SnapshotRef) error
	// Clients returns the addresses of the Ceph clients that have the image open or hold its lock. No image is no client.
	Clients(ctx context.Context, image ImageRef) ([]string, error)
	// Fence puts a client on the blocklist.
	Fence(ctx context.Context, clusterID, address string, duration time.Duration) error
	// Unfence takes a client off the blocklist; one that is not on it is success. If its map still exists, it can write again.
	Unfence(ctx context.Context, clusterID, address string) error
	// AvailableBytes is how much more the pool can hold.
	AvailableBytes(ctx context.Context, clusterID, pool string) (int64, error)
	// Problems says, a sentence each, what keeps all of Ceph from being used; curable reports whether waiting may help.
	Problems(ctx context.Context) (problems []string, curable bool)
}

// Hosts is what the service needs of the escached on each node. An *escache.Problem says what it answered, ErrUnavailable
// that it did not, ErrNotFound that Kubernetes has no such node.
type Hosts interface {
	Status(ctx context.Context, node string, volume escache.VolumeRef) (escache.VolumeStatus, error)
	PutReplica(ctx context.Context, node string, request escache.ReplicaRequest) error
	DeleteReplica(ctx context.Context, node string, volume escache.VolumeRef, discard bool) error
	// DevConnect, Flush and Stop write a volume's cache back where no pod has it.
	DevConnect(ctx context.Context, node string, request escache.ConnectRequest) error
	Flush(ctx context.Context, node string, volume escache.VolumeRef, longest time.Duration) (*escache.FlushResponse, error)
	Stop(ctx context.Context, node string, volume escache.VolumeRef) error
	// Hold suspends a volume's I/O with a clean cache, at the longest for so many whole seconds, and returns until when; Release ends it.
	Hold(ctx context.Context, node string, volume escache.VolumeRef, longest time.Duration) (time.Time, error)
	Release(ctx context.Context, node string, volume escache.VolumeRef) error
	// ReplicationAddress is the IP address of the node's replication link.
	ReplicationAddress(ctx context.Context, node string) (string, error)
	// Death is what Kubernetes says of the node.
	Death(ctx context.Context, node string) (authority.Death, error)
}

// Config is what a Service is made of.
type Config struct {
	// Cached answers from a cache of the API server's objects, and writes; Live reads from the API server itself.
	Cached client.Client
	Live   client.Reader

	Images Images
	Hosts  Hosts
	Book   *reservation.Book
	// Operations are the locks of volumes, shared with whoever else changes them in this process.
	Operations *operation.Locks

	// ImagePrefix begins the names of all images of this Kubernetes cluster.
	ImagePrefix string
	// Version is what GetPluginInfo answers.
	Version string
	// Log takes decisions that an operator may have to account for: fencing and discarding.
	Log *slog.Logger
	Now func() time.Time
}

// service carries out the calls. It does not lock: Service does, and is the only one that may use it.
type service struct {
	Config
}

// Service is the CSI Controller and Identity service. Its errors are the domain's; the gRPC server maps them with Code.
type Service struct {
	csi.UnimplementedControllerServer
	csi.UnimplementedIdentityServer

	service *service
}

var (
	_ csi.ControllerServer = (*Service)(nil)
	_ csi.IdentityServer   = (*Service)(nil)
)

// NewService returns the service. The book must know all volumes and groups before the first call.
func NewService(config Config) *Service {
	return &Service{service: &service{Config: config}}
}

// CreateVolume makes a volume, or returns the one that an earlier call has made.
func (s *Service) CreateVolume(ctx context.Context, r *csi.CreateVolumeRequest) (*csi.CreateVolumeResponse, error) {
	request, err := parseCreate(r)
	if err != nil {
		return nil, err
	}
	return locked(s, request.ID, "CreateVolume", func() (*csi.CreateVolumeResponse, error) { return s.service.create(ctx, request) })
}

// DeleteVolume removes a volume: replicas, image, record. One that is gone is success.
func (s *Service) DeleteVolume(ctx context.Context, r *csi.DeleteVolumeRequest) (*csi.DeleteVolumeResponse, error) {
	if err := required("volume id", r.GetVolumeId()); err != nil {
		return nil, err
	}
	return locked(s, r.GetVolumeId(), "DeleteVolume", func() (*csi.DeleteVolumeResponse, error) {
		return &csi.DeleteVolumeResponse{}, s.service.delete(ctx, r.GetVolumeId())
	})
}

// ControllerPublishVolume makes a node of the group the only one that may write.
func (s *Service) ControllerPublishVolume(
	ctx context.Context, r *csi.ControllerPublishVolumeRequest,
) (*csi.ControllerPublishVolumeResponse, error) {
	if err := checkPublish(r); err != nil {
		return nil, err
	}
	return locked(s, r.GetVolumeId(), "ControllerPublishVolume", func() (*csi.ControllerPublishVolumeResponse, error) {
		published, err := s.service.publish(ctx, r.GetVolumeId(), r.GetNodeId())
		return &csi.ControllerPublishVolumeResponse{PublishContext: published}, err
	})
}

// ControllerUnpublishVolume takes the volume from the node, by force where Kubernetes has given the node up.
func (s *Service) ControllerUnpublishVolume(
	ctx context.Context, r *csi.ControllerUnpublishVolumeRequest,
) (*csi.ControllerUnpublishVolumeResponse, error) {
	if err := required("volume id", r.GetVolumeId()); err != nil {
		return nil, err
	}
	return locked(s, r.GetVolumeId(), "ControllerUnpublishVolume", func() (*csi.ControllerUnpublishVolumeResponse, error) {
		return &csi.ControllerUnpublishVolumeResponse{}, s.service.unpublish(ctx, r.GetVolumeId(), r.GetNodeId())
	})
}

// ControllerExpandVolume grows the image. The node grows device and filesystem afterwards.
func (s *Service) ControllerExpandVolume(
	ctx context.Context, r *csi.ControllerExpandVolumeRequest,
) (*csi.ControllerExpandVolumeResponse, error) {
	if err := required("volume id", r.GetVolumeId()); err != nil {
		return nil, err
	}
	size, err := parseSize(r.GetCapacityRange())
	if err != nil {
		return nil, err
	}
	return locked(s, r.GetVolumeId(), "ControllerExpandVolume", func() (*csi.ControllerExpandVolumeResponse, error) {
		return s.service.expand(ctx, r.GetVolumeId(), size)
	})
}

// CreateSnapshot takes a snapshot of a volume, or returns the one that an earlier call has taken.
func (s *Service) CreateSnapshot(ctx context.Context, r *csi.CreateSnapshotRequest) (*csi.CreateSnapshotResponse, error) {
	request, err := parseSnapshot(r)
	if err != nil {
		return nil, err
	}
	return locked(s, request.Volume, "CreateSnapshot", func() (*csi.CreateSnapshotResponse, error) {
		return s.service.createSnapshot(ctx, request)
	})
}

// DeleteSnapshot removes a snapshot. Volumes that were made of it stay as they are. One that is gone is success.
func (s *Service) DeleteSnapshot(ctx context.Context, r *csi.DeleteSnapshotRequest) (*csi.DeleteSnapshotResponse, error) {
	if err := required("snapshot id", r.GetSnapshotId()); err != nil {
		return nil, err
	}
	snapshot, err := s.service.snapshot(ctx, r.GetSnapshotId())
	if errors.Is(err, ErrNotFound) {
		return &csi.DeleteSnapshotResponse{}, nil
	}
	if err != nil {
		return nil, err
	}
	return locked(s, snapshot.Spec.Volume, "DeleteSnapshot", func() (*csi.DeleteSnapshotResponse, error) {
		return &csi.DeleteSnapshotResponse{}, s.service.deleteSnapshot(ctx, snapshot)
	})
}

func locked[R any](s *Service, volume, operation string, run func() (*R, error)) (*R, error) {
	done, err := s.service.Operations.Begin(volume, operation)
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
