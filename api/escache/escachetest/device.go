package escachetest

import (
	"context"
	"maps"
	"time"

	"github.com/escache/escache-csi/api/escache"
)

// mayBegin is begin for a call that names its attachment. It refuses one that comes too late.
func (h *Host) mayBegin(ref escache.VolumeRef, epoch int64, verb string) (*replica, func(), error) {
	r, end, err := h.begin(ref, verb)
	if err == nil && epoch != 0 && epoch < r.epoch && !h.w.breaks("a late "+verb+" is carried out") {
		end()
		return nil, nil, fail(escache.CodeStaleEpoch, "epoch %d has been seen here", r.epoch)
	}
	return r, end, err
}

// here is a connected replica.
func (h *Host) here(ref escache.VolumeRef, epoch int64, verb string) (*replica, func(), error) {
	r, end, err := h.mayBegin(ref, epoch, verb)
	if err != nil {
		return nil, nil, err
	}
	if !r.connected {
		end()
		return nil, nil, fail(escache.CodeNotConnected, "not connected here")
	}
	if r.held != nil && verb != "hold" {
		end()
		return nil, nil, fail(escache.CodeHeld, "release it first")
	}
	return r, end, nil
}

// drain moves what is dirty to the image.
func (h *Host) drain(ctx context.Context, ref escache.VolumeRef) error {
	if err := h.w.ceph(ctx); err != nil {
		return err
	}
	if img := h.w.image(ref, "", 0); img != nil && !h.w.breaks("flush loses data") {
		maps.Copy(img.blocks, h.w.caches[ref].dirty)
	}
	h.w.caches[ref].empty()
	return nil
}

func (h *Host) flush(ctx context.Context, req escache.FlushRequest) (any, error) {
	defer h.lock()()
	r, end, err := h.here(req.VolumeRef, req.Epoch, "flush")
	if err != nil {
		return nil, err
	}
	defer end()
	if h.w.breaks("flush lies") {
		return escache.FlushResponse{Clean: true}, nil
	}
	if !h.w.breaks("flush knows no end") {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(ctx, time.Duration(req.TimeoutSeconds)*time.Second)
		defer cancel()
	}
	if h.paced(r) {
		return h.flushSlowly(ctx, req.VolumeRef, r)
	}
	if err := h.drain(ctx, req.VolumeRef); err != nil {
		if h.w.breaks("flush lies when its time is up") {
			return escache.FlushResponse{Clean: true}, nil
		}
		return escache.FlushResponse{DirtyBytes: h.w.caches[req.VolumeRef].bytes()}, nil
	}
	return escache.FlushResponse{Clean: true}, nil
}

func (h *Host) stop(_ context.Context, req escache.StopRequest) (any, error) {
	defer h.lock()()
	r, end, err := h.mayBegin(req.VolumeRef, req.Epoch, "stop")
	if err != nil {
		return nil, err
	}
	defer end()
	switch {
	case !r.connected && h.w.breaks("stop twice is an error"):
		return nil, fail(escache.CodeNotConnected, "not connected")
	case !r.connected:
		return none, nil
	case r.held != nil && !h.w.breaks("a held volume is stopped"):
		return nil, fail(escache.CodeHeld, "release it first")
	case r.open > 0 && !h.w.breaks("an open device is stopped"):
		return nil, fail(escache.CodeDeviceOpen, "close it first")
	case !h.w.caches[req.VolumeRef].clean() && !h.w.breaks("a dirty device is stopped"):
		return nil, fail(escache.CodeDirty, "flush first")
	case h.w.breaks("stop does nothing"):
		return none, nil
	}
	h.disconnect(req.VolumeRef, r)
	return none, nil
}

func (h *Host) setMode(ctx context.Context, req escache.ModeRequest) (any, error) {
	defer h.lock()()
	r, end, err := h.here(req.VolumeRef, req.Epoch, "mode")
	if err != nil {
		return nil, err
	}
	defer end()
	if r.traffic.Refuse != "" {
		return nil, fail(r.traffic.Refuse, "the test refuses this")
	}
	if h.w.breaks("mode does nothing") {
		return none, nil
	}
	r.mode = req.Mode
	if req.Mode == escache.ModeWritethrough && !h.w.alone && !h.w.breaks("writethrough does not drain") {
		return nil, h.drain(ctx, req.VolumeRef)
	}
	return none, nil
}

