// Package orphans finds what nothing points to any more: images without a CacheVolume, and CacheVolumes without a
// PersistentVolume. It only tells. Removing one is an explicit act that names it.
package orphans

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/escache/escache-csi/api/v1alpha1"
)

// Images is what a search needs of Ceph.
type Images interface {
	// List returns the names of a pool's images that begin with prefix.
	List(ctx context.Context, clusterID, pool, prefix string) ([]string, error)
}

// Pool names a pool of a cluster.
type Pool struct{ ClusterID, Pool string }

// Image is an image that no CacheVolume names.
type Image struct {
	Pool

	Image string
}

// String is what names the image when it is to be removed.
func (i Image) String() string { return i.ClusterID + "/" + i.Pool.Pool + "/" + i.Image }

// Volume is a CacheVolume that no PersistentVolume names.
type Volume struct {
	Name  string
	Claim string
	Since time.Time
}

// Found is what a search found, in the order of the names.
type Found struct {
	Images  []Image
	Volumes []Volume
}

// Search says where to look.
type Search struct {
	// Reader reads the API server's objects; for a removal, the API server itself and not a cache.
	Reader client.Reader
	Images Images
	// Prefix begins the names of this Kubernetes cluster's images. Others are not looked at.
	Prefix string
	// Young is how old a CacheVolume has to be before it is missed by a PersistentVolume: its creation may be running.
	Young time.Duration
	Now   func() time.Time
}

// Find looks everywhere. An unreachable cluster does not keep the others from being looked at; the error names it.
func (s Search) Find(ctx context.Context) (Found, error) {
	// Images first: one whose record is written after this list is in neither, and one that is in the list has its record already.
	pools, err := s.pools(ctx)
	if err != nil {
		return Found{}, err
	}
	var failures []error
	images := map[Image]bool{}
	for _, p := range pools {
		names, err := s.Images.List(ctx, p.ClusterID, p.Pool, s.Prefix)
		if err != nil {
			failures = append(failures, fmt.Errorf("list the images of pool %s of cluster %s: %w", p.Pool, p.ClusterID, err))
		}
		for _, name := range names {
			images[Image{Pool: p, Image: name}] = true
		}
	}
	volumes := &v1alpha1.CacheVolumeList{}
	if err := s.Reader.List(ctx, volumes); err != nil {
		return Found{}, errors.Join(append(failures, fmt.Errorf("list volumes: %w", err))...)
	}
	handles, err := s.handles(ctx)
	if err != nil {
		return Found{}, errors.Join(append(failures, err)...)
	}
	var found Found
	for i := range volumes.Items {
		v := &volumes.Items[i]
		delete(images, Image{Pool: Pool{v.Spec.ClusterID, v.Spec.Pool}, Image: v.Spec.Image})
		if !handles[v.Name] && s.Now().Sub(v.CreationTimestamp.Time) >= s.Young {
			found.Volumes = append(found.Volumes, Volume{
				Name: v.Name, Claim: v.Annotations[v1alpha1.AnnotationClaim], Since: v.CreationTimestamp.Time,
			})
		}
	}
	found.Images = slices.SortedFunc(maps.Keys(images), func(a, b Image) int { return strings.Compare(a.String(), b.String()) })
	slices.SortFunc(found.Volumes, func(a, b Volume) int { return strings.Compare(a.Name, b.Name) })
	return found, errors.Join(failures...)
}

// pools are all pools that volumes are in, or StorageClasses name.
func (s Search) pools(ctx context.Context) ([]Pool, error) {
	volumes, classes := &v1alpha1.CacheVolumeList{}, &storagev1.StorageClassList{}
	if err := s.Reader.List(ctx, volumes); err != nil {
		return nil, fmt.Errorf("list volumes: %w", err)
	}
	if err := s.Reader.List(ctx, classes); err != nil {
		return nil, fmt.Errorf("list StorageClasses: %w", err)
	}
	set := map[Pool]bool{}
	for i := range volumes.Items {
		set[Pool{volumes.Items[i].Spec.ClusterID, volumes.Items[i].Spec.Pool}] = true
	}
	for i := range classes.Items {
		p := Pool{classes.Items[i].Parameters["clusterID"], classes.Items[i].Parameters["pool"]}
		if classes.Items[i].Provisioner == v1alpha1.DriverName && p.ClusterID != "" && p.Pool != "" {
			set[p] = true
		}
	}
	return slices.SortedFunc(maps.Keys(set), func(a, b Pool) int {
		return strings.Compare(a.ClusterID+"/"+a.Pool, b.ClusterID+"/"+b.Pool)
	}), nil
}

func (s Search) handles(ctx context.Context) (map[string]bool, error) {
	all := &corev1.PersistentVolumeList{}
	if err := s.Reader.List(ctx, all); err != nil {
		return nil, fmt.Errorf("list PersistentVolumes: %w", err)
	}
	out := map[string]bool{}
	for i := range all.Items {
		if c := all.Items[i].Spec.CSI; c != nil && c.Driver == v1alpha1.DriverName {
			out[c.VolumeHandle] = true
		}
	}
	return out, nil
}
