package csi

import (
	"context"
	"fmt"

	"github.com/container-storage-interface/spec/lib/go/csi"

	"github.com/escache/escache-csi/api/v1alpha1"
	"github.com/escache/escache-csi/internal/controller/csi/requests"
	"github.com/escache/escache-csi/internal/controller/volumes"
	"github.com/escache/escache-csi/internal/crashpoint"
)

// expand grows the image, also while a node has the volume, and records the new size. The image
// comes first: if it cannot grow now, the record must not have a size that the image does not have,
// and a larger image does no harm. The node that has the volume, or gets it next, grows the device
// and the filesystem. The cache keeps its size.
//
// https://github.com/container-storage-interface/spec/blob/v1.13.0/spec.md#controllerexpandvolume
func (s *service) expand(ctx context.Context, id string, size requests.SizeRange) (*csi.ControllerExpandVolumeResponse, error) {
	v, err := s.Volume(ctx, id)
	if err != nil {
		return nil, err
	}
	if err := volumes.Usable(v); err != nil {
		return nil, err
	}
	if size.Maximum != 0 && v.Spec.SizeBytes > size.Maximum {
		return nil, fmt.Errorf("volume %s has %d bytes, more than the limit of %d, and cannot shrink: %w",
			id, v.Spec.SizeBytes, size.Maximum, volumes.ErrOutOfRange)
	}
	want := v.Spec.SizeBytes
	if want < size.Minimum {
		want = size.Want
		if err := volumes.FitsEngine(v.Spec.Engine(), want); err != nil {
			return nil, fmt.Errorf("volume %s: %w", id, err)
		}
		in := roomOf(v.Spec.ClusterID, v.Spec.Pool, v.Spec.DataPool, v.Spec.MaxOvercommit)
		if err := s.checkFitsPool(ctx, in, want); err != nil {
			return nil, fmt.Errorf("volume %s: %w", id, err)
		}
	}
	has, err := s.Images.Resize(ctx, volumes.ImageOf(v), want)
	if err != nil {
		return nil, fmt.Errorf("grow image %s: %w", volumes.ImageOf(v), err)
	}
	crashpoint.Reach("expand_volume/image_grown")
	if v.Spec.SizeBytes < has {
		v.Spec.SizeBytes = has
		if err := s.Cached.Update(ctx, v); err != nil {
			return nil, fmt.Errorf("record the new size of volume %s: %w", id, err)
		}
		crashpoint.Reach("expand_volume/size_written")
	}
	if summary := v1alpha1.HumanBytes(v.Spec.SizeBytes); v.Status.Summary.Size != summary {
		v.Status.Summary.Size = summary
		if err := s.UpdateStatus(ctx, v, "it has grown"); err != nil {
			return nil, err
		}
	}
	return &csi.ControllerExpandVolumeResponse{CapacityBytes: v.Spec.SizeBytes, NodeExpansionRequired: true}, nil
}
