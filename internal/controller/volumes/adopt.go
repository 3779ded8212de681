package volumes

import (
	"context"
	"errors"
	"fmt"
	"strings"

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/escache/escache-csi/api/v1alpha1"
	"github.com/escache/escache-csi/internal/crashpoint"
)

// Adoption asks for a volume of an image that exists.
type Adoption struct {
	ImageRef

	// Volume is the id of the volume, and Request the UID of what asks for it: each request has a
	// volume of its own.
	Volume  string
	Request string
	Claim   string // NAMESPACE/NAME, or ""
	// Groups are the allowed NodeGroups; nil allows all.
	Groups  []string
	Engine  v1alpha1.CacheEngine
	Mode    v1alpha1.CacheMode
	Options v1alpha1.CacheOptions
	// Cache returns the size of the cache for a volume's size, both in bytes.
	Cache         func(sizeBytes int64) int64
	FormatIfBlank bool
	// DryRun: only check. The volume that is returned exists nowhere then, and has no place.
	DryRun bool
}

// Adopt makes a volume of an image that exists. It checks first that the image is fit and free, and
// copies nothing. Repeated after a crash, it goes on where it was. ErrRefused and ErrNotFound mean
// that nothing was changed.
func (l *Locked) Adopt(ctx context.Context, a Adoption) (*v1alpha1.CacheVolume, error) {
	return under(l, a.Volume, "adoption", func() (*v1alpha1.CacheVolume, error) { return l.steps.adopt(ctx, a) })
}

// Withdraw takes an adoption back that was not finished: the mark goes off the image, and the record goes.
// Of the rebuild of a lost record, only the record goes. A volume that is gone, was asked for by another
// request, or has its image is left alone, which is success.
func (l *Locked) Withdraw(ctx context.Context, volume, request string) error {
	_, err := under(l, volume, "withdrawal of an adoption", func() (struct{}, error) {
		v, err := l.steps.Volume(ctx, volume)
		switch {
		case errors.Is(err, ErrNotFound):
			return struct{}{}, nil
		case err != nil:
			return struct{}{}, err
		case v.Spec.Adoption == nil || v.Spec.Adoption.Request != request || v.Status.Phase != "":
			return struct{}{}, nil
		case v.Spec.Adoption.Rebuilt:
			return struct{}{}, l.steps.withdrawRebuild(ctx, v)
		}
		return struct{}{}, l.steps.undoAdoption(ctx, v)
	})
	return err
}

func (s *Steps) adopt(ctx context.Context, a Adoption) (*v1alpha1.CacheVolume, error) {
	v, err := s.Volume(ctx, a.Volume)
	switch {
	case errors.Is(err, ErrNotFound):
		v = nil
	case err != nil:
		return nil, err
	case v.Spec.Adoption == nil || v.Spec.Adoption.Request != a.Request || v.Spec.Adoption.Rebuilt:
		return nil, fmt.Errorf("a volume %s exists already: %w", a.Volume, ErrRefused)
	case v.Status.Phase != "":
		return v, nil
	}
	if err := s.unclaimed(ctx, a); err != nil {
		return nil, err
	}
	seen, err := s.Images.Inspect(ctx, a.ImageRef, a.Volume)
	if err != nil {
		return nil, s.forgetAdoption(ctx, v, fmt.Errorf("look at image %s: %w", a.ImageRef, err))
	}
	if err := FitsEngine(a.Engine, seen.SizeBytes); err != nil {
		seen.Refusals = append(seen.Refusals, fmt.Sprintf("it has %d bytes, and %v", seen.SizeBytes, err))
	}
	if len(seen.Refusals) > 0 {
		refused := fmt.Errorf("image %s cannot be adopted: %s: %w", a.ImageRef, strings.Join(seen.Refusals, "; and "), ErrRefused)
		return nil, s.forgetAdoption(ctx, v, refused)
	}
	if v == nil {
		if v = newAdopted(a, seen); a.DryRun {
			return v, nil
		}
		if err := s.placeAdopted(ctx, a, v); err != nil {
			return nil, err
		}
		if err := errors.Join(HasEngine(v, a.Engine), HasOrder(v, a.Options.WriteBackOrder)); err != nil {
			return nil, s.forgetAdoption(ctx, v, err)
		}
	}
	s.Book.Observe(v)
	epoch, _, err := s.formerEpoch(ctx, v, seen.Released)
	if err != nil {
		return nil, err
	}
	return v, s.takeImage(ctx, v, epoch)
}

// formerEpoch returns the epoch of the volume that gave the image up. An earlier call may have marked the
// image for v: then the mark's note has the epoch, and what was left of the former volume is gone.
func (s *Steps) formerEpoch(ctx context.Context, v *v1alpha1.CacheVolume, released Note) (epoch int64, marked bool, err error) {
	note, err := s.Images.Noted(ctx, ImageOf(v))
	if err != nil {
		return 0, false, fmt.Errorf("read the metadata of image %s: %w", ImageOf(v), err)
	}
	if note.Volume == v.Name {
		return note.Epoch, true, nil
	}
	return released.Epoch, false, nil
}

// newAdopted returns the record, without a place.
func newAdopted(a Adoption, seen Inspection) *v1alpha1.CacheVolume {
	v := &v1alpha1.CacheVolume{
		ObjectMeta: metav1.ObjectMeta{Name: a.Volume, Finalizers: []string{v1alpha1.Finalizer}},
		Spec: v1alpha1.CacheVolumeSpec{
			ClusterID: a.ClusterID, Pool: a.Pool, DataPool: seen.DataPool, Image: a.Image, SizeBytes: seen.SizeBytes,
			CacheBytes: a.Cache(seen.SizeBytes), CacheEngine: a.Engine.Recorded(), CacheMode: a.Mode, CacheOptions: a.Options,
			Layout: &seen.Layout, LinkGeneration: 1,
			Adoption: &v1alpha1.Adoption{Request: a.Request, FormatIfBlank: a.FormatIfBlank},
		},
	}
	if a.Claim != "" {
		v.Annotations = map[string]string{v1alpha1.AnnotationClaim: a.Claim}
	}
	return v
}

