package rbd

import (
	"context"
	"errors"
	"fmt"

	"github.com/ceph/go-ceph/rados"
	librbd "github.com/ceph/go-ceph/rbd"
)

// Clones returns the images that are clones of a snapshot of this image.
func (c *Cluster) Clones(ctx context.Context, ref ImageRef) ([]ImageRef, error) {
	return onImage(ctx, c, "clone_list", ref.String(), ref, readOnly, func(image *librbd.Image) ([]ImageRef, error) {
		children, err := image.ListChildrenAttributes()
		if err != nil {
			return nil, err
		}
		refs := make([]ImageRef, 0, len(children))
		for _, child := range children {
			refs = append(refs, ImageRef{Pool: child.PoolName, Name: child.ImageName})
		}
		return refs, nil
	})
}

// CloneImage creates an image from a snapshot. The snapshot needs no protection (clone format 2)
// and may be removed while the clone exists. spec.SizeBytes is at least the size of the snapshot; 0
// means that size. If the name exists, the error is an *ExistsError, or ErrForeign as for
// CreateImage. ErrInvalid: the clone would have more parents than a kernel follows.
func (c *Cluster) CloneImage(ctx context.Context, from SnapshotRef, spec ImageSpec) error {
	sized := spec
	sized.SizeBytes = max(spec.SizeBytes, sectorSize)
	if err := sized.Validate(); err != nil {
		return fmt.Errorf("clone %s: %w", from, err)
	}
	_, err := callAlone(ctx, c, "image_clone", "clone "+from.String(), spec.ImageRef, func(conn *rados.Conn) (struct{}, error) {
		return withPool(conn, from.Pool, func(parent *rados.IOContext) (struct{}, error) {
			return withPool(conn, spec.Pool, func(child *rados.IOContext) (struct{}, error) {
				if err := c.trash.prepare(child, spec.Pool); err != nil {
					return struct{}{}, err
				}
				return struct{}{}, c.cloneImage(conn, parent, child, from, spec)
			})
		})
	})
	return err
}

func (c *Cluster) cloneImage(conn *rados.Conn, parent, child *rados.IOContext, from SnapshotRef, spec ImageSpec) error {
	if err := roomForParent(conn, parent, from.ImageRef); err != nil {
		return err
	}
	options, err := spec.options()
	if err != nil {
		return err
	}
	defer options.Destroy()
	const format2 = 2
	if err := options.SetUint64(librbd.ImageOptionCloneFormat, format2); err != nil {
		return err
	}
	err = c.makeNew(conn, child, spec, func() error {
		return librbd.CloneImage(parent, from.Name, from.Snapshot, child, spec.Name, options)
	})
	if err != nil || spec.SizeBytes == 0 {
		return err
	}
	_, err = withImage(child, spec.Name, readWrite, func(image *librbd.Image) (struct{}, error) {
		has, err := image.GetSize()
		if err != nil || int64(has) >= spec.SizeBytes {
			return struct{}{}, err
		}
		return struct{}{}, image.Resize(uint64(spec.SizeBytes))
	})
	return err
}

// maxParents is how long a chain of parents a kernel follows. It does not map an image with more.
const maxParents = 16

// roomForParent refuses an image as a parent whose own chain is as long already.
func roomForParent(conn *rados.Conn, io *rados.IOContext, ref ImageRef) error {
	parent, err := withImage(io, ref.Name, readOnly, parentOf)
	parents := 0
	for ; err == nil && parent != nil && parents < maxParents; parents++ {
		parent, err = parentOfParent(conn, parent)
	}
	if err == nil && parents == maxParents {
		err = fmt.Errorf("%w: it has %d parents, and a node's kernel follows no more: while the volume is detached, "+
			"`rbd flatten %s/%s` gives it a copy of what it shares with them", ErrInvalid, parents, ref.Pool, ref.Name)
	}
	return err
}

// parentOfParent returns the next one in the chain. It may be in the trash, where it has only an ID.
func parentOfParent(conn *rados.Conn, image *librbd.ParentInfo) (*librbd.ParentInfo, error) {
	return withPool(conn, image.Image.PoolName, func(io *rados.IOContext) (*librbd.ParentInfo, error) {
		io.SetNamespace(image.Image.PoolNamespace)
		opened, err := librbd.OpenImageByIdReadOnly(io, image.Image.ImageID, librbd.NoSnapshot)
		if err != nil {
			return nil, err
		}
		parent, err := parentOf(opened)
		return parent, errors.Join(err, opened.Close())
	})
}

// parentOf returns nil for an image that is no clone.
func parentOf(image *librbd.Image) (*librbd.ParentInfo, error) {
	parent, err := image.GetParent()
	if errors.Is(translate(err), ErrNotFound) {
		return nil, nil //nolint:nilnil // that is what was asked
	}
	return parent, err
}

func addParent(image *librbd.Image, info *ImageInfo) error {
	p, err := parentOf(image)
	if err != nil || p == nil {
		return err
	}
	info.Parent = &SnapshotRef{ImageRef: ImageRef{Pool: p.Image.PoolName, Name: p.Image.ImageName}, Snapshot: p.Snap.SnapName}
	return nil
}
