package csi

import (
	"context"
	"errors"
	"fmt"

	"k8s.io/apimachinery/pkg/api/meta"

	"github.com/escache/escache-csi/api/v1alpha1"
	"github.com/escache/escache-csi/internal/controller/csi/requests"
	"github.com/escache/escache-csi/internal/controller/csi/storageclass"
	"github.com/escache/escache-csi/internal/controller/volumes"
	"github.com/escache/escache-csi/internal/crashpoint"
)

// modify records how the volume's cache is to work from now on. It asks no host: package modification
// takes the change to the node that has the volume, and the next attachment begins with it. So the
// call also succeeds while a host is down. A change of the cache's size always waits for an attachment
// that finds all data in Ceph (volumes.Steps.LayAnew); room for it is kept from now on.
//
// https://github.com/container-storage-interface/spec/blob/v1.13.0/spec.md#controllermodifyvolume
func (s *service) modify(ctx context.Context, id string, attributes map[string]string) error {
	v, err := s.Volume(ctx, id)
	if err != nil {
		return err
	}
	if err := volumes.Usable(v); err != nil {
		return err
	}
	now := changeableOf(v)
	want, err := requests.ChangeParameters(now, attributes)
	if err != nil {
		return fmt.Errorf("volume %s: %w", id, err)
	}
	cacheBytes := want.Cache.For(v.Spec.SizeBytes)
	if want.Mode == now.Mode && want.Options == now.Options && cacheBytes == v.Spec.FinalCacheBytes() {
		return notRefused(v)
	}
	// Whatever is written in the end, the book then counts what is on record.
	defer func() { s.Book.Observe(v) }()
	changed := v.DeepCopy()
	if err := s.wantCache(changed, cacheBytes); err != nil {
		return err
	}
	changed.Spec.CacheMode, changed.Spec.CacheOptions = want.Mode, want.Options
	changed.Spec.Modifications++
	if err := s.Cached.Update(ctx, changed); err != nil {
		return fmt.Errorf("record the change of volume %s: %w", id, err)
	}
	v = changed
	if err := errors.Join(volumes.HasOrder(v, want.Options.WriteBackOrder), volumes.HasCache(v, cacheBytes)); err != nil {
		return err
	}
	crashpoint.Reach("modify_volume/recorded")
	return nil
}

// wantCache puts the size into the record that the cache is to get, if hosts of the group have room for
// it. If not, the error is ErrInvalid, upon which external-resizer tries again from time to time, and lets the
// claim have another class meanwhile. After ErrNoRoom it would insist on this one: it takes that for a change
// that may be under way. A change that is taken back stays on record as a wish for the size that the cache has: an attachment
// that has begun to make the change may have removed one replica already, and not the other.
func (s *service) wantCache(v *v1alpha1.CacheVolume, cacheBytes int64) error {
	if cacheBytes == v.Spec.FinalCacheBytes() {
		return nil
	}
	if cacheBytes > v.Spec.CacheBytes {
		if err := s.Book.Grow(v, cacheBytes); err != nil {
			return fmt.Errorf("volume %s keeps its cache of %s, because its group has no room for one of %s: %s: %w",
				v.Name, v1alpha1.HumanBytes(v.Spec.CacheBytes), v1alpha1.HumanBytes(cacheBytes), err.Error(), volumes.ErrInvalid)
		}
	}
	v.Spec.WantedCacheBytes = cacheBytes
	return nil
}

// changeableOf returns what a VolumeAttributesClass can change of the volume, as it is now.
func changeableOf(v *v1alpha1.CacheVolume) storageclass.Parameters {
	p := storageclass.WithDefaults()
	p.Engine, p.Mode, p.Options = v.Spec.Engine(), v.Spec.CacheMode, v.Spec.CacheOptions
	p.Cache = storageclass.FixedCache(v.Spec.FinalCacheBytes())
	return p
}

// notRefused returns an error if the volume has these values on record already, and its host did not
// take them.
func notRefused(v *v1alpha1.CacheVolume) error {
	known := meta.FindStatusCondition(v.Status.Conditions, v1alpha1.ConditionModified)
	if !v.ModificationRefused() || known == nil {
		return nil
	}
	return fmt.Errorf("volume %s: %s: %w", v.Name, known.Message, volumes.ErrInvalid)
}

// modified reports whether a volume was changed after it was created. Then it need not be as its
// StorageClass says.
func modified(v *v1alpha1.CacheVolume) bool { return v.Spec.Modifications > 0 }