func (s *Steps) placeAdopted(ctx context.Context, a Adoption, v *v1alpha1.CacheVolume) error {
	place, err := s.Book.Reserve(v.Name, v.Spec.CacheBytes, a.Engine, a.Groups)
	if err != nil {
		return fmt.Errorf("place volume %s: %w", v.Name, err)
	}
	if err := s.KeepGroup(ctx, v.Name, place.Group); err != nil {
		return err
	}
	v.Spec.Group, v.Spec.Replicas, v.Spec.Port, v.Spec.Minor = place.Group, []string{place.Primary, place.Partner}, place.Port, place.Minor
	if err := s.Cached.Create(ctx, v); err != nil {
		// The place stays taken until the record appears or this process ends: perhaps it was written.
		return fmt.Errorf("write the record of volume %s: %w", v.Name, err)
	}
	crashpoint.Reach("adopt/object_written")
	return nil
}

// takeImage marks the image and makes the volume ready. The mark decides between two who want the
// same image.
func (s *Steps) takeImage(ctx context.Context, v *v1alpha1.CacheVolume, formerEpoch int64) error {
	v.Status.Phase, v.Status.Authority = v1alpha1.VolumeReady, v1alpha1.AuthorityCeph
	if v.Status.Epoch = formerEpoch; formerEpoch > 0 {
		// Hosts may know attachments of the former volume. What they still have of it is laid again.
		v.Status.Outdated = v.Spec.Replicas
	}
	id, err := s.Images.Adopt(ctx, ImageOf(v), s.NewNote(v))
	if err != nil {
		return s.forgetAdoption(ctx, v, fmt.Errorf("mark image %s: %w", ImageOf(v), err))
	}
	crashpoint.Reach("adopt/image_marked")
	v.Status.ImageID = id
	v.Status.Summary.Size, v.Status.Summary.Cache = v1alpha1.HumanBytes(v.Spec.SizeBytes), v1alpha1.HumanBytes(v.Spec.CacheBytes)
	meta.SetStatusCondition(&v.Status.Conditions, metav1.Condition{
		Type: v1alpha1.ConditionReady, Status: metav1.ConditionTrue, Reason: "ImageAdopted", Message: "the image is there",
		ObservedGeneration: v.Generation,
	})
	if err := s.UpdateStatus(ctx, v, "its image is adopted"); err != nil {
		return err
	}
	crashpoint.Reach("adopt/ready_written")
	s.Log.InfoContext(ctx, "adopted", "volume", v.Name, "image", ImageOf(v).String(), "epoch", v.Status.Epoch)
	return nil
}

// forgetAdoption removes what an adoption that was refused for good has begun, and returns the reason. As
// long as something is left, the error is none that ends the adoption.
func (s *Steps) forgetAdoption(ctx context.Context, v *v1alpha1.CacheVolume, cause error) error {
	if v == nil || !errors.Is(cause, ErrRefused) && !errors.Is(cause, ErrNotFound) {
		return cause
	}
	if err := s.undoAdoption(ctx, v); err != nil {
		return fmt.Errorf("%w: %s; and what was begun could not be taken back: %s", ErrUnavailable, cause.Error(), err.Error())
	}
	return cause
}

// undoAdoption takes the mark off the image, if that is v's, and then removes the record. The image is
// then as one that was released, and has the epoch of the former volume.
func (s *Steps) undoAdoption(ctx context.Context, v *v1alpha1.CacheVolume) error {
	epoch, marked, err := s.formerEpoch(ctx, v, Note{})
	if marked {
		note := s.NewNote(v)
		note.Epoch = epoch
		err = s.Images.Release(ctx, ImageOf(v), note)
	}
	if err != nil && !errors.Is(err, ErrNotFound) {
		return err
	}
	crashpoint.Reach("adopt/mark_taken_back")
	if err := s.MarkDeleted(ctx, v); err != nil {
		return err
	}
	return s.RemoveRecord(ctx, v)
}

// adoptPage bounds the memory needed to read all volumes.
const adoptPage = 500

// unclaimed refuses an image that another volume has, or of which a host still has a replica.
func (s *Steps) unclaimed(ctx context.Context, a Adoption) error {
	all := &v1alpha1.CacheVolumeList{}
	for {
		if err := s.Live.List(ctx, all, client.Limit(adoptPage), client.Continue(all.Continue)); err != nil {
			return fmt.Errorf("list volumes: %w", err)
		}
		for i := range all.Items {
			if v := &all.Items[i]; v.Name != a.Volume && ImageOf(v) == a.ImageRef {
				return fmt.Errorf("image %s is adopted already, or was made here: volume %s has it: %w", a.ImageRef, v.Name, ErrRefused)
			}
		}
		if all.Continue == "" {
			break
		}
	}
	groups := &v1alpha1.NodeGroupList{}
	if err := s.Live.List(ctx, groups); err != nil {
		return fmt.Errorf("list groups: %w", err)
	}
	for i := range groups.Items {
		for _, r := range groups.Items[i].Status.StaleReplicas {
			if r.Pool == a.Pool && r.Image == a.Image {
				return fmt.Errorf("node %s of group %s still has a replica of image %s, of volume %s; it is removed when the "+
					"host is back: %w",
					r.Node, groups.Items[i].Name, a.ImageRef, r.Volume, ErrRefused)
			}
		}
	}
	return nil
}
