package volumes

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/client-go/util/retry"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/escache/escache-csi/api/escache"
	"github.com/escache/escache-csi/api/v1alpha1"
	"github.com/escache/escache-csi/internal/authority"
)

// leftPatience is how long a host may take to say what became of a fenced client.
const leftPatience = 5 * time.Second

// sameLeft reports whether two entries are of the same client and image.
func sameLeft(a, b v1alpha1.LeftFence) bool {
	return a.ClusterID == b.ClusterID && a.Pool == b.Pool && a.Image == b.Image && a.Client.Address == b.Client.Address
}

// leaveFences puts the fenced clients of a volume whose record is about to go on the list of its group. Without that
// nobody would know that they can leave Ceph's blocklist one day. Those that stay there for years are named by an Event.
func (s *Steps) leaveFences(ctx context.Context, v *v1alpha1.CacheVolume) error {
	var left []v1alpha1.LeftFence
	for _, c := range v.Status.Fenced {
		if c.Address != "" {
			left = append(left, v1alpha1.LeftFence{
				Volume: v.Name, ClusterID: v.Spec.ClusterID, Pool: v.Spec.Pool, Image: v.Spec.Image, Client: c,
			})
		}
	}
	if len(left) == 0 {
		return nil
	}
	var listed []v1alpha1.LeftFence
	err := retry.RetryOnConflict(retry.DefaultBackoff, func() error {
		g, err := s.Group(ctx, v.Spec.Group)
		if err != nil {
			return err
		}
		for _, l := range left {
			is := func(old v1alpha1.LeftFence) bool { return sameLeft(old, l) }
			if l.Client.Node != "" && !slices.ContainsFunc(g.Status.LeftFences, is) {
				g.Status.LeftFences = append(g.Status.LeftFences, l)
			}
		}
		err = s.Cached.Status().Update(ctx, g)
		listed = g.Status.LeftFences // an API server with an older CRD drops them
		return err
	})
	if err != nil && !apierrors.IsNotFound(err) {
		return fmt.Errorf("record in group %s that clients of volume %s are fenced: %w", v.Spec.Group, v.Name, err)
	}
	for _, l := range left {
		if slices.ContainsFunc(listed, func(other v1alpha1.LeftFence) bool { return sameLeft(other, l) }) {
			continue
		}
		s.Log.WarnContext(ctx, "a client stays on the blocklist", "volume", v.Name, "node", l.Client.Node, "client", l.Client.Address)
		s.Events.Eventf(v, nil, corev1.EventTypeWarning, "FenceStays", "Delete",
			"Ceph client %s stays on the blocklist of cluster %s: it is not known of which host it is, or its group is gone. "+
				"See docs/limits.md, blocklist entries can stay", l.Client.Address, l.ClusterID)
	}
	return nil
}

// UnfenceLeft takes those clients of volumes that are gone off Ceph's blocklist whose map is known to be gone. It wants
// the proof that Unfence wants. A host that does not answer is asked once.
func (l *Locked) UnfenceLeft(ctx context.Context) error {
	all := &v1alpha1.NodeGroupList{}
	if err := l.steps.Cached.List(ctx, all, client.UnsafeDisableDeepCopy); err != nil {
		return fmt.Errorf("list groups: %w", err)
	}
	var failures []error
	silent := map[string]bool{}
	for i := range all.Items {
		group := &all.Items[i]
		for _, left := range group.Status.LeftFences {
			if silent[left.Client.Node] {
				continue
			}
			status, err := l.steps.statusFor(ctx, left)
			if silent[left.Client.Node] = err != nil; err != nil || !mapOfLeftGone(left, status, l.steps.Now()) {
				continue
			}
			_, err = under(l, left.Volume, "fence removal", func() (struct{}, error) {
				return struct{}{}, l.steps.unfenceLeft(ctx, group.Name, left)
			})
			failures = append(failures, err)
		}
	}
	return errors.Join(failures...)
}

func (s *Steps) statusFor(ctx context.Context, left v1alpha1.LeftFence) (escache.VolumeStatus, error) {
	ctx, cancel := context.WithTimeout(ctx, leftPatience)
	defer cancel()
	return s.Hosts.Status(ctx, left.Client.Node, escache.VolumeRef{Pool: left.Pool, Image: left.Image})
}

// mapOfLeftGone is authority.MapGone for a client without a record. The truth was in Ceph when that went, and no node
// had the volume. A host that has seen a later attachment than the record knew proves the same of its maps.
func mapOfLeftGone(left v1alpha1.LeftFence, status escache.VolumeStatus, now time.Time) bool {
	v := &v1alpha1.CacheVolume{}
	v.Name = left.Volume
	v.Status.Authority, v.Status.Epoch = v1alpha1.AuthorityCeph, max(left.Client.Epoch, status.Epoch)
	return authority.MapGone(v, left.Client, authority.HeardOf(v, left.Client, status, nil), now)
}

// unfenceLeft removes the entry from the blocklist before it removes it from the list. While there is a record that
// names the client, that decides.
func (s *Steps) unfenceLeft(ctx context.Context, group string, left v1alpha1.LeftFence) error {
	switch v, err := s.Volume(ctx, left.Volume); {
	case err == nil && authority.IsFenced(v, left.Client.Address):
		return nil
	case err != nil && !errors.Is(err, ErrNotFound):
		return err
	}
	if !authority.Foreign(left.Client, s.Now()) {
		if err := s.Images.Unfence(ctx, left.ClusterID, left.Client.Address); err != nil {
			return fmt.Errorf("take client %s off the blocklist: %w", left.Client.Address, err)
		}
	}
	s.Log.InfoContext(ctx, "fence lifted", "volume", left.Volume, "node", left.Client.Node, "client", left.Client.Address,
		"reason", "its map and the volume are gone")
	err := retry.RetryOnConflict(retry.DefaultBackoff, func() error {
		g, err := s.Group(ctx, group)
		if err != nil {
			return err
		}
		g.Status.LeftFences = slices.DeleteFunc(g.Status.LeftFences, func(other v1alpha1.LeftFence) bool { return sameLeft(other, left) })
		return s.Cached.Status().Update(ctx, g)
	})
	return client.IgnoreNotFound(err)
}
