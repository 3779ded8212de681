package volumes

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"google.golang.org/grpc/codes"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/escache/escache-csi/api/v1alpha1"
	"github.com/escache/escache-csi/internal/authority"
	"github.com/escache/escache-csi/internal/crashpoint"
)

// Movable has a move look at what Kubernetes has of a volume, and returns what the move has to keep of
// its PersistentVolume. An error keeps the move from beginning.
type Movable func(ctx context.Context, v *v1alpha1.CacheVolume, group string) (KeptVolume, error)

// KeptVolume is a PersistentVolume that has to be re-created; empty if none has to.
type KeptVolume struct {
	UID string
	// Text is the new PersistentVolume, as JSON.
	Text string
}

// BeginMove puts on record that a volume goes to the group that its spec asks for, and takes a place
// there. From then on no node can have the volume until EndMove. The cache is written back first. Nothing
// is changed if the error wraps ErrRefused or authority.ErrRefused. It wraps authority.ErrAttached if only
// the attachment is in the way. A volume that nobody wants to move, or whose move has begun, is success.
func (l *Locked) BeginMove(ctx context.Context, id string, movable Movable) error {
	return l.moveStep(ctx, id, func() error { return l.steps.beginMove(ctx, id, movable) })
}

// moveStep takes a step of a move under the volume's lock, and tells people if the record is older than what its hosts or its
// image have.
func (l *Locked) moveStep(ctx context.Context, id string, step func() error) error {
	_, err := under(l, id, "move", func() (struct{}, error) { return struct{}{}, l.steps.ReportBehind(ctx, id, step()) })
	return err
}

func (s *Steps) beginMove(ctx context.Context, id string, movable Movable) (err error) {
	v, err := s.Volume(ctx, id)
	if err != nil || v.Status.Move != nil || v.Spec.MoveTo == nil {
		return err
	}
	group := v.Spec.MoveTo.Group
	if group == v.Spec.Group {
		return s.alreadyThere(ctx, v)
	}
	if err := s.open(ctx, group); err != nil {
		return err
	}
	if err := s.leavable(ctx, v); err != nil {
		return err
	}
	if v.Spec.MoveTo == nil || v.Spec.MoveTo.Group != group || v.Status.Move != nil {
		return fmt.Errorf("the move of volume %s was changed meanwhile: %w", id, ErrBusy)
	}
	kept, err := movable(ctx, v, group)
	if err != nil {
		return err
	}
	place, err := s.Book.Elsewhere(v, group)
	if err != nil {
		return fmt.Errorf("find a place for volume %s in group %s: %w", id, group, err)
	}
	sent := false
	defer func() {
		// Without an answer the move may be on record. Then the place stays taken until the record appears, the
		// move is tried again, or this process ends.
		if err != nil && (!sent || KubernetesAnswered(err)) {
			s.Book.Stay(id)
		}
	}()
	if err := s.prepareHosts(ctx, v, []string{place.Primary, place.Partner}); err != nil {
		return err
	}
	if err := s.Groups.Keep(ctx, group); err != nil {
		return fmt.Errorf("move volume %s: %w", id, err)
	}
	v.Status.Move = &v1alpha1.VolumeMove{
		Group: group, Replicas: []string{place.Primary, place.Partner}, Port: place.Port, Minor: place.Minor,
		PersistentVolume: kept.Text, PersistentVolumeUID: kept.UID, Since: s.now(),
	}
	setMoving(v, metav1.ConditionTrue, v1alpha1.ReasonMoveUnderWay, "it goes to group "+group)
	sent = true
	if err := s.UpdateStatus(ctx, v, "it goes to group "+group); err != nil {
		return err
	}
	s.Book.Observe(v)
	crashpoint.Reach("move/begun")
	s.Log.InfoContext(ctx, "moving", "volume", id, "from", v.Spec.Group, "to", group, "replicas", v.Status.Move.Replicas)
	return nil
}

// alreadyThere takes a request off the record that asks for the volume's own group.
func (s *Steps) alreadyThere(ctx context.Context, v *v1alpha1.CacheVolume) error {
	v.Spec.MoveTo = nil
	if err := s.Cached.Update(ctx, v); err != nil {
		return fmt.Errorf("record that volume %s is in group %s already: %w", v.Name, v.Spec.Group, err)
	}
	return nil
}

