package engine

import (
	"context"

	"github.com/escache/escache-csi/api/escache"
	"github.com/escache/escache-csi/internal/crashpoint"
	"github.com/escache/escache-csi/internal/escached/host"
	"github.com/escache/escache-csi/internal/escached/krbd"
	"github.com/escache/escache-csi/internal/escached/problem"
	"github.com/escache/escache-csi/internal/escached/volume"
)

// Map maps an image that has no cache. The map is all the state there is: the kernel keeps it over a
// restart of escached, and a restart of the host ends it.
func (e *Engine) Map(ctx context.Context, req escache.MapRequest) (escache.MapResponse, error) {
	none := escache.MapResponse{}
	ctx, done, err := e.Begin(ctx, req.VolumeRef, "map", host.ChangeTimeout)
	if err != nil {
		return none, err
	}
	defer done()
	maps, err := e.plainMaps(req.VolumeRef)
	if err != nil {
		return none, err
	}
	for _, m := range maps {
		if m.ImageID == req.ImageID && m.ReadOnly == req.ReadOnly {
			return escache.MapResponse{Device: m.Path()}, nil
		}
	}
	// They are of an image that had this name before, or were made otherwise.
	if err := e.unmapAll(ctx, req.VolumeRef, maps); err != nil {
		return none, err
	}
	name, mapped := volume.NameOf(req.VolumeRef), e.Images.Map
	if req.ReadOnly {
		mapped = e.Images.MapReadOnly
	}
	device, err := mapped(ctx, name, req.Pool, req.Image)
	if err != nil {
		return none, err
	}
	crashpoint.Reach("map/mapped")
	if device.ImageID == req.ImageID {
		return escache.MapResponse{Device: device.Path()}, nil
	}
	if err := e.unmapAll(ctx, req.VolumeRef, []krbd.Device{device}); err != nil {
		return none, err
	}
	return none, problem.On(req.VolumeRef, escache.CodeIdentityMismatch,
		"the image has id %s, and %s is wanted: it was replaced; nothing is mapped", device.ImageID, req.ImageID)
}

// Unmap undoes Map. It fails while a process hangs in the kernel that may still map the image.
func (e *Engine) Unmap(ctx context.Context, req escache.UnmapRequest) error {
	ctx, done, err := e.Begin(ctx, req.VolumeRef, "unmap", host.ChangeTimeout)
	if err != nil {
		return err
	}
	defer done()
	if err := e.MapMayCome(req.VolumeRef); err != nil {
		return err
	}
	maps, err := e.plainMaps(req.VolumeRef)
	if err != nil {
		return err
	}
	if err := e.unmapAll(ctx, req.VolumeRef, maps); err != nil {
		return err
	}
	crashpoint.Reach("unmap/unmapped")
	return nil
}

// plainMaps returns the maps of an image that no volume has here. Those of volumes, with a cache or without
// one, are no business of Map and Unmap.
func (e *Engine) plainMaps(ref escache.VolumeRef) ([]krbd.Device, error) {
	if _, replica := e.Volumes.Get(volume.NameOf(ref)); replica {
		return nil, problem.On(ref, escache.CodeReplicaMismatch,
			"this host has a replica of it, and the image is used through its cache; use dev_connect and stop")
	}
	if e.uncached.Has(ref) {
		return nil, problem.On(ref, escache.CodeReplicaMismatch,
			"this host has it attached as a volume without a cache; use dev_connect and stop")
	}
	return e.Images.Find(ref.Pool, ref.Image)
}

func (e *Engine) unmapAll(ctx context.Context, ref escache.VolumeRef, maps []krbd.Device) error {
	for _, m := range maps {
		if err := e.Images.Unmap(ctx, volume.NameOf(ref), m.ID); err != nil {
			return err
		}
	}
	return nil
}
