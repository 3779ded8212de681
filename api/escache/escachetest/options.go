package escachetest

import (
	"context"
	"time"

	"github.com/escache/escache-csi/api/escache"
)

func (h *Host) setOptions(ctx context.Context, req escache.OptionsRequest) (any, error) {
	defer h.lock()()
	o := req.Options
	if o.HighWatermark != 0 && o.LowWatermark >= o.HighWatermark && !h.w.breaks("crossed watermarks are taken") {
		return nil, fail(escache.CodeInvalidRequest, "lowWatermark must be below highWatermark")
	}
	r, end, err := h.here(req.VolumeRef, 0, "options") // the epoch is looked at below
	if err != nil {
		return nil, err
	}
	defer end()
	if r.traffic.Refuse != "" {
		return nil, fail(r.traffic.Refuse, "the test refuses this")
	}
	if err := h.checkOrder(r, o); err != nil {
		return nil, err
	}
	switch {
	case req.Epoch < r.epoch && !h.w.breaks("options of an older epoch are taken"):
		return nil, fail(escache.CodeStaleEpoch, "a newer epoch was seen")
	case h.w.breaks("options are said and not set"):
		return escache.OptionsResponse{Options: o}, nil
	case h.w.breaks("options lose what is dirty"):
		clear(h.w.caches[req.VolumeRef].dirty)
	case h.w.breaks("options end write-through"):
		r.mode = escache.ModeWriteback
	case h.w.breaks("an option that is left out stays") && o.MaxDirtyAgeSeconds == 0:
		o.MaxDirtyAgeSeconds = r.options.MaxDirtyAgeSeconds
	}
	r.options = o
	if age := time.Duration(o.MaxDirtyAgeSeconds) * time.Second; age > 0 && !h.w.alone {
		h.drainAfter(context.WithoutCancel(ctx), req.VolumeRef, r, age)
	}
	return escache.OptionsResponse{Options: o}, nil
}

// checkOrder refuses an order of write-back that the replica's engine does not have.
func (h *Host) checkOrder(r *replica, o escache.CacheOptions) error {
	if o.WriteBackOrder == escache.OrderStrict && r.req.Engine == escache.EngineWritecache &&
		!h.w.breaks("an order that the engine does not have is taken") {
		return fail(escache.CodeInvalidRequest, "writecache writes back in no order")
	}
	return nil
}

// drainAfter writes back once, when what is dirty now has reached its age.
func (h *Host) drainAfter(ctx context.Context, ref escache.VolumeRef, r *replica, age time.Duration) {
	time.AfterFunc(age, func() {
		defer h.lock()()
		if h.replicas[ref] == r && r.connected && r.options.MaxDirtyAgeSeconds > 0 {
			_ = h.drain(ctx, ref) // what stays dirty is what the check looks for
		}
	})
}
