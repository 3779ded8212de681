package orphans

import (
	"context"
	"fmt"
	"slices"

	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/escache/escache-csi/api/v1alpha1"
	"github.com/escache/escache-csi/internal/finalizers"
)

// Removal removes orphans by name. It refuses whatever a search has not found to be an orphan.
type Removal struct {
	// Found is the result of a search that read the API server itself and not a cache.
	Found Found
	// Kube reads from the API server itself, and writes.
	Kube client.Client
	// AllowUnmarked lets images without a mark be removed.
	AllowUnmarked bool
	// AcceptLosses lets images be removed that were used, or of which that is not known.
	AcceptLosses bool
	// DeleteImage moves an image to its pool's trash.
	DeleteImage func(ctx context.Context, image Image) error
}

// Image removes an orphan image. Its name is CLUSTERID/POOL/IMAGE. It refuses images of other
// Kubernetes clusters and, without AllowUnmarked, images that may belong to one. Without AcceptLosses it
// refuses images with whose removal data may be lost: after a restore of etcd, the image may be all that tells of
// a volume whose newest data is in a cache.
func (r Removal) Image(ctx context.Context, name string) error {
	for _, k := range r.Found.Kept {
		if k.String() == name {
			return fmt.Errorf("%s: delete their VolumeSnapshots first", k.State())
		}
	}
	for _, i := range r.Found.Foreign {
		if i.String() == name {
			return fmt.Errorf("image %s belongs to another Kubernetes cluster; it is removed there, or with rbd", name)
		}
	}
	for _, i := range r.Found.Released {
		if i.String() == name {
			return fmt.Errorf("image %s was released, and is not the driver's any more; it is removed with rbd", name)
		}
	}
	for _, i := range r.Found.Unmarked {
		if i.String() == name && !r.AllowUnmarked {
			return fmt.Errorf("image %s has no mark, so it may belong to another Kubernetes cluster whose images have the same prefix; "+
				"make sure that it does not, and add --allow-unmarked", name)
		}
	}
	orphans := slices.Concat(r.Found.Images, r.Found.Unmarked)
	at := slices.IndexFunc(orphans, func(l Lost) bool { return l.String() == name })
	if at < 0 {
		return fmt.Errorf("image %s is not an orphan; run without flags to list the orphans", name)
	}
	if losses := r.losses(orphans[at], at >= len(r.Found.Images)); losses != "" {
		return fmt.Errorf("image %s: %s; `kubectl escache adopt --all` makes the lost record again (docs/restore-etcd.md); "+
			"if nobody needs the volume, add --accept-losses: image and caches are lost then", name, losses)
	}
	if err := r.DeleteImage(ctx, orphans[at].Image); err != nil {
		return fmt.Errorf("remove image %s: %w", name, err)
	}
	return nil
}

// losses says what speaks against the removal of an image. An image without a mark and a note is AllowUnmarked's.
func (r Removal) losses(l Lost, unmarked bool) string {
	if r.AcceptLosses || unmarked && l.Note.Volume == "" && l.Note.Unreadable == "" {
		return ""
	}
	return l.Note.losses()
}

// Volume removes the record of an orphan volume; its image stays. It refuses a volume that is
// attached, may have dirty data, or may have replicas on hosts: without the record nobody would
// know of them. A read-only volume that is not attached has no image.
func (r Removal) Volume(ctx context.Context, name string) error {
	at := slices.IndexFunc(r.Found.Volumes, func(v Volume) bool { return v.Name == name })
	if at < 0 {
		return fmt.Errorf("volume %s is not an orphan; run without flags to list the orphans", name)
	}
	if r.Found.Volumes[at].ReadOnly {
		return r.readOnlyVolume(ctx, name)
	}
	v := &v1alpha1.CacheVolume{}
	if err := r.Kube.Get(ctx, client.ObjectKey{Name: name}, v); err != nil {
		return fmt.Errorf("read volume %s: %w", name, err)
	}
	if v.Status.AttachedNode != "" || v.Status.Authority == v1alpha1.AuthorityCache {
		return fmt.Errorf("volume %s is attached to node %q or may have dirty data; detach and flush it first", name, v.Status.AttachedNode)
	}
	if v.Status.Epoch > 0 {
		return fmt.Errorf("volume %s may have replicas on %v; `kubectl escache release --volume %s` removes them and the volume, "+
			"and leaves the image", name, v.Spec.Replicas, name)
	}
	return r.record(ctx, v)
}

func (r Removal) readOnlyVolume(ctx context.Context, name string) error {
	v := &v1alpha1.ReadOnlyVolume{}
	if err := r.Kube.Get(ctx, client.ObjectKey{Name: name}, v); err != nil {
		return fmt.Errorf("read volume %s: %w", name, err)
	}
	if copies := v.Status.Copies; len(copies) > 0 {
		return fmt.Errorf("volume %s is attached to %s; detach it first", name, copies[0].Node)
	}
	return r.record(ctx, v)
}

// record removes a record, unless it was changed since it was read.
func (r Removal) record(ctx context.Context, v client.Object) error {
	uid, version := v.GetUID(), v.GetResourceVersion()
	if err := r.Kube.Delete(ctx, v, client.Preconditions{UID: &uid, ResourceVersion: &version}); err != nil {
		return fmt.Errorf("remove volume %s: %w", v.GetName(), err)
	}
	if err := finalizers.Remove(ctx, r.Kube, v); err != nil {
		return fmt.Errorf("remove volume %s: %w", v.GetName(), err)
	}
	return nil
}
