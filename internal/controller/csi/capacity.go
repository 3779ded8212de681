package csi

import (
	"context"
	"fmt"
	"slices"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/protobuf/types/known/wrapperspb"

	"github.com/escache/escache-csi/api/v1alpha1"
	"github.com/escache/escache-csi/internal/controller/csi/storageclass"
)

// GetCapacity returns the largest size that a volume of the StorageClass can have: what the pool
// has room for, or what the cache of the group, or of the best group, has room for, whichever is
// smaller.
func (s *Service) GetCapacity(ctx context.Context, r *csi.GetCapacityRequest) (*csi.GetCapacityResponse, error) {
	if all := r.GetVolumeCapabilities(); len(all) > 0 && !supported(all) {
		return &csi.GetCapacityResponse{}, nil
	}
	// Kubernetes always names a StorageClass. Without one only the cache's room is known.
	parameters, err := parseParameters(r.GetParameters())
	if len(r.GetParameters()) == 0 {
		parameters, err = storageclass.WithDefaults(), nil
	}
	if err != nil {
		return nil, err
	}
	groups := parameters.NodeGroups
	if topology := r.GetAccessibleTopology(); topology != nil {
		group := topology.GetSegments()[v1alpha1.TopologyKey]
		if group == "" || (len(groups) > 0 && !slices.Contains(groups, group)) {
			return &csi.GetCapacityResponse{}, nil
		}
		groups = []string{group}
	}
	largest := s.service.largestVolume(parameters.Cache, groups)
	if parameters.Pool != "" && largest > 0 {
		pool := parameters.Pool
		if parameters.DataPool != "" {
			pool = parameters.DataPool
		}
		available, err := s.service.Images.AvailableBytes(ctx, parameters.ClusterID, pool)
		if err != nil {
			return nil, fmt.Errorf("ask pool %s of cluster %s for its room: %w", pool, parameters.ClusterID, err)
		}
		largest = min(largest, available/storageclass.VolumeGrain*storageclass.VolumeGrain)
	}
	return &csi.GetCapacityResponse{AvailableCapacity: largest, MaximumVolumeSize: wrapperspb.Int64(largest)}, nil
}

func supported(all []*csi.VolumeCapability) bool { return checkCapabilities(all) == nil }

func (s *service) largestVolume(cache storageclass.CacheSize, groups []string) int64 {
	var largest int64
	for _, usage := range s.Book.Usage() {
		if len(groups) == 0 || slices.Contains(groups, usage.Group) {
			largest = max(largest, cache.Largest(usage.LargestBytes))
		}
	}
	return largest
}
