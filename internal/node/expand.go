package node

import (
	"context"
	"fmt"
	"path/filepath"
	"time"

	"github.com/container-storage-interface/spec/lib/go/csi"

	"github.com/escache/escache-csi/api/escache"
	"github.com/escache/escache-csi/internal/cachevolume"
	"github.com/escache/escache-csi/internal/node/mounts"
)

// expandTime bounds an expansion.
const expandTime = 110 * time.Second

func checkExpand(r *csi.NodeExpandVolumeRequest) error {
	if r.GetVolumeId() == "" || r.GetVolumePath() == "" {
		return fmt.Errorf("%w: no volume id or no volume path", ErrInvalid)
	}
	if limit := r.GetCapacityRange().GetLimitBytes(); limit < 0 || (limit > 0 && limit < r.GetCapacityRange().GetRequiredBytes()) {
		return fmt.Errorf("%w: capacity range: limit %d is below the required %d", ErrInvalid, limit,
			r.GetCapacityRange().GetRequiredBytes())
	}
	return nil
}

// expand grows the device to the size on record, and then the filesystem to the size of the device.
func (s *Service) expand(ctx context.Context, r *csi.NodeExpandVolumeRequest) (int64, error) {
	ctx, cancel := context.WithTimeout(ctx, expandTime)
	defer cancel()
	table, err := s.Mounter.Table()
	if err != nil {
		return 0, err
	}
	path := filepath.Clean(r.GetVolumePath())
	at := mounts.At(table, path)
	if at == nil && r.GetStagingTargetPath() != "" {
		path = filepath.Clean(r.GetStagingTargetPath())
		at = mounts.At(table, path)
	}
	v, err := s.Kube.Volume(ctx, r.GetVolumeId())
	if err != nil {
		return 0, err
	}
	status, err := s.Cache.VolumeStatus(ctx, cachevolume.Ref(v))
	if err != nil {
		return 0, fmt.Errorf("status of volume %s: %w", v.Name, err)
	}
	if deviceOf(status) == "" {
		return 0, fmt.Errorf("%w: volume %s is not connected on this node", ErrNotHere, v.Name)
	}
	number, err := s.Devices.Number(status.Device)
	if err != nil {
		return 0, fmt.Errorf("%w: device of volume %s: %w", ErrUnavailable, v.Name, err)
	}
	block := r.GetVolumeCapability().GetBlock() != nil
	if at == nil && !block || at != nil && at.Device != number {
		return 0, fmt.Errorf("%w: volume %s is not at %s", ErrNotHere, v.Name, r.GetVolumePath())
	}
	// The device may be larger than the record: the image is, since an expansion that was cut off.
	size := max(v.Spec.SizeBytes, status.SizeBytes)
	required, limit := r.GetCapacityRange().GetRequiredBytes(), r.GetCapacityRange().GetLimitBytes()
	if size < required {
		return 0, fmt.Errorf("%w: volume %s has %d bytes on record, %d are wanted; call ControllerExpandVolume first",
			ErrRefused, v.Name, size, required)
	}
	if limit > 0 && size > limit {
		return 0, fmt.Errorf("%w: volume %s has %d bytes, the limit is %d", ErrTooLarge, v.Name, size, limit)
	}
	if err := s.Cache.Resize(ctx, escache.ResizeRequest{VolumeRef: cachevolume.Ref(v), Epoch: status.Epoch, SizeBytes: size}); err != nil {
		return 0, fmt.Errorf("grow the device of volume %s: %w", v.Name, err)
	}
	if at != nil && !at.Node && !at.FilesystemReadOnly {
		if err := s.Filesystems.Grow(ctx, v.Name, status.Device, path, at.FSType); err != nil {
			return 0, fmt.Errorf("grow the filesystem of volume %s: %w", v.Name, err)
		}
	}
	return size, nil
}