// open refuses a group that takes nothing new.
func (s *Steps) open(ctx context.Context, group string) error {
	g, err := s.Group(ctx, group)
	switch {
	case apierrors.IsNotFound(err):
		return fmt.Errorf("there is no NodeGroup %s: %w", group, ErrRefused)
	case err != nil:
		return err
	case g.Closed():
		return fmt.Errorf("group %s is cordoned, or being deleted, and takes nothing new: kubectl escache uncordon %s: %w",
			group, group, ErrRefused)
	}
	return nil
}

// leavable has the volume's data written back, and returns an error unless all of it is in Ceph and no
// node has the volume.
func (s *Steps) leavable(ctx context.Context, v *v1alpha1.CacheVolume) error {
	if err := usable(v); err != nil {
		return err
	}
	if v.Status.AttachedNode != "" && !v.Status.FlushAttached() {
		return authority.Movable(v, nil) // no host is asked for that
	}
	if v.Status.Repair != nil {
		return fmt.Errorf("volume %s: a lost copy was being replaced, which has to end first: %w", v.Name, ErrBusy)
	}
	if err := s.WriteBackDetached(ctx, v); err != nil {
		return fmt.Errorf("volume %s is written back before it is moved: %w", v.Name, err)
	}
	if _, err := s.notSetBack(ctx, v); err != nil {
		return err
	}
	reports := s.Reports(ctx, v, s.WellReplicas(v))
	if err := authority.Movable(v, s.WithoutLeftovers(ctx, v, reports)); err != nil {
		return err
	}
	// The volume may have been written back meanwhile, and csi-node writes the status, too.
	return s.again(ctx, v)
}

// prepareHosts removes what an earlier stay in the group may have left on the hosts that get the volume.
func (s *Steps) prepareHosts(ctx context.Context, v *v1alpha1.CacheVolume, nodes []string) error {
	if v.Status.Epoch == 0 {
		return nil // no host has had it
	}
	return s.DropReplicas(ctx, v, nodes, nodes)
}

// ClearMove removes the replicas in the group that the volume leaves. It and the steps that follow refuse a record of which the
// image says that it is older: a restored etcd may have brought the move back. If one cannot be given up, or if
// nobody wants the move any more, it calls the move off.
func (l *Locked) ClearMove(ctx context.Context, id string) error {
	return l.moveStep(ctx, id, func() error { return l.steps.clearMove(ctx, id) })
}

func (s *Steps) clearMove(ctx context.Context, id string) error {
	v, err := s.Volume(ctx, id)
	if err != nil || v.Status.Move == nil || v.Status.Move.Cleared {
		return err
	}
	if v.Spec.MoveTo == nil || v.Spec.MoveTo.Group != v.Status.Move.Group {
		return s.callOff(ctx, v)
	}
	if err := s.ImageNotNewer(ctx, v); err != nil {
		return err
	}
	if v.Status.Epoch > 0 {
		switch err := s.DropReplicas(ctx, v, v.Spec.Replicas, nil); Code(err) { //nolint:exhaustive // the rest stays as it is
		case codes.OK:
		case codes.Aborted, codes.Unavailable, codes.DeadlineExceeded, codes.Canceled:
			return err
		default:
			return errors.Join(err, s.callOff(ctx, v))
		}
	}
	crashpoint.Reach("move/replicas_removed")
	v.Status.Move.Cleared = true
	if err := s.UpdateStatus(ctx, v, "the replicas of its former group are given up"); err != nil {
		return err
	}
	crashpoint.Reach("move/cleared")
	return nil
}

// callOff ends a move that has changed nothing that counts: the next attachment lays the replicas again in
// the group that the volume was to leave.
func (s *Steps) callOff(ctx context.Context, v *v1alpha1.CacheVolume) error {
	v.Status.Move = nil
	meta.RemoveStatusCondition(&v.Status.Conditions, v1alpha1.ConditionMoving)
	if err := s.UpdateStatus(ctx, v, "its move is cancelled"); err != nil {
		return err
	}
	s.Book.Observe(v)
	return nil
}

