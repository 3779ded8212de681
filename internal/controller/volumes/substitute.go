package volumes

import (
	"context"
	"fmt"
	"slices"
	"strings"

	"github.com/escache/escache-csi/api/v1alpha1"
	"github.com/escache/escache-csi/internal/authority"
	"github.com/escache/escache-csi/internal/cachevolume"
	"github.com/escache/escache-csi/internal/crashpoint"
)

// Place says which hosts may get the copy that replaces a lost one.
type Place int

// Places.
const (
	// ElsewhereIfAway: another host of the group, unless the host of the lost copy is back.
	ElsewhereIfAway Place = iota
	// Elsewhere: another host of the group. That of the lost copy may well answer.
	Elsewhere
	// Moved: another host of the group. The lost copy is none: it may count, and is to leave its host.
	Moved
	// Same: the host of the lost copy, which has nothing of it any more; if that is not ready, another
	// one.
	Same
)

// Substitute gives the place of a lost replica to another node of the group, on record only. The node
// is one of Substitutes. The new copy counts as outdated until its resync is complete. The volume stays
// attached and its I/O goes on. Repeated after a crash, it goes on where it was; the node may be another
// one then.
func (l *Locked) Substitute(ctx context.Context, id string, epoch int64, lost, substitute string, place Place) error {
	_, err := under(l, id, "replica replacement", func() (struct{}, error) {
		return struct{}{}, l.steps.ReportBehind(ctx, id, l.steps.substitute(ctx, id, epoch, lost, substitute, place))
	})
	return err
}

// Substitutes returns the nodes of the group that can get the copy that replaces a lost one, the least
// loaded first. They are ready, and have room and no replica that counts. It changes nothing. Errors
// wrap ErrRefused, authority.ErrRefused or placement.ErrNoFit.
func (l *Locked) Substitutes(v *v1alpha1.CacheVolume, lost string, place Place) ([]string, error) {
	may := authority.Substitutable
	if place == Moved {
		may = authority.Beside // it need not be drained yet
	}
	holder, err := may(v, v.Status.Epoch, lost)
	if err != nil {
		return nil, err
	}
	return l.steps.substitutes(v, holder, lost, place)
}

func (s *Steps) substitute(ctx context.Context, id string, epoch int64, lost, substitute string, where Place) error {
	v, err := s.Volume(ctx, id)
	if err != nil {
		return err
	}
	if v.Status.Repair == nil {
		return fmt.Errorf("volume %s has no repair on record: %w", id, ErrRefused)
	}
	holder, err := s.replaceable(ctx, v, epoch, lost, where)
	if err != nil {
		return err
	}
	// The node may have the only current copy, if the record was set back to before it got that. A copy that is
	// only moved can wait for Ceph.
	if err := s.NotBehind(ctx, v); err != nil && (where == Moved || !s.holds(ctx, v, holder, err)) {
		return err
	}
	// The book reads the new place from the record again, whatever is written there in the end.
	defer func() { s.Book.Observe(v) }()
	if err := s.place(v, holder, lost, substitute, where); err != nil {
		return err
	}
	v.Status.Repair.Lost, v.Status.Repair.Substitute = lost, substitute
	for _, node := range []string{lost, substitute} {
		if !v.Status.IsOutdated(node) { // a copy that is moved counts until now
			v.Status.Outdated = append(v.Status.Outdated, node)
		}
	}
	if err := s.UpdateStatus(ctx, v, "node "+substitute+" gets a copy, which is not current yet"); err != nil {
		return err
	}
	crashpoint.Reach("repair/substitute_recorded")
	// An old replica that may still be there must not be taken for a copy. The host refuses if the holder lives
	// from it: then the record was set back.
	if err := s.Hosts.DiscardReplica(ctx, substitute, cachevolume.Ref(v), v.Status.Epoch); err != nil {
		return onHost(substitute, fmt.Errorf("remove an old replica of volume %s on node %s: %w", id, substitute, err))
	}
	crashpoint.Reach("repair/substitute_cleared")
	if substitute != lost {
		stale := s.stale(v, lost)
		stale.Epoch = v.Status.Epoch // it may have seen this attachment, in which it is on record as outdated
		if err := s.recordStale(ctx, v.Spec.Group, []v1alpha1.StaleReplica{stale}); err != nil {
			return err
		}
	}
	replicas := slices.Clone(v.Spec.Replicas)
	replicas[slices.Index(replicas, lost)] = substitute
	if err := s.moveReplicas(ctx, v, replicas, v.Spec.CacheBytes); err != nil {
		return err
	}
	crashpoint.Reach("repair/replica_moved")
	s.WriteNote(ctx, v) // Copy notes it if this fails
	return nil
}

// replaceable returns the holder beside which a copy may be replaced now.
func (s *Steps) replaceable(ctx context.Context, v *v1alpha1.CacheVolume, epoch int64, lost string, where Place) (string, error) {
	if where != Moved || v.Status.IsOutdated(lost) {
		return authority.Substitutable(v, epoch, lost)
	}
	at := v.Status.AttachedNode
	answer, err := s.Hosts.Status(ctx, at, cachevolume.Ref(v))
	return authority.CopyMayLeave(v, epoch, lost, authority.Heard(v, at, answer, err))
}

// place takes the host of the new copy.
func (s *Steps) place(v *v1alpha1.CacheVolume, holder, lost, substitute string, where Place) error {
	able, err := s.substitutes(v, holder, lost, where)
	switch {
	case err != nil:
		return err
	case !slices.Contains(able, substitute):
		return fmt.Errorf("node %s cannot get a copy of volume %s any more, only %s: %w", substitute, v.Name, strings.Join(able, ", "),
			ErrRefused)
	case substitute == lost:
		return nil // it has the place
	}
	if _, err := s.Book.Pair(v, holder, substitute); err != nil {
		return noSecondHost(v, holder, err)
	}
	return nil
}

func (s *Steps) substitutes(v *v1alpha1.CacheVolume, holder, lost string, where Place) ([]string, error) {
	ready := s.Book.Ready(v.Spec.Group, lost)
	switch {
	case ready && where == ElsewhereIfAway:
		return nil, fmt.Errorf("node %s is back: %w", lost, ErrRefused)
	case ready && where == Same:
		return []string{lost}, nil
	}
	able, err := s.Book.Partners(v, holder, lost)
	if err != nil {
		return nil, noSecondHost(v, holder, err)
	}
	return able, nil
}

func noSecondHost(v *v1alpha1.CacheVolume, holder string, err error) error {
	return fmt.Errorf("find a second host for the cache of volume %s beside node %s: %w", v.Name, holder, err)
}
