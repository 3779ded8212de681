package node

import (
	"context"
	"log/slog"
	"time"

	"github.com/container-storage-interface/spec/lib/go/csi"

	"github.com/escache/escache-csi/api/escache"
	"github.com/escache/escache-csi/api/v1alpha1"
	"github.com/escache/escache-csi/internal/csiserver"
	"github.com/escache/escache-csi/internal/node/blockdev"
	"github.com/escache/escache-csi/internal/node/filesystem"
	"github.com/escache/escache-csi/internal/node/mounts"
	"github.com/escache/escache-csi/internal/operation"
)

// Cache is the local escached. Its socket is this machine's own, so no call names the host that is meant.
type Cache interface {
	Node(ctx context.Context) (*escache.Node, error)
	VolumeStatus(ctx context.Context, ref escache.VolumeRef) (*escache.VolumeStatus, error)
	DevConnect(ctx context.Context, r escache.ConnectRequest) (*escache.ConnectResponse, error)
	Flush(ctx context.Context, r escache.FlushRequest) (*escache.FlushResponse, error)
	Stop(ctx context.Context, r escache.StopRequest) error
	// Abandon gives up the device of a volume that another node took over; epoch is the new
	// attachment's.
	Abandon(ctx context.Context, ref escache.VolumeRef, epoch int64) error
	Resize(ctx context.Context, r escache.ResizeRequest) error
	// Map and Unmap are for images that are used without a cache.
	Map(ctx context.Context, r escache.MapRequest) (*escache.MapResponse, error)
	Unmap(ctx context.Context, ref escache.VolumeRef) error
}

// Kube is the Kubernetes API. Its reads bypass any cache.
type Kube interface {
	Volume(ctx context.Context, name string) (*v1alpha1.CacheVolume, error)
	ReadOnlyVolume(ctx context.Context, name string) (*v1alpha1.ReadOnlyVolume, error)
	Annotate(ctx context.Context, v *v1alpha1.CacheVolume, key, value string) (*v1alpha1.CacheVolume, error)
	PatchStatus(ctx context.Context, v *v1alpha1.CacheVolume, status map[string]any) (*v1alpha1.CacheVolume, error)
	Groups(ctx context.Context) ([]v1alpha1.NodeGroup, error)
}

// Mounter mounts and unmounts.
type Mounter interface {
	Table() ([]mounts.Entry, error)
	Mount(ctx context.Context, volume, device, target, fsType string, options []string) error
	Bind(ctx context.Context, volume, source, target string, readOnly bool) error
	Unmount(ctx context.Context, volume, target string) error
	Detach(ctx context.Context, volume, target string) error
}

// Filesystems inspects devices, and makes, grows and checks filesystems.
type Filesystems interface {
	Probe(ctx context.Context, volume, device string) (filesystem.Content, error)
	Make(ctx context.Context, volume, device string, a filesystem.Action, r filesystem.Record, options []string) error
	Grow(ctx context.Context, volume, device, mountPoint, fsType string) error
	Check(ctx context.Context, volume, device, fsType string) string
}

// Devices asks the kernel about block devices and mounted filesystems. It reads no device.
type Devices interface {
	// Number returns the number of a device node.
	Number(path string) (blockdev.Number, error)
	// Dead reports whether a mounted device is gone: the kernel does not have it any more, or it is
	// an escache device of size zero, which has lost its table.
	Dead(n blockdev.Number) bool
	Bytes(n blockdev.Number) (int64, error)
	// Usage returns the usage of a mounted filesystem.
	Usage(ctx context.Context, path string) (Usage, error)
}

// Options are what a Service needs.
type Options struct {
	Node        string
	Version     string
	Cache       Cache
	Kube        Kube
	Mounter     Mounter
	Filesystems Filesystems
	Devices     Devices
	Logger      *slog.Logger
	// Seen returns what escached said last of each volume that is connected here, by the volume's name.
	Seen func() map[string]escache.VolumeStatus
	// Connected is called after a volume was connected. It must not block.
	Connected func()
	// Compared, if not nil, is called after csi-controller has compared the record of an attachment with the image's
	// metadata, before the volume is connected.
	Compared func(volume escache.VolumeRef, epoch int64)
	// Ready returns why the driver cannot work, one sentence per reason; nothing if it can.
	Ready func(ctx context.Context) []string
}

