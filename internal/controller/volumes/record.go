package volumes

import (
	"context"
	"fmt"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/validate/content"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/escache/escache-csi/api/v1alpha1"
	"github.com/escache/escache-csi/internal/finalizers"
)

// Volume reads a CacheVolume from the API server itself, because decisions must not be made by an
// old copy.
func (s *Steps) Volume(ctx context.Context, id string) (*v1alpha1.CacheVolume, error) {
	if !IsName(id) {
		return nil, fmt.Errorf("volume %q: %w", id, ErrNotFound)
	}
	v := &v1alpha1.CacheVolume{}
	err := s.Live.Get(ctx, client.ObjectKey{Name: id}, v)
	switch {
	case apierrors.IsNotFound(err):
		return nil, fmt.Errorf("volume %s: %w", id, ErrNotFound)
	case err != nil:
		return nil, fmt.Errorf("read volume %s: %w", id, err)
	}
	return v, nil
}

// IsName reports whether an object of Kubernetes may have this name. For others client-go asks no
// server, and returns an error that says nothing of the object.
func IsName(name string) bool { return name != "" && len(content.IsPathSegmentName(name)) == 0 }

// Group reads a NodeGroup from the cache.
func (s *Steps) Group(ctx context.Context, name string) (*v1alpha1.NodeGroup, error) {
	g := &v1alpha1.NodeGroup{}
	if err := s.Live.Get(ctx, client.ObjectKey{Name: name}, g); err != nil {
		return nil, fmt.Errorf("read group %s: %w", name, err)
	}
	return g, nil
}

// KeepGroup keeps the group in which a volume has just taken a place. The volume's record is written
// afterwards. If that fails, the place is free again.
func (s *Steps) KeepGroup(ctx context.Context, volume, group string) error {
	err := s.Groups.Keep(ctx, group)
	if err == nil {
		return nil
	}
	s.Book.Forget(volume)
	if apierrors.IsNotFound(err) {
		err = fmt.Errorf("group %s has been deleted: %w", group, ErrBusy)
	}
	return fmt.Errorf("place volume %s: %w", volume, err)
}

// UpdateStatus writes a volume's status. It fails if somebody has written the object since it was
// read.
func (s *Steps) UpdateStatus(ctx context.Context, v *v1alpha1.CacheVolume, what string) error {
	v.Status.Summarize()
	if err := s.Cached.Status().Update(ctx, v); err != nil {
		return fmt.Errorf("record of volume %s that %s: %w", v.Name, what, err)
	}
	return nil
}

// MarkDeleted tells Kubernetes to delete the record. The record's finalizer keeps it until
// everything else is gone.
func (s *Steps) MarkDeleted(ctx context.Context, v *v1alpha1.CacheVolume) error {
	if !v.DeletionTimestamp.IsZero() {
		return nil
	}
	unchanged := client.Preconditions{UID: &v.UID, ResourceVersion: &v.ResourceVersion}
	if err := s.Cached.Delete(ctx, v, unchanged); client.IgnoreNotFound(err) != nil {
		return fmt.Errorf("mark volume %s as deleted: %w", v.Name, err)
	}
	return nil
}

// RemoveRecord removes the finalizer, and with it the record. Its fenced clients are on record in the group
// before. A record that is gone is success.
func (s *Steps) RemoveRecord(ctx context.Context, v *v1alpha1.CacheVolume) error {
	if err := s.leaveFences(ctx, v); err != nil {
		return err
	}
	if err := finalizers.Remove(ctx, s.Cached, v); err != nil {
		return fmt.Errorf("remove the record of volume %s: %w", v.Name, err)
	}
	s.Book.Forget(v.Name)
	return nil
}

// ImageOf returns where a volume's image is in Ceph.
func ImageOf(v *v1alpha1.CacheVolume) ImageRef {
	return ImageRef{ClusterID: v.Spec.ClusterID, Pool: v.Spec.Pool, Image: v.Spec.Image}
}

// HasEngine returns ErrRefused if a record that was written just now does not have the cache engine
// that was asked for.
func HasEngine(v *v1alpha1.CacheVolume, asked v1alpha1.CacheEngine) error {
	if v.Spec.Engine().Recorded() == asked.Recorded() {
		return nil
	}
	return fmt.Errorf("the API server has dropped spec.cacheEngine: its CRD of CacheVolumes is older than csi-controller; "+
		"apply the chart's CRDs: %w", ErrRefused)
}

// maxLogBytes is the size of the largest volume that the engine log serves. Volumes are whole MiB.
const maxLogBytes = 16<<40 - 1<<20

// LargestWith returns the size of the largest volume that a cache of the engine serves, at most the given bytes.
func LargestWith(engine v1alpha1.CacheEngine, bytes int64) int64 {
	if engine == v1alpha1.CacheEngineLog {
		return min(bytes, maxLogBytes)
	}
	return bytes
}

// FitsEngine returns ErrOutOfRange if a cache of the engine does not serve a volume of this size. No node could
// have it, and its image does not shrink.
func FitsEngine(engine v1alpha1.CacheEngine, bytes int64) error {
	if LargestWith(engine, bytes) == bytes {
		return nil
	}
	return fmt.Errorf("a volume with cacheEngine %s has less than 16 TiB; make a larger one with cacheEngine %s: %w",
		engine, v1alpha1.CacheEngineWritecache, ErrOutOfRange)
}

// HasCache is HasEngine for the size that the cache has, or is to get.
func HasCache(v *v1alpha1.CacheVolume, asked int64) error {
	if v.Spec.FinalCacheBytes() == asked {
		return nil
	}
	return fmt.Errorf("volume %s: the API server has dropped spec.wantedCacheBytes: its CRD of CacheVolumes is older than "+
		"csi-controller; apply the chart's CRDs: %w", v.Name, ErrRefused)
}

// HasOrder is HasEngine for the order of write-back.
func HasOrder(v *v1alpha1.CacheVolume, asked v1alpha1.WriteBackOrder) error {
	if v.Spec.CacheOptions.WriteBackOrder == asked {
		return nil
	}
	return fmt.Errorf("volume %s: the API server has dropped spec.cacheOptions.writeBackOrder: its CRD of CacheVolumes is older than "+
		"csi-controller; apply the chart's CRDs: %w", v.Name, ErrRefused)
}
