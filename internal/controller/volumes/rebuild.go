package volumes

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"k8s.io/apimachinery/pkg/api/equality"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/escache/escache-csi/api/v1alpha1"
	"github.com/escache/escache-csi/internal/authority"
	"github.com/escache/escache-csi/internal/crashpoint"
)

// Rebuild is a record that was lost and is to be re-created, or that was set back and is to be brought up to
// date. Package rebuild decides what is in it.
type Rebuild struct {
	// Record has name, annotations, spec and status. If its phase is Conflict, the image keeps its mark, and
	// Why says what differs.
	Record *v1alpha1.CacheVolume
	Why    string
	// Note is what the image said, and Seen the newest attachment that image and hosts know.
	Note Note
	Seen int64
	// Left are Ceph clients of the lost cluster that hold the image's lock and do not have it open. They are
	// fenced, because nobody knows whether they are dead.
	Left []string
	// From is another Kubernetes cluster whose mark the image may have, or "".
	From string
}

// Rebuild writes the record of a volume again, and marks its image as this Kubernetes cluster's. It
// touches no replica. Repeated after a crash, it goes on where it was. Until it ends, the volume cannot be
// attached. A volume that is recorded, other than by an unfinished rebuild or by a record that was set back, is
// ErrRefused.
func (l *Locked) Rebuild(ctx context.Context, r Rebuild) (*v1alpha1.CacheVolume, error) {
	return under(l, r.Record.Name, "rebuild of the record", func() (*v1alpha1.CacheVolume, error) { return l.steps.rebuild(ctx, r) })
}

func (s *Steps) rebuild(ctx context.Context, r Rebuild) (*v1alpha1.CacheVolume, error) {
	v, err := s.rebuiltRecord(ctx, r)
	if err != nil {
		return nil, err
	}
	proposed := r.Record.Status.DeepCopy()
	v.Status.Authority, v.Status.Epoch, v.Status.Outdated = proposed.Authority, proposed.Epoch, proposed.Outdated
	v.Status.Hosts, v.Status.ImageID = proposed.Hosts, proposed.ImageID
	v.Status.Summary.Size, v.Status.Summary.Cache = v1alpha1.HumanBytes(v.Spec.SizeBytes), v1alpha1.HumanBytes(v.Spec.CacheBytes)
	v.Status.SetDirtyBytes(proposed.DirtyBytes)
	if proposed.Phase == v1alpha1.VolumeConflict {
		meta.SetStatusCondition(&v.Status.Conditions, metav1.Condition{
			Type: v1alpha1.ConditionCopyProven, Status: metav1.ConditionFalse, Reason: "ClaimsDiffer", Message: r.Why,
			ObservedGeneration: v.Generation,
		})
	} else {
		if err := s.fenceLeft(ctx, v, r); err != nil {
			return nil, err
		}
		if err := s.retake(ctx, v, r); err != nil {
			return nil, err
		}
		meta.RemoveStatusCondition(&v.Status.Conditions, v1alpha1.ConditionCopyProven)
		meta.SetStatusCondition(&v.Status.Conditions, metav1.Condition{
			Type: v1alpha1.ConditionReady, Status: metav1.ConditionTrue, Reason: "RecordRebuilt", Message: "the image is there",
			ObservedGeneration: v.Generation,
		})
	}
	meta.RemoveStatusCondition(&v.Status.Conditions, v1alpha1.ConditionRecordBehindDisks)
	v.Status.Phase = proposed.Phase
	if err := s.UpdateStatus(ctx, v, "it is re-created"); err != nil {
		return nil, err
	}
	crashpoint.Reach("rebuild/status_written")
	s.Log.WarnContext(ctx, "rebuilt a record", "volume", v.Name, "image", ImageOf(v).String(), "phase", v.Status.Phase,
		"authority", v.Status.Authority, "epoch", v.Status.Epoch, "outdated", v.Status.Outdated, "from", r.From)
	return v, nil
}

// Unfinished reports whether a record was written by a rebuild that has not ended, or could not decide.
func Unfinished(v *v1alpha1.CacheVolume) bool {
	switch v.Status.Phase { //nolint:exhaustive // all others are of volumes that are there, or go
	case v1alpha1.VolumeConflict:
		return v.DeletionTimestamp.IsZero()
	case "":
		return v.Spec.Adoption != nil && v.Spec.Adoption.Rebuilt && v.DeletionTimestamp.IsZero()
	}
	return false
}