// Service serves CSI's Node and Identity. It refuses a call for a volume while another one for it
// is running.
type Service struct {
	csi.UnimplementedNodeServer
	csiserver.Identity
	Options

	operations *operation.Locks
	info       *nodeInfo
}

// New returns a Service.
func New(o Options) *Service {
	return &Service{
		Identity: csiserver.Identity{Version: o.Version}, Options: o, operations: operation.NewLocks(time.Now), info: &nodeInfo{},
	}
}

// NodeStageVolume connects the cache, makes a filesystem on a blank device and mounts it.
//
// https://github.com/container-storage-interface/spec/blob/v1.13.0/spec.md#nodestagevolume
func (s *Service) NodeStageVolume(ctx context.Context, r *csi.NodeStageVolumeRequest) (*csi.NodeStageVolumeResponse, error) {
	request, err := parseStage(r)
	if err == nil {
		err = s.exclusively(request.volume, "NodeStageVolume", func() error { return s.stage(ctx, request) })
	}
	return &csi.NodeStageVolumeResponse{}, err
}

// NodeUnstageVolume unmounts, flushes the cache and stops the device. It succeeds only if the cache
// is clean, or if this host has no memory to connect it and another one has all that is dirty.
//
// https://github.com/container-storage-interface/spec/blob/v1.13.0/spec.md#nodeunstagevolume
func (s *Service) NodeUnstageVolume(ctx context.Context, r *csi.NodeUnstageVolumeRequest) (*csi.NodeUnstageVolumeResponse, error) {
	err := checkNames(r.GetVolumeId(), "staging target path", r.GetStagingTargetPath())
	if err == nil {
		err = s.exclusively(r.GetVolumeId(), "NodeUnstageVolume", func() error {
			return s.unstage(ctx, r.GetVolumeId(), r.GetStagingTargetPath())
		})
	}
	return &csi.NodeUnstageVolumeResponse{}, err
}

// NodePublishVolume binds a staged volume to a path in a pod's directory.
//
// https://github.com/container-storage-interface/spec/blob/v1.13.0/spec.md#nodepublishvolume
func (s *Service) NodePublishVolume(ctx context.Context, r *csi.NodePublishVolumeRequest) (*csi.NodePublishVolumeResponse, error) {
	request, err := parsePublish(r)
	if err == nil {
		err = s.exclusively(request.volume, "NodePublishVolume", func() error { return s.publish(ctx, request) })
	}
	return &csi.NodePublishVolumeResponse{}, err
}

// NodeUnpublishVolume undoes NodePublishVolume. It needs neither escached nor the Kubernetes API.
//
// https://github.com/container-storage-interface/spec/blob/v1.13.0/spec.md#nodeunpublishvolume
func (s *Service) NodeUnpublishVolume(ctx context.Context, r *csi.NodeUnpublishVolumeRequest) (*csi.NodeUnpublishVolumeResponse, error) {
	err := checkNames(r.GetVolumeId(), "target path", r.GetTargetPath())
	if err == nil {
		err = s.exclusively(r.GetVolumeId(), "NodeUnpublishVolume", func() error {
			return s.unpublish(ctx, r.GetVolumeId(), r.GetTargetPath())
		})
	}
	return &csi.NodeUnpublishVolumeResponse{}, err
}

// NodeExpandVolume grows device and filesystem while they are in use.
//
// https://github.com/container-storage-interface/spec/blob/v1.13.0/spec.md#nodeexpandvolume
func (s *Service) NodeExpandVolume(ctx context.Context, r *csi.NodeExpandVolumeRequest) (*csi.NodeExpandVolumeResponse, error) {
	response := &csi.NodeExpandVolumeResponse{}
	err := checkExpand(r)
	if err == nil {
		err = s.exclusively(r.GetVolumeId(), "NodeExpandVolume", func() error {
			response.CapacityBytes, err = s.expand(ctx, r)
			return err
		})
	}
	return response, err
}

func (s *Service) exclusively(volume, name string, do func() error) error {
	end, err := s.operations.Begin(volume, name)
	if err != nil {
		return err
	}
	defer end()
	return do()
}
