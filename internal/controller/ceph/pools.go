package ceph

import (
	"context"
	"errors"
	"slices"
	"strings"

	"github.com/escache/escache-csi/internal/controller/volumes"
	"github.com/escache/escache-csi/internal/orphans"
	"github.com/escache/escache-csi/internal/rbd"
)

// List returns the names of a pool's images that begin with prefix; none if the pool is gone.
func (i *Images) List(ctx context.Context, clusterID, pool, prefix string) ([]string, error) {
	cluster, err := i.cluster(clusterID)
	if err != nil {
		return nil, err
	}
	names, err := cluster.ListImages(ctx, pool)
	if errors.Is(err, rbd.ErrPoolNotFound) {
		return nil, nil
	}
	return slices.DeleteFunc(names, func(name string) bool { return !strings.HasPrefix(name, prefix) }), translate(ctx, err)
}

// MarkOf returns what an image's metadata says of its owner and of its volume; the zero Mark if the image is not
// there any more.
func (i *Images) MarkOf(ctx context.Context, clusterID, pool, image string) (orphans.Mark, error) {
	cluster, err := i.cluster(clusterID)
	if err != nil {
		return orphans.Mark{}, err
	}
	mark, err := cluster.MarkOf(ctx, rbd.ImageRef{Pool: pool, Name: image})
	if errors.Is(err, rbd.ErrNotFound) || errors.Is(err, rbd.ErrPoolNotFound) {
		return orphans.Mark{}, nil
	}
	if err != nil {
		return orphans.Mark{}, translate(ctx, err)
	}
	return orphans.Mark{
		Kubernetes: mark.Kubernetes, Released: mark.Kubernetes == "" && mark.Released != "", Note: noteOf(mark),
	}, nil
}

// noteOf returns what counts for an image that has lost its record.
func noteOf(mark rbd.Mark) orphans.Note {
	n, err := volumes.ParseNote(mark.Note)
	out := orphans.Note{
		Volume: n.Volume, Claim: n.Claim, Epoch: n.Epoch, Hosts: n.Spec.Replicas, InCeph: n.InCeph(),
		Adopted: n.Spec.Adoption != nil, Copy: n.Spec.FromSnapshot != "" || n.Spec.FromVolume != "",
		Deleted: mark.Deleted, ReadOnly: n.ReadOnly,
	}
	switch {
	case err != nil:
		out.Unreadable = err.Error()
	case n.Later:
		out.Unreadable = "its metadata is of a later version of the driver; upgrade csi-controller"
	}
	return out
}

// LeftInTrash returns the images in a pool's trash whose names begin with prefix, and that stay there because
// somebody else than a driver has moved them there; none if the pool is gone.
func (i *Images) LeftInTrash(ctx context.Context, clusterID, pool, prefix string) ([]orphans.Trashed, error) {
	cluster, err := i.cluster(clusterID)
	if err != nil {
		return nil, err
	}
	all, err := cluster.LeftInTrash(ctx, pool, prefix)
	if errors.Is(err, rbd.ErrPoolNotFound) {
		return nil, nil
	}
	left := make([]orphans.Trashed, 0, len(all))
	for _, e := range all {
		left = append(left, orphans.Trashed{
			Image: orphans.Image{Pool: orphans.Pool{ClusterID: clusterID, Pool: pool}, Image: e.Name}, ID: e.ID, Since: e.Deleted,
		})
	}
	return left, translate(ctx, err)
}

// WatchTrash starts emptying the trash of every pool in which an earlier process left images that
// begin with prefix. It searches all pools: one may have lost its last volume, and no StorageClass
// may name it any more. It skips pools that it may not read: they are not ours.
func (i *Images) WatchTrash(ctx context.Context, prefix string) error {
	ids, err := i.clusters.IDs()
	if err != nil {
		return err
	}
	var failures []error
	for _, id := range ids {
		failures = append(failures, i.watchTrashOf(ctx, id, prefix))
	}
	return errors.Join(failures...)
}

func (i *Images) watchTrashOf(ctx context.Context, clusterID, prefix string) error {
	cluster, err := i.cluster(clusterID)
	if err != nil {
		return err
	}
	pools, err := cluster.Pools(ctx)
	if err != nil {
		return translate(ctx, err)
	}
	for _, pool := range pools {
		trashed, err := cluster.TrashedImages(ctx, pool)
		if errors.Is(err, rbd.ErrUnavailable) {
			return translate(ctx, err)
		}
		if slices.ContainsFunc(trashed, func(t rbd.TrashedImage) bool { return strings.HasPrefix(t.Name, prefix) }) {
			cluster.WatchTrash(pool)
		}
	}
	return nil
}