// WasSetBack reports whether the record of a volume knows less than its image, which has this note, and its
// hosts: an older etcd was restored. seen is the newest attachment that one of them knows. If the image is another
// volume's now, they do not speak of this one.
func WasSetBack(v *v1alpha1.CacheVolume, note Note, seen int64) bool {
	return v.Status.Phase == v1alpha1.VolumeReady && v.DeletionTimestamp.IsZero() && !note.OfAnother(ImageOf(v), v.Name) &&
		(v.Status.Epoch < seen || v.Spec.LinkGeneration < note.Spec.LinkGeneration)
}

// rebuiltRecord writes the record without a status, or finds the one that an earlier call wrote.
func (s *Steps) rebuiltRecord(ctx context.Context, r Rebuild) (*v1alpha1.CacheVolume, error) {
	v, err := s.Volume(ctx, r.Record.Name)
	switch {
	case errors.Is(err, ErrNotFound):
		v = r.Record.DeepCopy()
		v.Status, v.Finalizers = v1alpha1.CacheVolumeStatus{}, []string{v1alpha1.Finalizer}
		s.Book.Observe(v)
		if err := s.KeepGroup(ctx, v.Name, v.Spec.Group); err != nil {
			return nil, err
		}
		if err := s.Cached.Create(ctx, v); err != nil {
			return nil, fmt.Errorf("write the record of volume %s: %w", v.Name, err)
		}
		crashpoint.Reach("rebuild/object_written")
	case err != nil:
		return nil, err
	case WasSetBack(v, r.Note, r.Seen):
		if err := s.stopSetBack(ctx, v, r); err != nil {
			return nil, err
		}
	case !Unfinished(v):
		return nil, fmt.Errorf("a volume %s is recorded already: %w", v.Name, ErrRefused)
	}
	if err := s.changeSpec(ctx, v, r.Record.Spec); err != nil {
		return nil, err
	}
	s.Book.Observe(v)
	return v, nil
}

// stopSetBack takes the volume out of use before anything else in its record changes. What the record says
// of an attachment, a repair or a comparison is not true any more. Whom it says to be fenced stays so.
func (s *Steps) stopSetBack(ctx context.Context, v *v1alpha1.CacheVolume, r Rebuild) error {
	if other := elsewhere(v.Spec, r.Record.Spec); other != "" || v.BeingReleased() || v.ToMove() {
		return fmt.Errorf("the record of volume %s was set back, and cannot become what the volume is now: %s; docs/restore-etcd.md says "+
			"what to do: %w", v.Name, cmp.Or(other, "by the record it is being moved or released"), ErrRefused)
	}
	v.Status.AttachedNode, v.Status.ClientAddress, v.Status.FlushEpoch = "", "", 0
	v.Status.WriteThrough, v.Status.Uncached, v.Status.Repair, v.Status.Comparison = nil, nil, nil, nil
	v.Status.Phase = v1alpha1.VolumeConflict
	meta.SetStatusCondition(&v.Status.Conditions, metav1.Condition{
		Type: v1alpha1.ConditionCopyProven, Status: metav1.ConditionFalse, Reason: "RecordWasSetBack",
		Message:            "the record is being brought up to date; if this stays, ask again: kubectl escache adopt --all",
		ObservedGeneration: v.Generation,
	})
	if err := s.UpdateStatus(ctx, v, "it was set back"); err != nil {
		return err
	}
	crashpoint.Reach("rebuild/stopped")
	return nil
}

// elsewhere says which part of a set-back spec no update can change to what the volume has now, or "".
func elsewhere(is, now v1alpha1.CacheVolumeSpec) string {
	switch {
	case is.Group != now.Group:
		return fmt.Sprintf("it says group %s, and the volume is in group %s", is.Group, now.Group)
	case is.Port != now.Port || is.Minor != now.Minor:
		return fmt.Sprintf("it says port %d and minor %d, and the volume has %d and %d", is.Port, is.Minor, now.Port, now.Minor)
	case is.CacheBytes != now.CacheBytes:
		return fmt.Sprintf("it says a cache of %d bytes, and the volume has one of %d", is.CacheBytes, now.CacheBytes)
	}
	return ""
}

// changeSpec enters what may have changed since the record was written.
func (s *Steps) changeSpec(ctx context.Context, v *v1alpha1.CacheVolume, now v1alpha1.CacheVolumeSpec) error {
	was := v.Spec.DeepCopy()
	v.Spec.Replicas, v.Spec.SizeBytes = now.Replicas, max(v.Spec.SizeBytes, now.SizeBytes)
	v.Spec.LinkGeneration = max(v.Spec.LinkGeneration, now.LinkGeneration)
	if now.Adoption != nil && !now.Adoption.FormatIfBlank { // the record may be from before the filesystem was made
		if v.Spec.Adoption == nil {
			v.Spec.Adoption = &v1alpha1.Adoption{}
		}
		v.Spec.Adoption.FormatIfBlank = false
	}
	if equality.Semantic.DeepEqual(was, &v.Spec) {
		return nil
	}
	if err := s.Cached.Update(ctx, v); err != nil {
		return fmt.Errorf("change the record of volume %s: %w", v.Name, err)
	}
	return nil
}

