package escachetest

import (
	"context"
	"errors"
	"fmt"

	"github.com/escache/escache-csi/api/escache"
)

// plain is a map of an image without a cache.
type plain struct {
	ref      escache.VolumeRef
	img      *image
	device   string
	readOnly bool
	open     int
}

// plainAt returns the plain map with that device, nil if there is none.
func (h *Host) plainAt(device string) *plain {
	for _, m := range h.maps {
		if m.device == device {
			return m
		}
	}
	return nil
}

func (h *Host) withoutReplica(ref escache.VolumeRef) error {
	if h.replicas[ref] != nil && !h.w.breaks("an image with a replica is mapped") {
		return fail(escache.CodeReplicaMismatch, "it has a replica here")
	}
	return nil
}

func (h *Host) mapImage(_ context.Context, req escache.MapRequest) (any, error) {
	defer h.lock()()
	if err := h.withoutReplica(req.VolumeRef); err != nil {
		return nil, err
	}
	img := h.w.image(req.VolumeRef, req.ImageID, 1<<30)
	if img == nil {
		return nil, fail(escache.CodeImageNotFound, "Ceph has no such image")
	}
	if m := h.maps[req.VolumeRef]; m != nil {
		if m.img == img && m.readOnly == req.ReadOnly && !h.w.breaks("a repeated map maps again") {
			return escache.MapResponse{Device: m.device}, nil
		}
		if err := h.drop(m); err != nil {
			return nil, err
		}
	}
	if img.id != req.ImageID && !h.w.breaks("image ids are not compared") {
		return nil, fail(escache.CodeIdentityMismatch, "another image")
	}
	if !req.ReadOnly {
		if img.holder != "" && !h.w.breaks("a map has no lock") {
			return nil, fail(escache.CodeImageInUse, "%s has it", img.holder)
		}
		img.holder = h.Name
	}
	h.w.clients++
	m := &plain{ref: req.VolumeRef, img: img, device: fmt.Sprintf("/dev/rbd%d", h.w.clients), readOnly: req.ReadOnly}
	h.maps[req.VolumeRef] = m
	return escache.MapResponse{Device: m.device}, nil
}

func (h *Host) unmapImage(_ context.Context, req escache.UnmapRequest) (any, error) {
	defer h.lock()()
	if err := h.withoutReplica(req.VolumeRef); err != nil {
		return nil, err
	}
	m := h.maps[req.VolumeRef]
	if m == nil {
		if h.w.breaks("what is not mapped cannot be unmapped") {
			return nil, fail(escache.CodeDeviceOpen, "nothing is mapped")
		}
		return none, nil
	}
	if h.w.breaks("unmap does nothing") {
		return none, nil
	}
	return none, h.drop(m)
}

func (h *Host) drop(m *plain) error {
	if m.open > 0 && !h.w.breaks("an open map is unmapped") {
		return fail(escache.CodeDeviceOpen, "it is open %d times", m.open)
	}
	if !m.readOnly {
		m.img.holder = ""
	}
	delete(h.maps, m.ref)
	return nil
}

func (m *plain) write(offset int64, data []byte, anybody bool) error {
	if m.readOnly && !anybody {
		return errors.New("the device is read-only")
	}
	for i := 0; i < len(data); i += block {
		m.img.blocks[offset+int64(i)] = data[i : i+block]
	}
	return nil
}
