package csi

import (
	"context"
	"errors"
	"fmt"
	"reflect"
	"slices"
	"strings"

	"github.com/container-storage-interface/spec/lib/go/csi"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/escache/escache-csi/api/v1alpha1"
	"github.com/escache/escache-csi/internal/controller/csi/requests"
	"github.com/escache/escache-csi/internal/controller/reservation"
	"github.com/escache/escache-csi/internal/controller/volumes"
	"github.com/escache/escache-csi/internal/crashpoint"
)

// create makes a volume, or finds the one that an earlier call has made. If it fails for good, it leaves
// nothing.
func (s *service) create(ctx context.Context, r requests.Create) (*csi.CreateVolumeResponse, error) {
	response, err := s.makeVolume(ctx, r)
	if err != nil {
		return nil, s.takeBack(ctx, r.ID, err)
	}
	return response, nil
}

// makeVolume writes the record, then makes the image, then records that the image exists. It asks no
// node: creation costs two API writes and one image, and works while a host is down.
//
// One write after the image would not be safe. An image without a record is then either half of this
// call, or all that is left of a volume whose record was lost, perhaps with dirty caches on its hosts;
// taken for new, it would lose them. A call that is not repeated would leave an image that DeleteVolume
// cannot find, for the volume's ID does not name its pool. And the search for orphans, which lists
// images before records, would show each image that is being made. One write before the image leaves
// open whether the image is there, so that every repeated call would have to ask Ceph.
//
// https://github.com/container-storage-interface/spec/blob/v1.13.0/spec.md#createvolume
func (s *service) makeVolume(ctx context.Context, r requests.Create) (*csi.CreateVolumeResponse, error) {
	if r.UncachedFallback && !s.uncachedFallback {
		return nil, fmt.Errorf("uncachedFallback is off in this cluster: set controller.recovery.uncachedFallback in the chart's values, "+
			"or leave the parameter out: %w", volumes.ErrInvalid)
	}
	from, err := s.source(ctx, &r)
	if err != nil {
		return nil, err
	}
	v, isNew, err := s.record(ctx, r)
	if err != nil {
		return nil, err
	}
	if v.Status.Phase != v1alpha1.VolumeReady {
		if err := s.makeImage(ctx, v, r, from, isNew); err != nil {
			err = fmt.Errorf("make image %s: %w", volumes.ImageOf(v), err)
			if isNew {
				err = s.undo(ctx, v, err)
			}
			return nil, err
		}
		crashpoint.Reach("create_volume/image_made")
		if err := s.markReady(ctx, v); err != nil {
			return nil, fmt.Errorf("record that the image of volume %s is there: %w", v.Name, err)
		}
		crashpoint.Reach("create_volume/ready_written")
	}
	out := volumeOf(v)
	out.VolumeContext = r.VolumeContext()
	return &csi.CreateVolumeResponse{Volume: out}, nil
}

// record returns the volume's CacheVolume: the one that an earlier call has written, or a new one
// with a place of its own. The cache of objects may be behind, so it only saves a call; the API
// server decides.
func (s *service) record(ctx context.Context, r requests.Create) (v *v1alpha1.CacheVolume, isNew bool, err error) {
	if s.Cached.Get(ctx, client.ObjectKey{Name: r.ID}, &v1alpha1.CacheVolume{}) == nil {
		if v, err = s.existing(ctx, r); !errors.Is(err, volumes.ErrNotFound) {
			return v, false, err
		}
	}
	if unfit := s.checkFitsPool(ctx, roomOf(r.ClusterID, r.Pool, r.DataPool, r.Overcommit), r.Size.Want); unfit != nil {
		// What exists stays, also if its pool has shrunk since.
		if v, err = s.existing(ctx, r); !errors.Is(err, volumes.ErrNotFound) && ctx.Err() == nil {
			return v, false, err
		}
		return nil, false, fmt.Errorf("volume %s: %w", r.ID, unfit)
	}
	if err := s.notReadOnly(ctx, r.ID); err != nil {
		return nil, false, err
	}
	v, err = s.writeRecord(ctx, r)
	if apierrors.IsAlreadyExists(err) {
		if v, err = s.existing(ctx, r); errors.Is(err, volumes.ErrNotFound) {
			err = fmt.Errorf("volume %s has been removed: %w", r.ID, volumes.ErrBusy)
		}
		return v, false, err
	}
	return v, true, err
}

// existing returns the volume that exists, if it is as requested.
func (s *service) existing(ctx context.Context, r requests.Create) (*v1alpha1.CacheVolume, error) {
	v, err := s.Volume(ctx, r.ID)
	if err != nil {
		return nil, err
	}
	s.Book.Observe(v)
	return v, s.compare(v, r)
}