// retake makes the image this Kubernetes cluster's. The epoch of the new note is above all that a former
// csi-controller has given, so that one that still runs finds its own record set back, and attaches
// nothing any more. A client that has come since the image was looked at is one that it still let in.
func (s *Steps) retake(ctx context.Context, v *v1alpha1.CacheVolume, r Rebuild) error {
	note := s.NewNote(v)
	note.Claim, note.PersistentVolume, note.StorageClass, note.Use = r.Note.Claim, r.Note.PersistentVolume, r.Note.StorageClass, r.Note.Use
	note.Seen = &r.Seen
	id, err := s.Images.Retake(ctx, ImageOf(v), r.From, note)
	if err != nil {
		return fmt.Errorf("mark image %s: %w", ImageOf(v), err)
	}
	crashpoint.Reach("rebuild/image_marked")
	if id != v.Status.ImageID {
		return fmt.Errorf("image %s has been replaced by another one: %w", ImageOf(v), ErrRefused)
	}
	clients, err := s.Images.Clients(ctx, ImageOf(v))
	if err != nil {
		return fmt.Errorf("find who has image %s open: %w", ImageOf(v), err)
	}
	clients = slices.DeleteFunc(clients, func(client string) bool { return authority.IsFenced(v, client) })
	if len(clients) > 0 {
		return fmt.Errorf("image %s is open in Ceph client %s: %w", ImageOf(v), strings.Join(clients, ", "), ErrRefused)
	}
	return nil
}

// fenceLeft fences the clients that the lost cluster has left behind. They are on record first, as in any
// fence. The host that had the volume can prove later that its map is gone.
func (s *Steps) fenceLeft(ctx context.Context, v *v1alpha1.CacheVolume, r Rebuild) error {
	if len(r.Left) == 0 {
		return nil
	}
	blocked, err := s.Images.Blocklist(ctx, v.Spec.ClusterID)
	if err != nil {
		return fmt.Errorf("read the blocklist: %w", err)
	}
	known := s.addressesOf(ctx, v, r.Note.AttachedNode)
	for _, address := range r.Left {
		if authority.IsFenced(v, address) {
			continue
		}
		owner := authority.ClientOf(r.Note.AttachedNode, address, known...)
		v.Status.Fenced = append(v.Status.Fenced, v1alpha1.FencedClient{
			Node: owner, HostID: v.Status.HostID(owner), EarlierUntil: earlier(blocked, address),
			Address: address, Epoch: r.Seen, Time: s.now(),
		})
	}
	if err := s.UpdateStatus(ctx, v, "clients of the lost cluster are about to be fenced"); err != nil {
		return err
	}
	crashpoint.Reach("rebuild/fence_recorded")
	for _, address := range r.Left {
		s.Log.WarnContext(ctx, "fencing", "volume", v.Name, "client", address, "reason", "it has the image's lock, and its cluster is lost")
		if err := s.Images.Fence(ctx, v.Spec.ClusterID, address, authority.FenceSeconds*time.Second); err != nil {
			return fmt.Errorf("fence client %s of image %s: %w", address, ImageOf(v), err)
		}
	}
	crashpoint.Reach("rebuild/fenced")
	return nil
}

// withdrawRebuild removes a record that a rebuild has only begun. The image keeps its mark and its note:
// its data may be in a cache.
func (s *Steps) withdrawRebuild(ctx context.Context, v *v1alpha1.CacheVolume) error {
	if err := s.MarkDeleted(ctx, v); err != nil {
		return err
	}
	return s.RemoveRecord(ctx, v)
}

// Recorded returns all records, by image, and which of them has each port and minor of a group.
func Recorded(ctx context.Context, live client.Reader) (byImage map[ImageRef]*v1alpha1.CacheVolume, all []v1alpha1.CacheVolume, err error) {
	page := &v1alpha1.CacheVolumeList{}
	byImage = map[ImageRef]*v1alpha1.CacheVolume{}
	for {
		if err := live.List(ctx, page, client.Limit(adoptPage), client.Continue(page.Continue)); err != nil {
			return nil, nil, fmt.Errorf("list volumes: %w", err)
		}
		all = append(all, page.Items...)
		if page.Continue == "" {
			break
		}
	}
	for i := range all {
		byImage[ImageOf(&all[i])] = &all[i]
	}
	return byImage, all, nil
}
