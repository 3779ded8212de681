package controller

import (
	"context"
	"fmt"
	"slices"

	"github.com/escache/escache-csi/api/v1alpha1"
	"github.com/escache/escache-csi/internal/authority"
	"github.com/escache/escache-csi/internal/crashpoint"
)

// Substitute gives the place of a lost replica to the third node of the group, on record only: the new copy counts as outdated
// until its resync is complete. The volume stays attached and its I/O goes on. Repeated after a crash it goes on where it was.
func (s *Service) Substitute(ctx context.Context, id string, epoch int64, lost string) (substitute string, err error) {
	done, err := s.service.Operations.Begin(id, "the replacement of a lost replica")
	if err != nil {
		return "", err
	}
	defer done()
	return s.service.substitute(ctx, id, epoch, lost)
}

func (s *service) substitute(ctx context.Context, id string, epoch int64, lost string) (substitute string, err error) {
	v, err := s.volume(ctx, id)
	if err != nil {
		return "", err
	}
	if v.Status.Repair == nil {
		return "", fmt.Errorf("volume %s has no repair on record: %w", id, ErrRefused)
	}
	holder, err := authority.Substitutable(v, epoch, lost)
	if err != nil {
		return "", err
	}
	group, err := s.group(ctx, v.Spec.Group)
	if err != nil {
		return "", err
	}
	place, err := s.Book.Around(v, holder)
	// The book takes the new place from the record again, whatever is written there in the end.
	defer func() { s.Book.Observe(v) }()
	if err != nil {
		return "", fmt.Errorf("find a second host for the cache of volume %s beside node %s: %w", id, holder, err)
	}
	substitute = place.Partner
	if substitute == lost {
		return "", fmt.Errorf("node %s is back: %w", lost, ErrRefused)
	}
	v.Status.Repair.Lost, v.Status.Repair.Substitute = lost, substitute
	if !v.Status.IsOutdated(substitute) {
		v.Status.Outdated = append(v.Status.Outdated, substitute)
	}
	if err := s.updateStatus(ctx, v, "node "+substitute+" gets a copy, which is not current yet"); err != nil {
		return "", err
	}
	crashpoint.Reach("repair/substitute_recorded")
	// What may be left there of earlier times must not be taken for a copy.
	if err := s.Hosts.DeleteReplica(ctx, substitute, refOf(v), true); err != nil {
		return "", fmt.Errorf("remove an old replica of volume %s on node %s: %w", id, substitute, err)
	}
	crashpoint.Reach("repair/substitute_cleared")
	if slices.Contains(group.Spec.Nodes, lost) {
		if err := s.recordStale(ctx, v.Spec.Group, []v1alpha1.StaleReplica{s.stale(v, lost)}); err != nil {
			return "", err
		}
	}
	moved := v.DeepCopy()
	moved.Spec.Replicas[slices.Index(moved.Spec.Replicas, lost)] = substitute
	if err := s.Cached.Update(ctx, moved); err != nil {
		return "", fmt.Errorf("record the new replica of volume %s: %w", id, err)
	}
	*v = *moved
	crashpoint.Reach("repair/replica_moved")
	return substitute, nil
}

// Copying is how far a new copy is.
type Copying struct {
	// To is the node that gets it.
	To string
	// Linked: the holder copies, or has copied.
	Linked bool
	// Percent of the cache that is equal on both.
	Percent float64
	// Done: the copy is current, and on record as such.
	Done bool
}

// Copy has the attached node of a volume copy its cache to the other replica, under running I/O, and takes that off the outdated
// ones once the copy is complete. It does not wait for that: it is called again and again.
func (s *Service) Copy(ctx context.Context, id string, epoch int64) (Copying, error) {
	done, err := s.service.Operations.Begin(id, "copying to a new replica")
	if err != nil {
		return Copying{}, err
	}
	defer done()
	return s.service.copy(ctx, id, epoch)
}

func (s *service) copy(ctx context.Context, id string, epoch int64) (Copying, error) {
	v, err := s.volume(ctx, id)
	if err != nil {
		return Copying{}, err
	}
	holder := v.Status.AttachedNode
	out := Copying{To: authority.Partner(v, holder)}
	if !v.Status.IsOutdated(out.To) {
		out.Linked, out.Percent, out.Done = true, 100, true
		return out, nil
	}
	if _, err := authority.Substitutable(v, epoch, out.To); err != nil {
		return out, err
	}
	status, err := s.Hosts.Status(ctx, holder, refOf(v))
	if err != nil {
		return out, fmt.Errorf("ask node %s about volume %s: %w", holder, id, err)
	}
	report := authority.Report{Status: status}
	if out.Linked = authority.Linked(report, out.To); !out.Linked {
		return out, s.pair(ctx, v, holder, out.To)
	}
	out.Percent = status.SyncedPercent
	if !authority.Resynced(v, report, out.To) {
		return out, nil
	}
	v.Status.Outdated = slices.DeleteFunc(v.Status.Outdated, func(node string) bool { return node == out.To || !v.Spec.HasReplica(node) })
	if err := s.updateStatus(ctx, v, "the copy on node "+out.To+" is current"); err != nil {
		return out, err
	}
	crashpoint.Reach("repair/copy_current")
	out.Done = true
	return out, nil
}

// pair lays an empty copy on the new node, and only then tells the holder who its partner is: so a holder never waits for a
// partner that cannot be made.
func (s *service) pair(ctx context.Context, v *v1alpha1.CacheVolume, holder, partner string) error {
	request, err := s.replicaRequest(ctx, v)
	if err != nil {
		return err
	}
	for _, node := range []string{partner, holder} {
		request.Join = node == partner // it starts empty: to take it for equal would lose what the holder has
		if err := s.Hosts.PutReplica(ctx, node, request); err != nil {
			return fmt.Errorf("make nodes %s and %s partners for volume %s, on node %s: %w", holder, partner, v.Name, node, err)
		}
		crashpoint.Reach("repair/paired_on_" + map[bool]string{true: "substitute", false: "holder"}[node == partner])
	}
	return nil
}