func (s *service) writeRecord(ctx context.Context, r requests.Create) (*v1alpha1.CacheVolume, error) {
	if err := volumes.FitsEngine(r.Engine, r.Size.Want); err != nil {
		return nil, fmt.Errorf("volume %s: %w", r.ID, err)
	}
	cacheBytes := r.Cache.For(r.Size.Want)
	place, err := s.reserve(r, cacheBytes)
	if err != nil {
		return nil, fmt.Errorf("place volume %s: %w", r.ID, err)
	}
	if err := s.KeepGroup(ctx, r.ID, place.Group); err != nil {
		return nil, err
	}
	v := &v1alpha1.CacheVolume{
		ObjectMeta: metav1.ObjectMeta{Name: r.ID, Finalizers: []string{v1alpha1.Finalizer}},
		Spec: v1alpha1.CacheVolumeSpec{
			ClusterID: r.ClusterID, Pool: r.Pool, DataPool: r.DataPool, Image: s.imagePrefix + r.ID,
			SizeBytes: r.Size.Want, MaxOvercommit: r.Overcommit, CacheBytes: cacheBytes,
			CacheEngine: r.Engine.Recorded(), CacheMode: r.Mode, CacheOptions: r.Options, Layout: r.Layout,
			FromSnapshot: r.Snapshot, FromVolume: r.Volume, UncachedFallback: r.UncachedFallback, LinkGeneration: 1,
			Group: place.Group, Replicas: []string{place.Primary, place.Partner}, Port: place.Port, Minor: place.Minor,
		},
	}
	if r.Claim != "" {
		v.Annotations = map[string]string{v1alpha1.AnnotationClaim: r.Claim}
	}
	crashpoint.Reach("create_volume/placed")
	if err := s.Cached.Create(ctx, v); err != nil {
		// Only an answer proves that nothing was written. Without one the place stays taken until
		// the record appears or, at the latest, until this process ends.
		if volumes.KubernetesAnswered(err) {
			s.Book.Forget(r.ID)
		}
		return nil, fmt.Errorf("write the record of volume %s: %w", r.ID, err)
	}
	s.Book.Observe(v)
	crashpoint.Reach("create_volume/object_written")
	return v, nil
}

func (s *service) reserve(r requests.Create, cacheBytes int64) (reservation.Reservation, error) {
	if r.Groups == nil {
		return s.Book.Reserve(r.ID, cacheBytes, r.Engine, nil)
	}
	var failures []error
	for _, set := range r.Groups {
		place, err := s.Book.Reserve(r.ID, cacheBytes, r.Engine, set)
		if err == nil {
			return place, nil
		}
		failures = append(failures, err)
	}
	return reservation.Reservation{}, errors.Join(failures...)
}

// compare returns an error if an existing volume differs from what is requested now.
func (s *service) compare(v *v1alpha1.CacheVolume, r requests.Create) error {
	if !v.DeletionTimestamp.IsZero() {
		return fmt.Errorf("volume %s is being deleted: %w", v.Name, volumes.ErrBusy)
	}
	if v.Status.Phase == v1alpha1.VolumeReleasing {
		return fmt.Errorf("volume %s is being released: %w", v.Name, volumes.ErrBusy)
	}
	if volumes.Unfinished(v) {
		return fmt.Errorf("the record of volume %s is being re-created: %w", v.Name, volumes.ErrBusy)
	}
	var different []string
	differs := func(what string, is, wanted any) {
		if !reflect.DeepEqual(is, wanted) {
			different = append(different, fmt.Sprintf("%s is %v, not %v", what, is, wanted))
		}
	}
	if !r.Size.Allows(v.Spec.SizeBytes) {
		differs("its size", v.Spec.SizeBytes, r.Size.Want)
	}
	differs("clusterID", v.Spec.ClusterID, r.ClusterID)
	differs("pool", v.Spec.Pool, r.Pool)
	differs("the snapshot it was made of", v.Spec.FromSnapshot, r.Snapshot)
	differs("the volume it is a clone of", v.Spec.FromVolume, r.Volume)
	differs("cacheEngine", v.Spec.Engine(), r.Engine)
	differs("dataPool", v.Spec.DataPool, r.DataPool)
	differs("uncachedFallback", v.Spec.UncachedFallback, r.UncachedFallback)
	if !modified(v) {
		differs("cacheMode", v.Spec.CacheMode, r.Mode)
		differs("its cache's options", v.Spec.CacheOptions, r.Options)
	}
	differs("its image's layout", layoutOf(v.Spec.Layout), layoutOf(r.Layout))
	// An expanded volume keeps the cache that it was made with.
	if v.Spec.SizeBytes == r.Size.Want && !modified(v) {
		differs("cacheSize", v.Spec.CacheBytes, r.Cache.For(r.Size.Want))
	}
	if r.Groups != nil && !contained(r.Groups, v.Spec.Group) {
		different = append(different, fmt.Sprintf("its group is %s, which the request does not allow now", v.Spec.Group))
	}
	if len(different) > 0 {
		return fmt.Errorf("volume %s: %s: %w", v.Name, strings.Join(different, "; "), volumes.ErrDifferent)
	}
	return nil
}

