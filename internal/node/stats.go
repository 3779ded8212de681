package node

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"strings"

	"github.com/container-storage-interface/spec/lib/go/csi"

	"github.com/escache/escache-csi/internal/cachevolume"
	"github.com/escache/escache-csi/internal/node/health"
	"github.com/escache/escache-csi/internal/node/kube"
	"github.com/escache/escache-csi/internal/node/mounts"
)

// Usage is how full a filesystem is, in bytes and in inodes. xfs allocates inodes on demand, so its
// total can change.
type Usage struct {
	TotalBytes, FreeBytes, AvailableBytes int64
	TotalInodes, FreeInodes               int64
}

// NodeGetVolumeStats returns bytes and inodes of a mounted volume, or the size of a block volume.
// It asks only the kernel.
//
// https://github.com/container-storage-interface/spec/blob/v1.13.0/spec.md#nodegetvolumestats
func (s *Service) NodeGetVolumeStats(ctx context.Context, r *csi.NodeGetVolumeStatsRequest) (*csi.NodeGetVolumeStatsResponse, error) {
	if r.GetVolumeId() == "" || r.GetVolumePath() == "" {
		return nil, fmt.Errorf("%w: no volume id or no volume path", ErrInvalid)
	}
	table, err := s.Mounter.Table()
	if err != nil {
		return nil, err
	}
	at := mounts.At(table, filepath.Clean(r.GetVolumePath()))
	if at == nil {
		return nil, fmt.Errorf("%w: nothing is mounted at %s", ErrNotHere, r.GetVolumePath())
	}
	if s.Devices.Dead(at.Device) {
		return nil, fmt.Errorf("%w: the device of volume %s is gone; delete the pod, then the volume is staged again",
			ErrUnavailable, r.GetVolumeId())
	}
	if at.Node {
		size, err := s.Devices.Bytes(at.Device)
		if err != nil {
			return nil, fmt.Errorf("%w: %w", ErrUnavailable, err)
		}
		return &csi.NodeGetVolumeStatsResponse{Usage: []*csi.VolumeUsage{{Unit: csi.VolumeUsage_BYTES, Total: size}}}, nil
	}
	u, err := s.Devices.Usage(ctx, at.Path)
	if err != nil {
		return nil, fmt.Errorf("usage of volume %s: %w", r.GetVolumeId(), err)
	}
	return &csi.NodeGetVolumeStatsResponse{Usage: []*csi.VolumeUsage{
		{Unit: csi.VolumeUsage_BYTES, Total: u.TotalBytes, Available: u.AvailableBytes, Used: u.TotalBytes - u.FreeBytes},
		{Unit: csi.VolumeUsage_INODES, Total: u.TotalInodes, Available: u.FreeInodes, Used: u.TotalInodes - u.FreeInodes},
	}}, nil
}

// NodeGetVolumeHealth returns what is wrong with a volume, as this node sees it. The volume need
// not be staged.
//
// https://github.com/container-storage-interface/spec/blob/v1.13.0/spec.md#nodegetvolumehealth
func (s *Service) NodeGetVolumeHealth(ctx context.Context, r *csi.NodeGetVolumeHealthRequest) (*csi.NodeGetVolumeHealthResponse, error) {
	if r.GetVolumeId() == "" {
		return nil, fmt.Errorf("%w: no volume id", ErrInvalid)
	}
	v, err := s.Kube.Volume(ctx, r.GetVolumeId())
	if errors.Is(err, kube.ErrNotFound) {
		if _, missing := s.Kube.ReadOnlyVolume(ctx, r.GetVolumeId()); missing == nil { // escached has no cache to report on
			return &csi.NodeGetVolumeHealthResponse{VolumeHealth: &csi.VolumeHealth{VolumeId: r.GetVolumeId()}}, nil
		}
	}
	if err != nil {
		return nil, err
	}
	answer := &csi.VolumeHealth{VolumeId: v.Name}
	add := func(f health.Finding) {
		answer.HealthStatuses = append(answer.HealthStatuses, &csi.VolumeHealth_VolumeHealthEntry{
			Status: severityOf(f.Severity), Reason: string(f.Reason), Message: f.Message,
		})
	}
	status, err := s.Cache.VolumeStatus(ctx, cachevolume.Ref(v))
	if err != nil {
		add(health.Finding{Reason: health.EscachedSilent, Severity: health.Degraded,
			Message: "escached on this node does not answer: " + err.Error()})
		return &csi.NodeGetVolumeHealthResponse{VolumeHealth: answer}, nil //nolint:nilerr // it is the answer
	}
	if health.IsConnected(*status) || status.Error != nil {
		for _, f := range health.Findings(*status, false) {
			add(f)
		}
	}
	if s.stopped(status.Device) {
		add(health.Finding{Reason: health.FilesystemReadOnly, Severity: health.Inaccessible,
			Message: "the kernel has stopped the filesystem after an error; delete the pod, then it is mounted again"})
	}
	return &csi.NodeGetVolumeHealthResponse{VolumeHealth: answer}, nil
}

// stopped reports whether a device has a filesystem that the kernel has stopped after an error: ext4 that was mounted
// writable and is now read-only, or xfs that is shut down.
func (s *Service) stopped(device string) bool {
	number, err := s.Devices.Number(device)
	if err != nil {
		return false
	}
	table, err := s.Mounter.Table()
	if err != nil {
		return false
	}
	for _, e := range mounts.Of(table, number) {
		if e.TurnedReadOnly || e.ShutDown() {
			return true
		}
	}
	return false
}

func severityOf(s health.Severity) csi.VolumeHealthErrorType {
	switch s {
	case health.Inaccessible:
		return csi.VolumeHealthErrorType_INACCESSIBLE
	case health.DataLoss:
		return csi.VolumeHealthErrorType_DATA_LOSS
	case health.Degraded:
	}
	return csi.VolumeHealthErrorType_DEGRADED
}

// NodeGetStorageHealth returns what is wrong with escached on this node.
//
// https://github.com/container-storage-interface/spec/blob/v1.13.0/spec.md#nodegetstoragehealth
func (s *Service) NodeGetStorageHealth(ctx context.Context, _ *csi.NodeGetStorageHealthRequest) (*csi.NodeGetStorageHealthResponse, error) {
	answer := &csi.NodeGetStorageHealthResponse{}
	add := func(status csi.StorageHealthErrorType, reason, message string) {
		answer.BackendHealth = append(answer.BackendHealth,
			&csi.NodeGetStorageHealthResponse_StorageBackendHealth{Status: status, Reason: reason, Message: message})
	}
	host, err := s.Cache.Node(ctx)
	if err != nil {
		add(csi.StorageHealthErrorType_STORAGE_UNREACHABLE, string(health.EscachedSilent), err.Error())
	} else if !host.Healthy {
		add(csi.StorageHealthErrorType_STORAGE_DEGRADED, "EscachedUnhealthy",
			cmp.Or(strings.Join(host.Reasons, "\n"), "escached gives no reason"))
	}
	return answer, nil
}
