// Package orphans finds images without a record, and CacheVolumes and ReadOnlyVolumes without a
// PersistentVolume.
// It removes one only if it is named.
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
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/escache/escache-csi/api/v1alpha1"
)

// Images lists the images of a pool.
type Images interface {
	// List returns the names of a pool's images that begin with prefix.
	List(ctx context.Context, clusterID, pool, prefix string) ([]string, error)
	// MarkOf returns what an image's metadata says; the zero Mark if it is not there any more.
	MarkOf(ctx context.Context, clusterID, pool, image string) (Mark, error)
}

// Pool names a pool of a cluster.
type Pool struct{ ClusterID, Pool string }

// Image is an image that neither a CacheVolume nor a ReadOnlyVolume names.
type Image struct {
	Pool

	Image string
}

// String returns CLUSTERID/POOL/IMAGE, the name by which the image can be removed.
func (i Image) String() string { return i.ClusterID + "/" + i.Pool.Pool + "/" + i.Image }

// Volume is a CacheVolume or ReadOnlyVolume that no PersistentVolume names.
type Volume struct {
	Name string
	// Claim is the claim that the volume was created for. It is of the past: no PersistentVolume
	// names the volume now.
	Claim string
	Since time.Time
	// Releasing: it is being released, so that nothing has to be done about it.
	Releasing bool
	// ReadOnly: it is a ReadOnlyVolume. No node has it.
	ReadOnly bool
}

// State says in a few words what can be done with the volume.
func (v Volume) State() string {
	switch {
	case v.ReadOnly:
		return "read-only, can be removed"
	case v.Releasing:
		return "being released"
	}
	return "can be released"
}

// Found is the result of a search, sorted by name.
type Found struct {
	// Images are marked as this Kubernetes cluster's.
	Images []Lost
	// Unmarked are images without a mark. An older version made them, perhaps for another
	// Kubernetes cluster with the same prefix.
	Unmarked []Lost
	// Foreign are marked as another Kubernetes cluster's, and Released are nobody's. They are no
	// orphans.
	Foreign  []Image
	Released []Image
	Volumes  []Volume
	// Kept are images of deleted volumes that stay for their snapshots. They are no orphans.
	Kept []Kept
	// Trashed are images that somebody has moved to the trash. They are no orphans.
	Trashed []Trashed
}

// Kept is the image of a deleted volume. It goes with the last snapshot.
type Kept struct {
	Image

	Volume    string
	Snapshots []string
}

// State says why the image is still there.
func (k Kept) State() string {
	snapshots := "snapshots"
	if len(k.Snapshots) == 1 {
		snapshots = "snapshot"
	}
	return fmt.Sprintf("volume %s is not on record any more, and image %s stays for its %s %s",
		k.Volume, k.Image, snapshots, strings.Join(k.Snapshots, ", "))
}

// Search looks for orphans.
type Search struct {
	// Reader reads Kubernetes objects. Before a removal it must read from the API server itself and
	// not from a cache.
	Reader client.Reader
	Images Images
	// Trash may be nil: then nobody looks into it.
	Trash Trash
	// Kubernetes is the identity of this Kubernetes cluster.
	Kubernetes string
	// Prefix begins the names of this Kubernetes cluster's images. The search ignores other images.
	Prefix string
	// Young is the age below which a record without a PersistentVolume is no orphan: its creation may
	// still be running.
	Young time.Duration
	Now   func() time.Time
}

// ErrIncomplete means that some pools could not be searched. What was found in the others is true.
var ErrIncomplete = errors.New("the search for orphans is incomplete")