func contained(sets [][]string, group string) bool {
	return slices.ContainsFunc(sets, func(set []string) bool { return slices.Contains(set, group) })
}

func layoutOf(l *v1alpha1.ImageLayout) v1alpha1.ImageLayout {
	if l == nil {
		return v1alpha1.ImageLayout{}
	}
	return *l
}

func (s *service) makeImage(ctx context.Context, v *v1alpha1.CacheVolume, r requests.Create, from *volumes.SnapshotRef, isNew bool) error {
	if v.Spec.FromVolume != r.Volume {
		return fmt.Errorf("the API server has dropped spec.fromVolume: its CRD of CacheVolumes is older than csi-controller; "+
			"apply the chart's CRDs: %w", volumes.ErrRefused)
	}
	if err := volumes.HasEngine(v, r.Engine); err != nil {
		return err
	}
	if v.Spec.UncachedFallback != r.UncachedFallback {
		return fmt.Errorf("the API server has dropped spec.uncachedFallback: its CRD of CacheVolumes is older than csi-controller; "+
			"apply the chart's CRDs: %w", volumes.ErrRefused)
	}
	if !modified(v) {
		if err := volumes.HasOrder(v, r.Options.WriteBackOrder); err != nil {
			return err
		}
	}
	if err := s.Images.EnsurePool(ctx, v.Spec.ClusterID, v.Spec.Pool, r.CreatePool); err != nil {
		return unknown(err)
	}
	crashpoint.Reach("create_volume/pool_checked")
	if v.Spec.FromVolume == "" && v.Spec.FromSnapshot == "" {
		return s.imageFrom(ctx, v, nil, isNew)
	}
	return s.copyImage(ctx, v, from, isNew)
}

// copyImage makes the image of a volume that is a copy of a snapshot or of another volume. Once it is complete
// its metadata say so, and a repeated call leaves it alone.
func (s *service) copyImage(ctx context.Context, v *v1alpha1.CacheVolume, from *volumes.SnapshotRef, isNew bool) (err error) {
	if !isNew {
		if made, err := s.Made(ctx, v); made || err != nil {
			return s.ReportBehind(ctx, v.Name, err)
		}
	}
	switch {
	case v.Spec.FromVolume != "":
		err = s.cloneVolume(ctx, v, isNew)
	case from != nil:
		err = s.imageFrom(ctx, v, from, isNew)
	default:
		err = fmt.Errorf("snapshot %s is gone, and the image is not complete any more: %w", v.Spec.FromSnapshot, volumes.ErrBusy)
	}
	if err != nil {
		return err
	}
	return s.Images.Note(ctx, volumes.ImageOf(v), s.NewNote(v))
}

// imageFrom makes a volume's image: of a snapshot, or empty.
func (s *service) imageFrom(ctx context.Context, v *v1alpha1.CacheVolume, from *volumes.SnapshotRef, isNew bool) error {
	spec := volumes.ImageSpec{
		ImageRef: volumes.ImageOf(v), DataPool: v.Spec.DataPool, SizeBytes: v.Spec.SizeBytes, Layout: v.Spec.Layout,
		Volume: v.Name, Note: s.NewNote(v), From: from,
	}
	spec.Note.Complete = from == nil // a copy is not, before the caller says so
	return unknown(volumes.MakeImage(ctx, s.Images, spec, isNew))
}

// unknown reports a cluster or pool that does not exist as what it is in a request: a wrong
// parameter.
func unknown(err error) error {
	if errors.Is(err, volumes.ErrNotFound) {
		return fmt.Errorf("%w: %w", volumes.ErrInvalid, err)
	}
	return err
}

func (s *service) markReady(ctx context.Context, v *v1alpha1.CacheVolume) error {
	v.Status.Phase = v1alpha1.VolumeReady
	v.Status.Authority = v1alpha1.AuthorityCeph
	v.Status.Summary.Size = v1alpha1.HumanBytes(v.Spec.SizeBytes)
	v.Status.Summary.Cache = v1alpha1.HumanBytes(v.Spec.CacheBytes)
	meta.SetStatusCondition(&v.Status.Conditions, metav1.Condition{
		Type: v1alpha1.ConditionReady, Status: metav1.ConditionTrue, Reason: "ImageCreated",
		Message: "the image is there", ObservedGeneration: v.Generation,
	})
	return s.Cached.Status().Update(ctx, v)
}
