package orphans

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"time"
)

// Trash tells what is in the trash of pools.
type Trash interface {
	// LeftInTrash returns the images in a pool's trash whose names begin with prefix, and that stay there
	// because somebody else than a driver has moved them there.
	LeftInTrash(ctx context.Context, clusterID, pool, prefix string) ([]Trashed, error)
}

// Trashed is an image that somebody has moved to the trash. It may be a volume's only image.
type Trashed struct {
	Image

	// ID is Ceph's. Several images in the trash can have one name.
	ID    string
	Since time.Time
}

// State says where the image is, and what can be done with it.
func (t Trashed) State() string {
	return fmt.Sprintf("image %s (ID %s) is in the trash since %s: csi-controller has not moved it there, and leaves it there. "+
		"`rbd trash restore --pool %s %s` takes it out, and `rbd trash rm --pool %s %s` removes it",
		t.Image, t.ID, t.Since.UTC().Format(time.RFC3339), t.Pool.Pool, t.ID, t.Pool.Pool, t.ID)
}

// trashed looks into the trash of these pools.
func (s Search) trashed(ctx context.Context, pools []Pool) (all []Trashed, failures []error) {
	if s.Trash == nil {
		return nil, nil
	}
	for _, p := range pools {
		left, err := s.Trash.LeftInTrash(ctx, p.ClusterID, p.Pool, s.Prefix)
		if err != nil {
			failures = append(failures, fmt.Errorf("list the trash of pool %s of cluster %s: %w", p.Pool, p.ClusterID, err))
		}
		all = append(all, left...)
	}
	slices.SortFunc(all, func(a, b Trashed) int { return strings.Compare(a.String()+a.ID, b.String()+b.ID) })
	return all, failures
}
