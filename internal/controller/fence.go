package controller

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/escache/escache-csi/api/v1alpha1"
	"github.com/escache/escache-csi/internal/authority"
	"github.com/escache/escache-csi/internal/crashpoint"
)

// fence shuts the holder's own Ceph client out, for years; the host's other volumes have other clients and go on. The
// addresses are on record before they are on the blocklist, so that none is ever forgotten there.
func (s *service) fence(ctx context.Context, v *v1alpha1.CacheVolume, node, reason string) error {
	open, err := s.Images.Clients(ctx, imageOf(v))
	if err != nil {
		return fmt.Errorf("find who has image %s open: %w", imageOf(v), err)
	}
	if addresses := authority.Clients(v, open); len(addresses) > 0 {
		// An address that cannot be told, or a node that Kubernetes has forgotten, leaves the owner of a client unknown.
		replication, _ := s.Hosts.ReplicationAddress(ctx, node)
		known := []string{v.Status.ClientAddress, replication}
		for _, earlier := range v.Status.Fenced {
			if earlier.Node == node {
				known = append(known, earlier.Address)
			}
		}
		for _, address := range addresses {
			v.Status.Fenced = append(v.Status.Fenced, v1alpha1.FencedClient{
				Node: authority.ClientOf(node, address, known...), Address: address, Epoch: v.Status.Epoch, Time: s.now(),
			})
		}
		if err := s.updateStatus(ctx, v, "its clients are about to be fenced"); err != nil {
			return err
		}
		crashpoint.Reach("unpublish/fence_recorded")
	}
	// Also those that an earlier call has recorded and, perhaps, not fenced any more.
	for _, client := range v.Status.Fenced {
		if client.Epoch != v.Status.Epoch {
			continue
		}
		s.Log.WarnContext(ctx, "fencing", "volume", v.Name, "node", client.Node, "client", client.Address, "reason", reason)
		if err := s.Images.Fence(ctx, v.Spec.ClusterID, client.Address, authority.FenceSeconds*time.Second); err != nil {
			return fmt.Errorf("fence client %s of image %s: %w", client.Address, imageOf(v), err)
		}
		crashpoint.Reach("unpublish/fenced")
	}
	return nil
}

// fenceAgain is for a volume that was taken from its last holder by force: a dev_connect which was under way there may have mapped
// the image since, and would keep the next holder out for ever. Nobody has the volume now, so whoever has the image open is fenced.
func (s *service) fenceAgain(ctx context.Context, v *v1alpha1.CacheVolume) error {
	holder, forced := authority.TakenFrom(v)
	if !forced {
		return nil
	}
	open, err := s.Images.Clients(ctx, imageOf(v))
	if err != nil {
		return fmt.Errorf("find who has image %s open: %w", imageOf(v), err)
	}
	if len(authority.Clients(v, open)) == 0 {
		return nil
	}
	return s.fence(ctx, v, holder, "it has opened the image after the volume was taken from it")
}

// FenceLate fences clients that have opened the image of an attached volume late, on a host from which it was taken by force.
func (s *Service) FenceLate(ctx context.Context, id string) error {
	v, err := s.service.volume(ctx, id)
	if err != nil || v.Status.AttachedNode == "" || v.Status.ClientAddress != "" || len(v.Status.Fenced) == 0 {
		return err
	}
	open, err := s.service.Images.Clients(ctx, imageOf(v))
	if err != nil {
		return fmt.Errorf("find who has image %s open: %w", imageOf(v), err)
	}
	if len(authority.Late(v, open)) == 0 {
		return nil
	}
	done, err := s.service.Operations.Begin(id, "fencing of a late client")
	if err != nil {
		return err
	}
	defer done()
	if v, err = s.service.volume(ctx, id); err != nil {
		return err
	}
	return s.service.fenceLate(ctx, v, authority.Late(v, open))
}

// fenceLate records, then fences. One that is on record already is fenced again: its recording may have been all that was done.
func (s *service) fenceLate(ctx context.Context, v *v1alpha1.CacheVolume, late []v1alpha1.FencedClient) error {
	before := len(v.Status.Fenced)
	for _, client := range late {
		known := slices.ContainsFunc(v.Status.Fenced, func(f v1alpha1.FencedClient) bool { return f.Address == client.Address })
		if client.Time = s.now(); !known {
			v.Status.Fenced = append(v.Status.Fenced, client)
		}
	}
	if len(v.Status.Fenced) > before {
		if err := s.updateStatus(ctx, v, "late clients are about to be fenced"); err != nil {
			return err
		}
	}
	for _, client := range late {
		s.Log.WarnContext(ctx, "fencing", "volume", v.Name, "node", client.Node, "client", client.Address,
			"reason", "it has opened the image after another node was given the volume")
		if err := s.Images.Fence(ctx, v.Spec.ClusterID, client.Address, authority.FenceSeconds*time.Second); err != nil {
			return fmt.Errorf("fence client %s of image %s: %w", client.Address, imageOf(v), err)
		}
	}
	return nil
}

// Unfence takes those clients of a volume off Ceph's blocklist whose map is known to be gone, and says how many are left. Hosts are
// asked before the volume is locked: a dead one takes its time, and what is gone stays gone.
func (s *Service) Unfence(ctx context.Context, id string) (left int, err error) {
	v, err := s.service.volume(ctx, id)
	if err != nil {
		return 0, err
	}
	gone := s.service.mapGone(ctx, v)
	if !slices.ContainsFunc(v.Status.Fenced, func(c v1alpha1.FencedClient) bool { return gone[c.Address] }) {
		return len(v.Status.Fenced), nil
	}
	done, err := s.service.Operations.Begin(id, "lifting of fences")
	if err != nil {
		return 0, err
	}
	defer done()
	if v, err = s.service.volume(ctx, id); err != nil {
		return 0, err
	}
	if err = s.service.unfence(ctx, v, gone); err == nil {
		// Where this host did not answer when the volume was detached, nobody could say that the cache is clean.
		_, err = s.service.settle(ctx, v)
	}
	return len(v.Status.Fenced), err
}

// mapGone asks the hosts of fenced clients, and tells of each client's address whether its map is gone.
func (s *service) mapGone(ctx context.Context, v *v1alpha1.CacheVolume) map[string]bool {
	reports, gone := map[string]authority.Report{}, map[string]bool{}
	for _, client := range v.Status.Fenced {
		if _, asked := reports[client.Node]; !asked && client.Node != "" {
			status, err := s.Hosts.Status(ctx, client.Node, refOf(v))
			reports[client.Node] = authority.Report{Status: status, Err: err}
		}
		gone[client.Address] = authority.MapGone(v, client, reports[client.Node], s.Now())
	}
	return gone
}

// unfence first lifts, then forgets: what is on record may be lifted again, what is not would stay on the blocklist for years.
func (s *service) unfence(ctx context.Context, v *v1alpha1.CacheVolume, gone map[string]bool) error {
	var failures []error
	before := len(v.Status.Fenced)
	v.Status.Fenced = slices.DeleteFunc(v.Status.Fenced, func(client v1alpha1.FencedClient) bool {
		if !gone[client.Address] {
			return false
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
		if err := s.updateStatus(ctx, v, "fences are lifted"); err != nil {
			failures = append(failures, err)
		}
	}
	return errors.Join(failures...)
}
