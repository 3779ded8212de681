package escachetest

import (
	"context"

	"github.com/escache/escache-csi/api/escache"
)

// OnTrim makes the host answer trims in this way. Before it is called, no device has a filesystem.
func (h *Host) OnTrim(do func(escache.TrimRequest) (escache.TrimResponse, error)) {
	defer h.lock()()
	h.onTrim = do
}

func (h *Host) trim(_ context.Context, req escache.TrimRequest) (any, error) {
	defer h.lock()()
	r, end, err := h.here(req.VolumeRef, req.Epoch, "trim")
	if err != nil {
		return nil, err
	}
	defer end()
	switch {
	case r.plain && r.superseded > r.epoch && !h.w.breaks("a trim asks no arbiter"):
		return nil, fail(escache.CodeStaleEpoch, "on record it is attached to another host")
	case h.w.breaks("a device without a filesystem is trimmed"):
		return escache.TrimResponse{Done: true}, nil
	case h.w.breaks("trim makes a filesystem"):
		h.w.images[req.VolumeRef].blocks[0] = make([]byte, block)
		h.w.images[req.VolumeRef].blocks[0][1080] = 0x53
	case !r.plain && r.req.Engine != escache.EngineLog:
		return nil, fail(escache.CodeInvalidRequest, "the device takes no discards")
	case h.onTrim != nil:
		return h.onTrim(req)
	}
	return nil, fail(escache.CodeInvalidRequest, "the device does not mount as %s", req.FSType)
}
