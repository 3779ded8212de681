package ceph

import (
	"context"
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
