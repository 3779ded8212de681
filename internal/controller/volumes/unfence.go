package volumes

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"github.com/escache/escache-csi/api/escache"
	"github.com/escache/escache-csi/api/v1alpha1"
	"github.com/escache/escache-csi/internal/authority"
	"github.com/escache/escache-csi/internal/cachevolume"
	"github.com/escache/escache-csi/internal/crashpoint"
)

// Unfence takes those clients of a volume off Ceph's blocklist whose map is known to be gone, and
// returns how many are left. It asks the hosts before it locks the volume, because a dead host
// takes time to answer, and a map that is gone stays gone.
func (l *Locked) Unfence(ctx context.Context, id string) (left int, err error) {
	v, err := l.steps.Volume(ctx, id)
	if err != nil {
		return 0, err
	}
	gone := l.steps.mapGone(ctx, v)
	if len(gone) == 0 {
		return len(v.Status.Fenced), nil
	}
	done, err := l.operations.Begin(id, "fence removal")
	if err != nil {
		return 0, err
	}
	defer done()
	if v, err = l.steps.Volume(ctx, id); err != nil {
		return 0, err
	}
	if err = l.steps.unfence(ctx, v, gone); err == nil {
		// If this host did not answer when the volume was detached, nobody could say that the cache
		// is clean.
		_, err = l.steps.Settle(ctx, v)
	}
	return len(v.Status.Fenced), err
}

// fenced tells the entries of a volume's fenced clients apart.
type fenced struct {
	node, address string
	epoch         int64
}

func fencedOf(c v1alpha1.FencedClient) fenced { return fenced{c.Node, c.Address, c.Epoch} }

// mapGone asks the hosts of fenced clients, and returns those whose map is gone and does not come back.
func (s *Steps) mapGone(ctx context.Context, v *v1alpha1.CacheVolume) map[fenced]bool {
	type answer struct {
		status escache.VolumeStatus
		err    error
	}
	answers, gone := map[string]answer{}, map[fenced]bool{}
	for _, client := range v.Status.Fenced {
		if client.Node == "" {
			continue
		}
		a, asked := answers[client.Node]
		if !asked {
			a.status, a.err = s.Hosts.Status(ctx, client.Node, cachevolume.Ref(v))
			answers[client.Node] = a
		}
		if authority.MapGone(v, client, authority.HeardOf(v, client, a.status, a.err), s.Now()) {
			gone[fencedOf(client)] = true
		}
	}
	return gone
}

// unfence removes each entry from the blocklist before it removes it from the record. An entry that
// is on record can be removed again; one that is not on record would stay on the blocklist for
// years. Entries of others are only forgotten, and so are nodes of which no client was known.
func (s *Steps) unfence(ctx context.Context, v *v1alpha1.CacheVolume, gone map[fenced]bool) error {
	var failures []error
	before := len(v.Status.Fenced)
	v.Status.Fenced = slices.DeleteFunc(v.Status.Fenced, func(client v1alpha1.FencedClient) bool {
		if !gone[fencedOf(client)] {
			return false
		}
		switch {
		case client.Address == "":
			s.Log.InfoContext(ctx, "fence forgotten", "volume", v.Name, "node", client.Node,
				"reason", "no client of the node was known, and none can come any more")
			return true
		case authority.Foreign(client, s.Now()):
			s.Log.InfoContext(ctx, "fence forgotten", "volume", v.Name, "node", client.Node, "client", client.Address,
				"reason", "its map is gone, and the client was on the blocklist before it was fenced", "until", client.EarlierUntil.Time)
			return true
		}
		err := s.Images.Unfence(ctx, v.Spec.ClusterID, client.Address)
		if err != nil {
			failures = append(failures, fmt.Errorf("take client %s off the blocklist: %w", client.Address, err))
			return false
		}
		s.Log.InfoContext(ctx, "fence lifted", "volume", v.Name, "node", client.Node, "client", client.Address, "reason", "its map is gone")
		crashpoint.Reach("unfence/lifted")
		return true
	})
	if len(v.Status.Fenced) < before {
		if err := s.UpdateStatus(ctx, v, "fences are lifted"); err != nil {
			failures = append(failures, err)
		}
	}
	return errors.Join(failures...)
}
