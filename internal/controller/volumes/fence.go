package volumes

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/escache/escache-csi/api/v1alpha1"
	"github.com/escache/escache-csi/internal/authority"
	"github.com/escache/escache-csi/internal/clientaddress"
	"github.com/escache/escache-csi/internal/crashpoint"
)

// fence shuts the holder's Ceph client out for years. The host's other volumes have other clients
// and go on. The addresses are on record before they are on the blocklist, so that no entry is ever
// forgotten there. If no client of the node is known, and one may still come, the node is on record without
// an address: whoever gets the volume next looks for its client again.
//
// By a record that was set back nobody is fenced: who has the image open may have the volume. An image that is
// gone tells nothing.
func (s *Steps) fence(ctx context.Context, v *v1alpha1.CacheVolume, node, reason string, mayCome bool) error {
	if err := s.NotBehind(ctx, v); err != nil && !errors.Is(err, ErrNotFound) {
		return err
	}
	open, err := s.Images.Clients(ctx, ImageOf(v))
	if err != nil {
		return fmt.Errorf("find who has image %s open: %w", ImageOf(v), err)
	}
	before := len(v.Status.Fenced)
	if addresses := authority.Clients(v, open); len(addresses) > 0 {
		known := s.addressesOf(ctx, v, node)
		blocked, err := s.Images.Blocklist(ctx, v.Spec.ClusterID)
		if err != nil {
			return fmt.Errorf("read the blocklist: %w", err)
		}
		for _, address := range addresses {
			owner := authority.ClientOf(node, address, known...)
			v.Status.Fenced = append(v.Status.Fenced, v1alpha1.FencedClient{
				Node: owner, HostID: v.Status.HostID(owner), EarlierUntil: earlier(blocked, address),
				Address: address, Epoch: v.Status.Epoch, Time: s.now(),
			})
		}
	}
	if mayCome {
		s.expect(ctx, v, node, reason)
	}
	if len(v.Status.Fenced) > before {
		if err := s.UpdateStatus(ctx, v, "its clients are about to be fenced"); err != nil {
			return err
		}
		crashpoint.Reach("unpublish/fence_recorded")
	}
	// This includes clients that an earlier call recorded and perhaps did not fence.
	for _, client := range v.Status.Fenced {
		if client.Epoch != v.Status.Epoch || client.Address == "" {
			continue
		}
		s.Log.WarnContext(ctx, "fencing", "volume", v.Name, "node", client.Node, "client", client.Address, "reason", reason)
		if err := s.Images.Fence(ctx, v.Spec.ClusterID, client.Address, authority.FenceSeconds*time.Second); err != nil {
			return fmt.Errorf("fence client %s of image %s: %w", client.Address, ImageOf(v), err)
		}
		crashpoint.Reach("unpublish/fenced")
	}
	return nil
}

// expect puts a node on record that has lost the volume, and may still map the image with a client that
// nobody knows. It does nothing if a client of the node is on record already. The caller's next update
// writes it.
func (s *Steps) expect(ctx context.Context, v *v1alpha1.CacheVolume, node, reason string) {
	own := func(client v1alpha1.FencedClient) bool { return client.Node == node && client.Epoch == v.Status.Epoch }
	if slices.ContainsFunc(v.Status.Fenced, own) {
		return
	}
	s.Log.WarnContext(ctx, "a node may still map the image, and no client of it is known", "volume", v.Name, "node", node, "reason", reason)
	v.Status.Fenced = append(v.Status.Fenced, v1alpha1.FencedClient{
		Node: node, HostID: v.Status.HostID(node), Epoch: v.Status.Epoch, Time: s.now(),
	})
}

// earlier returns the end of the entry that a client has already, in full seconds as the record has it, or nil.
func earlier(blocked map[string]time.Time, address string) *metav1.Time {
	until, ok := blocked[clientaddress.Canonical(address)]
	if !ok {
		return nil
	}
	return &metav1.Time{Time: until.Truncate(time.Second)}
}

// FenceAgain is for a volume that was taken from its last holder by force. A dev_connect that was
// under way there may have mapped the image since, and would keep the next holder out for ever. No
// node has the volume now, so every client that has the image open is fenced. Those that are on record are
// looked at first: the next holder must not get the volume while one of them can write.
func (s *Steps) FenceAgain(ctx context.Context, v *v1alpha1.CacheVolume) error {
	if err := s.keepFenced(ctx, v); err != nil {
		return err
	}
	holder, forced := authority.TakenFrom(v)
	if !forced {
		return nil
	}
	open, err := s.Images.Clients(ctx, ImageOf(v))
	if err != nil {
		return fmt.Errorf("find who has image %s open: %w", ImageOf(v), err)
	}
	if len(authority.Clients(v, open)) == 0 {
		return nil
	}
	return s.fence(ctx, v, holder, "it has opened the image after the volume was taken from it", false)
}

// FenceLate fences clients that have opened the image of an attached volume late, on a host from
// which the volume was taken by force.
func (l *Locked) FenceLate(ctx context.Context, id string) error {
	v, err := l.steps.Volume(ctx, id)
	if err != nil || !authority.MayBeLate(v) {
		return err
	}
	open, err := l.steps.Images.Clients(ctx, ImageOf(v))
	if err != nil {
		return fmt.Errorf("find who has image %s open: %w", ImageOf(v), err)
	}
	known := l.steps.addressesOfFenced(ctx, v)
	if len(unrecorded(v, authority.Late(v, open, known))) == 0 {
		return nil
	}
	done, err := l.operations.Begin(id, "fencing of a late client")
	if err != nil {
		return err
	}
	defer done()
	if v, err = l.steps.Volume(ctx, id); err != nil {
		return err
	}
	if err := l.steps.NotBehind(ctx, v); err != nil {
		return err
	}
	return l.steps.fenceLate(ctx, v, unrecorded(v, authority.Late(v, open, known)))
}

// unrecorded leaves out the clients that are on record already. KeepFenced looks after those, also if an earlier call only
// recorded them.
func unrecorded(v *v1alpha1.CacheVolume, clients []v1alpha1.FencedClient) []v1alpha1.FencedClient {
	return slices.DeleteFunc(clients, func(client v1alpha1.FencedClient) bool { return authority.IsFenced(v, client.Address) })
}

// fenceLate records the clients, then fences them.
func (s *Steps) fenceLate(ctx context.Context, v *v1alpha1.CacheVolume, late []v1alpha1.FencedClient) error {
	if len(late) == 0 {
		return nil // another call was faster
	}
	blocked, err := s.Images.Blocklist(ctx, v.Spec.ClusterID)
	if err != nil {
		return fmt.Errorf("read the blocklist: %w", err)
	}
	for _, client := range late {
		client.EarlierUntil, client.Time = earlier(blocked, client.Address), s.now()
		v.Status.Fenced = append(v.Status.Fenced, client)
	}
	if err := s.UpdateStatus(ctx, v, "late clients are about to be fenced"); err != nil {
		return err
	}
	crashpoint.Reach("unfence/late_recorded")
	for _, client := range late {
		s.Log.WarnContext(ctx, "fencing", "volume", v.Name, "node", client.Node, "client", client.Address,
			"reason", "it has opened the image after another node was given the volume")
		if err := s.Images.Fence(ctx, v.Spec.ClusterID, client.Address, authority.FenceSeconds*time.Second); err != nil {
			return fmt.Errorf("fence client %s of image %s: %w", client.Address, ImageOf(v), err)
		}
	}
	return nil
}
