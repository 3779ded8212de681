package volumes

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/escache/escache-csi/api/v1alpha1"
	"github.com/escache/escache-csi/internal/authority"
	"github.com/escache/escache-csi/internal/crashpoint"
)

// Release gives a volume up whose spec asks for it, and leaves its image complete in Ceph. Repeated
// after a crash, it goes on where it was. A volume that is gone, or whose spec does not ask for it, is
// success.
func (l *Locked) Release(ctx context.Context, id string) error {
	_, err := under(l, id, "release", func() (struct{}, error) {
		return struct{}{}, l.steps.ReportBehind(ctx, id, l.steps.giveUp(ctx, id))
	})
	return err
}

// giveUp changes nothing that cannot be undone before the phase is Releasing. From then on nobody
// can have the volume, and each step can be repeated.
func (s *Steps) giveUp(ctx context.Context, id string) error {
	v, err := s.Volume(ctx, id)
	if err != nil || !v.BeingReleased() {
		return err
	}
	if v.Status.Phase != v1alpha1.VolumeReleasing {
		if err := s.releasable(ctx, v); err != nil {
			return err
		}
		// The record was read again since. From here on a change of it makes the update fail.
		if !v.Spec.Release {
			return fmt.Errorf("the release of volume %s was cancelled meanwhile: %w", v.Name, ErrBusy)
		}
		v.Status.Phase = v1alpha1.VolumeReleasing
		if err := s.UpdateStatus(ctx, v, "it is being released"); err != nil {
			return err
		}
		crashpoint.Reach("release/begun")
	} else if err := s.resumeRelease(ctx, v); err != nil {
		return err
	}
	if v.Status.Epoch > 0 {
		if err := s.DropReplicas(ctx, v, v.Spec.Replicas, nil); err != nil {
			return err
		}
	}
	crashpoint.Reach("release/replicas_removed")
	if err := s.Images.Release(ctx, ImageOf(v), s.NewNote(v)); err != nil {
		return fmt.Errorf("give up image %s: %w", ImageOf(v), err)
	}
	crashpoint.Reach("release/image_given_up")
	s.Log.InfoContext(ctx, "released", "volume", v.Name, "image", ImageOf(v).String(), "epoch", v.Status.Epoch)
	if err := s.MarkDeleted(ctx, v); err != nil {
		return err
	}
	crashpoint.Reach("release/object_marked")
	return s.RemoveRecord(ctx, v)
}

// resumeRelease goes on with a release that was interrupted. An old etcd may have brought the phase back: the release
// has ended, and somebody else has the image. One that was interrupted finds its own note, or none if it has given the
// image up. A device that has come since releasable asked for it keeps its replica.
func (s *Steps) resumeRelease(ctx context.Context, v *v1alpha1.CacheVolume) error {
	if err := s.ImageNotNewer(ctx, v); err != nil {
		return err
	}
	s.WithoutLeftovers(ctx, v, s.Reports(ctx, v, s.WellReplicas(v)))
	return nil
}

// releasable has the volume's data written back, and returns an error unless all of it is in Ceph and
// nobody uses the volume or its image.
func (s *Steps) releasable(ctx context.Context, v *v1alpha1.CacheVolume) error {
	if v.Status.Phase != v1alpha1.VolumeReady || !v.DeletionTimestamp.IsZero() {
		return fmt.Errorf("volume %s is being made or deleted: %w", v.Name, ErrRefused)
	}
	if v.Status.Move != nil {
		return fmt.Errorf("volume %s is moving to group %s: %w", v.Name, v.Status.Move.Group, ErrBusy)
	}
	if node := v.Status.AttachedNode; node != "" && !v.Status.FlushAttached() {
		return fmt.Errorf("volume %s is attached to node %s; stop the pods that use it, and wait until it is detached: %w",
			v.Name, node, ErrRefused)
	}
	if err := errors.Join(s.withoutSnapshots(ctx, v.Name), s.WithoutClones(ctx, v.Name)); err != nil {
		return err
	}
	if err := s.WriteBackDetached(ctx, v); err != nil {
		return fmt.Errorf("volume %s is written back before it is released: %w", v.Name, err)
	}
	reports, err := s.notSetBack(ctx, v)
	if err != nil {
		return err
	}
	s.WithoutLeftovers(ctx, v, reports) // the client of a leftover device has the image open
	clients, err := s.Images.Clients(ctx, ImageOf(v))
	if err != nil {
		return fmt.Errorf("find who has image %s open: %w", ImageOf(v), err)
	}
	fenced := func(client string) bool { return authority.IsFenced(v, client) }
	if clients = slices.DeleteFunc(clients, fenced); len(clients) > 0 {
		return fmt.Errorf("image %s is open in, or locked by, Ceph client %s; find and end it (`rbd status`, `rbd lock ls`): %w",
			ImageOf(v), strings.Join(clients, ", "), ErrRefused)
	}
	// The volume may have been written back meanwhile, and csi-node writes the status, too.
	return s.again(ctx, v)
}

// withoutSnapshots refuses a volume that has snapshots: without it nobody could use them.
func (s *Steps) withoutSnapshots(ctx context.Context, volume string) error {
	all := &v1alpha1.CacheSnapshotList{}
	if err := s.Live.List(ctx, all); err != nil {
		return fmt.Errorf("look for snapshots of volume %s: %w", volume, err)
	}
	var names []string
	for i := range all.Items {
		if all.Items[i].Spec.Volume == volume {
			names = append(names, all.Items[i].Name)
		}
	}
	return refuseSnapshots(volume, names)
}

// refuseSnapshots returns why a volume with these snapshots in its image cannot go, nil without any.
func refuseSnapshots(volume string, names []string) error {
	if len(names) == 0 {
		return nil
	}
	return fmt.Errorf("volume %s has snapshots in its image: first delete the VolumeSnapshots whose contents have the handles %s: %w",
		volume, strings.Join(names, ", "), ErrRefused)
}

// ReportRelease records why a volume could not be released yet. Once nobody wants it released, it
// removes what was recorded.
func (l *Locked) ReportRelease(ctx context.Context, id, reason, message string) error {
	_, err := under(l, id, releaseReport, func() (struct{}, error) {
		v, err := l.steps.Volume(ctx, id)
		if err != nil {
			return struct{}{}, err
		}
		if !setReleased(v, reason, message) {
			return struct{}{}, nil
		}
		return struct{}{}, l.steps.UpdateStatus(ctx, v, "it is not released yet")
	})
	return err
}

func setReleased(v *v1alpha1.CacheVolume, reason, message string) (changed bool) {
	if !v.BeingReleased() {
		return meta.RemoveStatusCondition(&v.Status.Conditions, v1alpha1.ConditionReleased)
	}
	return meta.SetStatusCondition(&v.Status.Conditions, metav1.Condition{
		Type: v1alpha1.ConditionReleased, Status: metav1.ConditionFalse, Reason: reason, Message: message, ObservedGeneration: v.Generation,
	})
}
