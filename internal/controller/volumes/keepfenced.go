package volumes

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"golang.org/x/sync/errgroup"
	corev1 "k8s.io/api/core/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/escache/escache-csi/api/v1alpha1"
	"github.com/escache/escache-csi/internal/authority"
	"github.com/escache/escache-csi/internal/crashpoint"
)

// fencesAtOnce is how many volumes have their clients fenced again at the same time: one command removes all
// entries of the blocklist, and a monitor takes the changes of a second together.
const fencesAtOnce = 16

// KeepFenced looks once whether the fenced clients of all volumes are still on Ceph's blocklist, and fences
// those again that are not, or not for long enough. It does not ask their hosts before: that takes time, and an
// entry too many does no harm. The list is read once for each Ceph cluster, and not at all without such clients.
func (l *Locked) KeepFenced(ctx context.Context) error {
	all := &v1alpha1.CacheVolumeList{}
	if err := l.steps.Cached.List(ctx, all, client.UnsafeDisableDeepCopy); err != nil {
		return fmt.Errorf("list volumes: %w", err)
	}
	clusters := map[string][]*v1alpha1.CacheVolume{}
	for i := range all.Items {
		if v := &all.Items[i]; authority.HasFenced(v) {
			clusters[v.Spec.ClusterID] = append(clusters[v.Spec.ClusterID], v)
		}
	}
	var (
		wait     sync.WaitGroup
		mu       sync.Mutex
		failures []error
	)
	for id, volumes := range clusters {
		wait.Go(func() { // another cluster may not answer
			err := l.keepFenced(ctx, id, volumes)
			mu.Lock()
			defer mu.Unlock()
			failures = append(failures, err)
		})
	}
	wait.Wait()
	return errors.Join(failures...)
}

// keepFenced is KeepFenced for the volumes of one Ceph cluster. Their records may be a moment old.
func (l *Locked) keepFenced(ctx context.Context, clusterID string, volumes []*v1alpha1.CacheVolume) error {
	now := l.steps.Now()
	blocked, err := l.steps.Images.Blocklist(ctx, clusterID)
	if err != nil {
		return fmt.Errorf("read the blocklist of Ceph cluster %s, which has fenced clients: %w", clusterID, err)
	}
	failures := make([]error, len(volumes))
	var group errgroup.Group
	group.SetLimit(fencesAtOnce)
	for i, v := range volumes {
		if len(lapsed(v, blocked, now)) == 0 {
			continue
		}
		group.Go(func() error {
			_, failures[i] = under(l, v.Name, "renewal of a fence", func() (struct{}, error) {
				now, err := l.steps.Volume(ctx, v.Name)
				if errors.Is(err, ErrNotFound) {
					return struct{}{}, nil
				}
				if err == nil {
					err = l.steps.keepFenced(ctx, now)
				}
				return struct{}{}, err
			})
			return nil
		})
	}
	_ = group.Wait()
	return errors.Join(failures...)
}

// keepFenced fences those clients of a volume again that are on record as fenced, and are not on the blocklist
// for long enough.
func (s *Steps) keepFenced(ctx context.Context, v *v1alpha1.CacheVolume) error {
	if !authority.HasFenced(v) {
		return nil
	}
	blocked, err := s.Images.Blocklist(ctx, v.Spec.ClusterID)
	if err != nil {
		return fmt.Errorf("read the blocklist: %w", err)
	}
	again := lapsed(v, blocked, s.Now())
	changed := false
	for _, client := range again {
		// The record says whose the entry is that is on the list by now: if there is none, the next one is the driver's.
		if until := earlier(blocked, client.Address); !until.Equal(client.EarlierUntil) {
			client.EarlierUntil, changed = until, true
		}
	}
	if changed {
		if err := s.UpdateStatus(ctx, v, "its clients are about to be fenced again"); err != nil {
			return err
		}
		crashpoint.Reach("unfence/again_recorded")
	}
	for _, client := range again {
		if err := s.fenceAgain(ctx, v, *client); err != nil {
			return err
		}
	}
	return nil
}

// lapsed returns the clients that have to be fenced again, as they are on record.
func lapsed(v *v1alpha1.CacheVolume, blocked map[string]time.Time, now time.Time) (again []*v1alpha1.FencedClient) {
	for i := range v.Status.Fenced {
		client := &v.Status.Fenced[i]
		var until *time.Time
		if end := earlier(blocked, client.Address); end != nil {
			until = &end.Time
		}
		if authority.Lapsed(v, *client, until, now) {
			again = append(again, client)
		}
	}
	return again
}

func (s *Steps) fenceAgain(ctx context.Context, v *v1alpha1.CacheVolume, client v1alpha1.FencedClient) error {
	reason := "it is on record as fenced, and was not on Ceph's blocklist"
	if client.EarlierUntil != nil {
		reason = "its entry on Ceph's blocklist was to end at " + client.EarlierUntil.UTC().Format(time.RFC3339)
	}
	s.Log.WarnContext(ctx, "fencing again", "volume", v.Name, "node", client.Node, "client", client.Address, "reason", reason)
	if err := s.Images.Fence(ctx, v.Spec.ClusterID, client.Address, authority.FenceSeconds*time.Second); err != nil {
		return fmt.Errorf("fence client %s of image %s again: %w", client.Address, ImageOf(v), err)
	}
	s.Events.Eventf(v, nil, corev1.EventTypeWarning, "FencedAgain", "Fence",
		"Ceph client %s of node %q is fenced again: %s. If somebody has removed the entry, that client may have written to the image since",
		client.Address, client.Node, reason)
	return nil
}