// Find searches all pools. If a Ceph cluster does not answer or is not configured, Find searches
// the others, and the error is ErrIncomplete and names it.
func (s Search) Find(ctx context.Context) (Found, error) {
	// Images first. A record is written before its image is made: so an image in this list has its
	// record already, and an image that is made later is not in it.
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
	inTrash, unread := s.trashed(ctx, pools)
	failures = append(failures, unread...)
	// Snapshots before volumes, so that the volume of each snapshot was there before.
	snapshots, volumes := &v1alpha1.CacheSnapshotList{}, &v1alpha1.CacheVolumeList{}
	if err := s.Reader.List(ctx, snapshots); err != nil {
		return Found{}, errors.Join(append(failures, fmt.Errorf("list snapshots: %w", err))...)
	}
	if err := s.Reader.List(ctx, volumes); err != nil {
		return Found{}, errors.Join(append(failures, fmt.Errorf("list volumes: %w", err))...)
	}
	readOnly, err := s.readOnly(ctx)
	if err != nil {
		return Found{}, errors.Join(append(failures, err)...)
	}
	handles, err := s.handles(ctx)
	if err != nil {
		return Found{}, errors.Join(append(failures, err)...)
	}
	isOld := func(created metav1.Time) bool { return s.Now().Sub(created.Time) >= s.Young }
	found := Found{Kept: keptOf(snapshots.Items, volumes.Items), Trashed: inTrash}
	for _, k := range found.Kept {
		delete(images, k.Image)
	}
	for i := range volumes.Items {
		v := &volumes.Items[i]
		delete(images, imageOf(v))
		if !handles[v.Name] && isOld(v.CreationTimestamp) {
			found.Volumes = append(found.Volumes, Volume{
				Name: v.Name, Claim: v.Annotations[v1alpha1.AnnotationClaim], Since: v.CreationTimestamp.Time, Releasing: v.Spec.Release,
			})
		}
	}
	for i := range readOnly {
		v := &readOnly[i]
		for _, c := range v.Status.Copies {
			delete(images, Image{Pool: Pool{v.Spec.ClusterID, v.Spec.Pool}, Image: v.ImageOn(c.Node)})
		}
		// A node that has it has to lose it first.
		if !handles[v.Name] && len(v.Status.Copies) == 0 && isOld(v.CreationTimestamp) {
			found.Volumes = append(found.Volumes, Volume{
				Name: v.Name, Claim: v.Annotations[v1alpha1.AnnotationClaim], Since: v.CreationTimestamp.Time, ReadOnly: true,
			})
		}
	}
	alone := slices.SortedFunc(maps.Keys(images), func(a, b Image) int { return strings.Compare(a.String(), b.String()) })
	if err := s.divide(ctx, alone, &found); err != nil {
		failures = append(failures, err)
	}
	slices.SortFunc(found.Volumes, func(a, b Volume) int { return strings.Compare(a.Name, b.Name) })
	if len(failures) > 0 {
		return found, fmt.Errorf("%w: %w", ErrIncomplete, errors.Join(failures...))
	}
	return found, nil
}

// readOnly returns the read-only volumes. Before the chart's CRDs are applied there are none.
func (s Search) readOnly(ctx context.Context) ([]v1alpha1.ReadOnlyVolume, error) {
	all := &v1alpha1.ReadOnlyVolumeList{}
	if err := s.Reader.List(ctx, all); err != nil && !meta.IsNoMatchError(err) && !apierrors.IsNotFound(err) {
		return nil, fmt.Errorf("list read-only volumes: %w", err)
	}
	return all.Items, nil
}

func imageOf(v *v1alpha1.CacheVolume) Image {
	return Image{Pool: Pool{v.Spec.ClusterID, v.Spec.Pool}, Image: v.Spec.Image}
}

// keptOf returns the images that have snapshots on record, and no volume.
func keptOf(snapshots []v1alpha1.CacheSnapshot, volumes []v1alpha1.CacheVolume) []Kept {
	living := map[Image]bool{}
	for i := range volumes {
		living[imageOf(&volumes[i])] = true
	}
	kept := map[Image]Kept{}
	for i := range snapshots {
		spec := &snapshots[i].Spec
		image := Image{Pool: Pool{spec.ClusterID, spec.Pool}, Image: spec.Image}
		if !living[image] {
			kept[image] = Kept{Image: image, Volume: spec.Volume, Snapshots: append(kept[image].Snapshots, snapshots[i].Name)}
		}
	}
	for _, k := range kept {
		slices.Sort(k.Snapshots)
	}
	return slices.SortedFunc(maps.Values(kept), func(a, b Kept) int { return strings.Compare(a.String(), b.String()) })
}

// pools returns all pools that hold volumes, or that a StorageClass names.
func (s Search) pools(ctx context.Context) ([]Pool, error) {
	volumes, classes := &v1alpha1.CacheVolumeList{}, &storagev1.StorageClassList{}
	if err := s.Reader.List(ctx, volumes); err != nil {
		return nil, fmt.Errorf("list volumes: %w", err)
	}
	if err := s.Reader.List(ctx, classes); err != nil {
		return nil, fmt.Errorf("list StorageClasses: %w", err)
	}
	readOnly, err := s.readOnly(ctx)
	if err != nil {
		return nil, err
	}
	set := map[Pool]bool{}
	for i := range volumes.Items {
		set[Pool{volumes.Items[i].Spec.ClusterID, volumes.Items[i].Spec.Pool}] = true
	}
	for i := range readOnly {
		set[Pool{readOnly[i].Spec.ClusterID, readOnly[i].Spec.Pool}] = true
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