func (h *Host) hold(ctx context.Context, req escache.HoldRequest) (any, error) {
	defer h.lock()()
	r, end, err := h.here(req.VolumeRef, req.Epoch, "hold")
	if err != nil {
		return nil, err
	}
	defer end()
	if req.Pause && h.w.breaks("pause is an unknown field") {
		return nil, fail(escache.CodeInvalidRequest, "body: unknown field pause")
	}
	extends := r.held != nil && h.w.breaks("a second hold has the image of the first")
	goesOn := r.goesOn()
	if req.Pause && !h.w.breaks("a pause is ignored") && !h.w.breaks("a pause is only said") {
		r.paused = true // before the image has everything
	}
	if !extends && !h.w.breaks("hold does not clean") {
		if err := h.drain(ctx, req.VolumeRef); err != nil {
			h.letGo(r)
			return nil, fail(escache.CodeTimeout, "%v", err)
		}
	}
	until := time.Now().Add(time.Duration(req.MaxSeconds) * time.Second).UTC()
	if r.held != nil && r.held.After(until) && h.extends(goesOn) {
		until = *r.held
	}
	if r.held == nil {
		r.released = make(chan struct{})
	}
	r.held = &until
	if !h.w.breaks("no watchdog") {
		time.AfterFunc(time.Until(until), func() {
			defer h.lock()()
			if r.held != nil && !time.Now().Before(*r.held) {
				h.letGo(r)
			}
		})
	}
	paused := !r.goesOn() && !h.w.breaks("a pause is not said") || h.w.breaks("a pause is only said")
	return escache.HoldResponse{HeldUntil: until, Paused: paused}, nil
}

// letGo ends a hold, if there is one.
func (h *Host) letGo(r *replica) {
	if r.held != nil {
		close(r.released)
	}
	r.held, r.paused = nil, false
}

// extends reports whether a second hold ends no earlier than the first, in which I/O went on or not.
func (h *Host) extends(goesOn bool) bool {
	if goesOn {
		return h.w.breaks("a second hold has the time of the first")
	}
	return !h.w.breaks("a second hold cuts the first short")
}

func (h *Host) release(_ context.Context, req escache.ReleaseRequest) (any, error) {
	defer h.lock()()
	r, end, err := h.mayBegin(req.VolumeRef, req.Epoch, "release")
	if err != nil {
		return nil, err
	}
	defer end()
	if r.held == nil {
		if h.w.breaks("what is not held cannot be released") {
			return nil, fail(escache.CodeNotConnected, "not held")
		}
		return none, nil
	}
	h.letGo(r)
	return none, nil
}

func (h *Host) resize(_ context.Context, req escache.ResizeRequest) (any, error) {
	defer h.lock()()
	r, end, err := h.here(req.VolumeRef, req.Epoch, "resize")
	if err != nil {
		return nil, err
	}
	defer end()
	switch {
	case req.SizeBytes < r.size && !h.w.breaks("a device shrinks"):
		return nil, fail(escache.CodeInvalidRequest, "a device never shrinks")
	case req.SizeBytes > h.w.image(req.VolumeRef, "", req.SizeBytes).size && !h.w.breaks("a device outgrows its image"):
		return nil, fail(escache.CodeInvalidRequest, "grow the image first")
	case h.w.breaks("resize does nothing"):
		return none, nil
	case req.SizeBytes > r.size && h.w.breaks("resize loses data"):
		clear(h.w.caches[req.VolumeRef].dirty)
	}
	r.size, r.req.SizeBytes = req.SizeBytes, req.SizeBytes
	return none, nil
}

// abandon has no proof of a take-over but what Supersede says: no host of a world is ever cut off. The host has seen the request's
// epoch from then on, and needs no proof any more. What the record gives up keeps its own epoch.
func (h *Host) abandon(_ context.Context, req escache.AbandonRequest) (any, error) {
	defer h.lock()()
	r, end, err := h.begin(req.VolumeRef, "abandon")
	if err != nil {
		return nil, err
	}
	defer end()
	switch {
	case r.connected && h.w.breaks("the caller's word is proof") && req.Epoch > r.epoch:
		h.disconnect(req.VolumeRef, r)
	case r.connected && (r.abandoning || req.Epoch >= r.epoch && req.Epoch <= r.superseded) &&
		!h.w.breaks("a device is not abandoned while its peer is connected"):
		if r.suspended = false; !r.abandoning && !r.plain {
			if r.abandoning = true; r.discarded < r.epoch {
				r.epoch = req.Epoch
			}
		}
		if r.open > 0 {
			return nil, fail(escache.CodeDeviceOpen, "close it first")
		}
		h.disconnect(req.VolumeRef, r)
	case r.connected:
		return nil, fail(escache.CodeNotSuperseded, "nothing proves that another node has it")
	case h.w.breaks("a standby cannot be abandoned"):
		return nil, fail(escache.CodeNotSuperseded, "it is not connected")
	case h.w.breaks("abandon drops the standby"):
		delete(h.replicas, req.VolumeRef)
	}
	return none, nil
}
