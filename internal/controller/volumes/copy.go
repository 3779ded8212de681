package volumes

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"github.com/escache/escache-csi/api/v1alpha1"
	"github.com/escache/escache-csi/internal/authority"
	"github.com/escache/escache-csi/internal/cachevolume"
	"github.com/escache/escache-csi/internal/crashpoint"
)

// Copying says how far a new copy is.
type Copying struct {
	// To is the node that gets the copy.
	To string
	// Linked means that the holder copies, or has copied.
	Linked bool
	// Done means that the copy is current, and that the record says so.
	Done bool
}

// Copy makes the attached node copy the volume's cache to the other replica, while I/O goes on.
// Once the copy is complete, it takes that replica off the list of outdated ones. It does not wait
// for the copy: call it again and again.
func (l *Locked) Copy(ctx context.Context, id string, epoch int64) (Copying, error) {
	return under(l, id, "replica copy", func() (Copying, error) {
		c, err := l.steps.copy(ctx, id, epoch)
		return c, l.steps.ReportBehind(ctx, id, err)
	})
}

func (s *Steps) copy(ctx context.Context, id string, epoch int64) (Copying, error) {
	v, err := s.Volume(ctx, id)
	if err != nil {
		return Copying{}, err
	}
	holder := v.Status.AttachedNode
	out := Copying{To: authority.Partner(v, holder)}
	if !v.Status.IsOutdated(out.To) {
		out.Linked, out.Done = true, true
		return out, nil
	}
	if _, err := authority.Substitutable(v, epoch, out.To); err != nil {
		return out, err
	}
	answer, err := s.Hosts.Status(ctx, holder, cachevolume.Ref(v))
	report := authority.Heard(v, holder, answer, err)
	if _, err := report.Status(); err != nil {
		return out, fmt.Errorf("ask node %s about volume %s: %w", holder, id, err)
	}
	if out.Linked = authority.CopiesTo(report, out.To); !out.Linked {
		if err := s.noteCopy(ctx, v); err != nil && !s.holds(ctx, v, holder, err) {
			return out, err
		}
		return out, s.pair(ctx, v, holder, out.To)
	}
	if !authority.Resynced(v, report, out.To) {
		return out, nil
	}
	if err := s.noteCopy(ctx, v); errors.Is(err, authority.ErrRecordBehind) {
		return out, err
	} else if err != nil {
		s.Log.WarnContext(ctx, "it is not known whether the image tells of a new copy", "volume", id, "node", out.To, "error", err)
	}
	v.Status.Outdated = slices.DeleteFunc(v.Status.Outdated, func(node string) bool { return node == out.To || !v.Spec.HasReplica(node) })
	if err := s.UpdateStatus(ctx, v, "the copy on node "+out.To+" is current"); err != nil {
		return out, err
	}
	crashpoint.Reach("repair/copy_current")
	out.Done = true
	return out, nil
}

// noteCopy notes in the image that the copy has another place, unless it tells of that already. It returns an
// error if the image may tell of later replicas than the record. It returns none if Ceph takes no note: a full
// pool must not keep a volume on one copy.
func (s *Steps) noteCopy(ctx context.Context, v *v1alpha1.CacheVolume) error {
	noted, err := s.compare(ctx, v)
	if err == nil && !noted.Tells(v) {
		s.WriteNote(ctx, v)
	}
	return err
}

// holds reports whether the holder works on its own current copy, if that is all that has to be known: the image's
// metadata could not be read, and do not say that the record is behind. Then no other copy is the only one, and an
// outage of Ceph must not keep the volume on one copy.
func (s *Steps) holds(ctx context.Context, v *v1alpha1.CacheVolume, holder string, unread error) bool {
	if errors.Is(unread, ErrRefused) || errors.Is(unread, authority.ErrRecordBehind) || errors.Is(unread, ErrNotFound) {
		return false
	}
	answer, err := s.Hosts.Status(ctx, holder, cachevolume.Ref(v))
	own := authority.WorksOnItsOwn(authority.Heard(v, holder, answer, err))
	s.Log.WarnContext(ctx, "the record could not be compared with the image's metadata before a copy is replaced", "volume", v.Name,
		"node", holder, "goesOn", own, "error", unread)
	return own
}

// pair lays an empty copy on the new node first, and then gives the holder its new partner. So a
// holder never waits for a partner that cannot be made.
func (s *Steps) pair(ctx context.Context, v *v1alpha1.CacheVolume, holder, partner string) error {
	request, err := s.replicaRequest(ctx, v)
	if err != nil {
		return err
	}
	for _, node := range []string{partner, holder} {
		request.Join = node == partner // it starts empty: to take it for equal would lose what the holder has
		meant := ""                    // the partner may be a new machine
		if node == holder {
			meant = v.Status.HostID(holder)
		}
		id, err := s.Hosts.PutReplica(ctx, node, meant, request)
		if err != nil {
			err = fmt.Errorf("make nodes %s and %s partners for volume %s, on node %s: %w", holder, partner, v.Name, node, err)
			return onHost(node, err)
		}
		if node == partner {
			crashpoint.Reach("repair/paired_on_substitute")
			if v.Status.SetHostID(node, id) {
				if err := s.UpdateStatus(ctx, v, "a copy of it is on node "+node); err != nil {
					return err
				}
			}
		} else {
			crashpoint.Reach("repair/paired_on_holder")
		}
	}
	return nil
}
