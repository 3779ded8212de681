package csi

import (
	"cmp"
	"context"
	"fmt"
	"slices"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/protobuf/types/known/wrapperspb"

	"github.com/escache/escache-csi/api/v1alpha1"
	"github.com/escache/escache-csi/internal/controller/csi/requests"
	"github.com/escache/escache-csi/internal/controller/csi/storageclass"
	"github.com/escache/escache-csi/internal/controller/reservation"
	"github.com/escache/escache-csi/internal/controller/volumes"
)

// room is where a volume's data is, and how much of it that place may be promised.
type room struct {
	clusterID, pool string
	overcommit      int64
}

// roomOf: a volume that an older version made has no overcommit on record.
func roomOf(clusterID, pool, dataPool string, overcommit int64) room {
	return room{clusterID, cmp.Or(dataPool, pool), cmp.Or(overcommit, storageclass.DefaultOvercommit)}
}

// largestIn returns the largest size of a volume there, in bytes.
func (s *service) largestIn(ctx context.Context, r room) (int64, error) {
	poolBytes, err := s.Images.PoolBytes(ctx, r.clusterID, r.pool)
	if err != nil {
		return 0, fmt.Errorf("ask pool %s of cluster %s for its size: %w", r.pool, r.clusterID, err)
	}
	if poolBytes >= storageclass.MaxVolumeBytes/r.overcommit {
		return storageclass.MaxVolumeBytes, nil
	}
	return poolBytes * r.overcommit / storageclass.VolumeGrain * storageclass.VolumeGrain, nil
}

// checkFitsPool refuses a volume that is larger than GetCapacity allows in its pool. While the
// pool's size is not known, as soon after its creation, nothing is refused. It fails if ctx ends first.
func (s *service) checkFitsPool(ctx context.Context, r room, sizeBytes int64) error {
	largest, err := s.largestIn(ctx, r)
	switch {
	case err != nil && ctx.Err() != nil:
		return err
	case err == nil && sizeBytes > largest:
		return fmt.Errorf("%d bytes are more than %d times the size of pool %s: ask for less, or raise maxOvercommit "+
			"(docs/parameters.md): %w", sizeBytes, r.overcommit, r.pool, volumes.ErrOutOfRange)
	}
	return nil
}

// GetCapacity returns the largest size that a volume of the StorageClass can have: what the size of
// the pool allows, or what the cache of the group, or of the best group, has room for, whichever is
// smaller.
func (s *Service) GetCapacity(ctx context.Context, r *csi.GetCapacityRequest) (*csi.GetCapacityResponse, error) {
	if all := r.GetVolumeCapabilities(); len(all) > 0 && !supported(all) {
		return &csi.GetCapacityResponse{}, nil
	}
	// Kubernetes always names a StorageClass. Without one only the cache's room is known.
	parameters, err := requests.ParseParameters(r.GetParameters())
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
	largest := s.service.largestVolume(parameters, groups)
	if parameters.Pool != "" && largest > 0 {
		inPool, err := s.service.largestIn(ctx,
			roomOf(parameters.ClusterID, parameters.Pool, parameters.DataPool, parameters.Overcommit))
		if err != nil {
			return nil, err
		}
		largest = min(largest, inPool)
	}
	return &csi.GetCapacityResponse{AvailableCapacity: largest, MaximumVolumeSize: wrapperspb.Int64(largest)}, nil
}

func supported(all []*csi.VolumeCapability) bool { return requests.CheckCapabilities(all) == nil }

func (s *service) largestVolume(p storageclass.Parameters, groups []string) int64 {
	var largest int64
	engine := reservation.EngineName(p.Engine)
	for _, usage := range s.Book.Usage() {
		if len(groups) > 0 && !slices.Contains(groups, usage.Group) {
			continue
		}
		cacheBytes := usage.LargestBytes
		if engine != "" {
			cacheBytes = usage.LargestOf[engine]
		}
		largest = max(largest, p.Cache.Largest(cacheBytes))
	}
	return volumes.LargestWith(p.Engine, largest)
}