// KeepVolume puts a newer copy of the PersistentVolume on record.
func (l *Locked) KeepVolume(ctx context.Context, id string, kept KeptVolume) error {
	_, err := under(l, id, "move", func() (struct{}, error) {
		v, err := l.steps.Volume(ctx, id)
		if err != nil || v.Status.Move == nil {
			return struct{}{}, err
		}
		v.Status.Move.PersistentVolume, v.Status.Move.PersistentVolumeUID = kept.Text, kept.UID
		return struct{}{}, l.steps.UpdateStatus(ctx, v, "its PersistentVolume has changed")
	})
	return err
}

// PlaceMoved puts the new group and the new replicas on record, in one write. The replicas are laid by the
// next attachment.
func (l *Locked) PlaceMoved(ctx context.Context, id string) error {
	return l.moveStep(ctx, id, func() error { return l.steps.placeMoved(ctx, id) })
}

func (s *Steps) placeMoved(ctx context.Context, id string) error {
	v, err := s.Volume(ctx, id)
	if err != nil || v.Status.Move == nil || v.Status.Move.Group == v.Spec.Group {
		return err
	}
	if !v.Status.Move.Cleared || v.Status.AttachedNode != "" || !authority.InCeph(v) {
		return fmt.Errorf("volume %s has not left its replicas yet: %w", id, ErrRefused)
	}
	if err := s.ImageNotNewer(ctx, v); err != nil {
		return err
	}
	m := v.Status.Move
	moved := v.DeepCopy()
	moved.Spec.Group, moved.Spec.Replicas, moved.Spec.Port, moved.Spec.Minor = m.Group, slices.Clone(m.Replicas), m.Port, m.Minor
	moved.Spec.LinkGeneration++ // who had an earlier replica does not know the new secret
	if to := moved.Spec.MoveTo; to != nil && to.Group == m.Group {
		moved.Spec.MoveTo = nil
	}
	if err := s.Cached.Update(ctx, moved); err != nil {
		return fmt.Errorf("record the new group of volume %s: %w", id, err)
	}
	s.Book.Observe(moved)
	crashpoint.Reach("move/placed")
	return nil
}

// EndMove lets nodes have the volume again, in its new group.
func (l *Locked) EndMove(ctx context.Context, id string) error {
	return l.moveStep(ctx, id, func() error { return l.steps.endMove(ctx, id) })
}

func (s *Steps) endMove(ctx context.Context, id string) error {
	v, err := s.Volume(ctx, id)
	if err != nil || v.Status.Move == nil || v.Status.Move.Group != v.Spec.Group {
		return err
	}
	if err := s.ImageNotNewer(ctx, v); err != nil {
		return err
	}
	// What is on record of replicas is of the former ones.
	v.Status.Move, v.Status.Hosts, v.Status.Outdated = nil, nil, nil
	meta.RemoveStatusCondition(&v.Status.Conditions, v1alpha1.ConditionMoving)
	if err := s.UpdateStatus(ctx, v, "it is in group "+v.Spec.Group); err != nil {
		return err
	}
	s.Book.Observe(v)
	s.WriteNote(ctx, v)
	return nil
}

// ReportMove records why a volume is not in its new group yet. Once nobody wants it moved any more, it
// removes what was recorded.
func (l *Locked) ReportMove(ctx context.Context, id, reason, message string) error {
	_, err := under(l, id, moveReport, func() (struct{}, error) {
		v, err := l.steps.Volume(ctx, id)
		if err != nil {
			return struct{}{}, client.IgnoreNotFound(err)
		}
		var changed bool
		switch {
		case !v.ToMove():
			changed = meta.RemoveStatusCondition(&v.Status.Conditions, v1alpha1.ConditionMoving)
		case v.Status.Move != nil:
			changed = setMoving(v, metav1.ConditionTrue, v1alpha1.ReasonMoveUnderWay, message)
		default:
			changed = setMoving(v, metav1.ConditionFalse, reason, message)
		}
		if !changed {
			return struct{}{}, nil
		}
		return struct{}{}, l.steps.UpdateStatus(ctx, v, "it is to be moved")
	})
	return err
}

func setMoving(v *v1alpha1.CacheVolume, status metav1.ConditionStatus, reason, message string) (changed bool) {
	return meta.SetStatusCondition(&v.Status.Conditions, metav1.Condition{
		Type: v1alpha1.ConditionMoving, Status: status, Reason: reason, Message: message, ObservedGeneration: v.Generation,
	})
}
