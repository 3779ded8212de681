package ceph

import (
	"context"
	"errors"
	"slices"

	"github.com/escache/escache-csi/api/v1alpha1"
	"github.com/escache/escache-csi/internal/controller/volumes"
	"github.com/escache/escache-csi/internal/rbd"
)

// Inspect describes an image that somebody else has made.
func (i *Images) Inspect(ctx context.Context, image volumes.ImageRef, volume string) (volumes.Inspection, error) {
	cluster, err := i.cluster(image.ClusterID)
	if err != nil {
		return volumes.Inspection{}, err
	}
	seen, err := cluster.Inspect(ctx, refOf(image))
	if err != nil {
		return volumes.Inspection{}, translate(ctx, err)
	}
	released, err := volumes.ParseNote(seen.Mark.Released)
	out := volumes.Inspection{
		SizeBytes: seen.SizeBytes, DataPool: seen.DataPool, Layout: layoutOf(seen.ImageInfo),
		Refusals: seen.Refusals(volume), Released: released,
	}
	return out, err
}

// layoutOf returns the layout in the terms of a StorageClass. Features that Ceph sets by itself are
// none of them.
func layoutOf(info rbd.ImageInfo) v1alpha1.ImageLayout {
	known := rbd.FeatureNames()
	out := v1alpha1.ImageLayout{
		Features:        slices.DeleteFunc(info.Features.Names(), func(name string) bool { return !slices.Contains(known, name) }),
		ObjectSizeBytes: info.ObjectSizeBytes,
	}
	if info.StripeCount > 1 {
		out.StripeUnitBytes, out.StripeCount = info.StripeUnitBytes, info.StripeCount
	}
	return out
}

// Adopt marks an image that nobody has marked.
func (i *Images) Adopt(ctx context.Context, image volumes.ImageRef, note volumes.Note) (id string, err error) {
	cluster, text, err := i.clusterAndText(image, note)
	if err != nil {
		return "", err
	}
	id, err = cluster.AdoptImage(ctx, refOf(image), note.Volume, text)
	return id, translate(ctx, err)
}

// Remains reads what an image says of its volume. An image that is not there is no error.
func (i *Images) Remains(ctx context.Context, image volumes.ImageRef) (volumes.Remains, error) {
	cluster, err := i.cluster(image.ClusterID)
	if err != nil {
		return volumes.Remains{}, err
	}
	seen, err := cluster.Inspect(ctx, refOf(image))
	if errors.Is(err, rbd.ErrNotFound) {
		return volumes.Remains{}, nil
	}
	if err != nil {
		return volumes.Remains{}, translate(ctx, err)
	}
	out := volumes.Remains{
		ID: seen.ID, SizeBytes: seen.SizeBytes, Kubernetes: seen.Mark.Kubernetes, Volume: seen.Mark.Volume, Deleted: seen.Mark.Deleted,
		Clients: seen.Clients,
	}
	for _, lock := range seen.Left {
		out.Left = append(out.Left, lock.Address)
	}
	out.Note, out.Unreadable = volumes.ParseNote(seen.Mark.Note)
	return out, nil
}

// Retake marks an image of a volume whose record is re-created.
func (i *Images) Retake(ctx context.Context, image volumes.ImageRef, from string, note volumes.Note) (id string, err error) {
	cluster, text, err := i.clusterAndText(image, note)
	if err != nil {
		return "", err
	}
	id, err = cluster.RetakeImage(ctx, refOf(image), from, note.Volume, text)
	return id, translate(ctx, err)
}
