package escachetest

import (
	"fmt"
	"slices"

	"github.com/escache/escache-csi/api/escache"
)

// mapPlain maps an image without a cache. It has an entry among the replicas while it is mapped.
func (h *Host) mapPlain(req escache.ConnectRequest) (any, error) {
	if err := h.busyMapping(req.VolumeRef); err != nil {
		return nil, err
	}
	r, img := h.replicas[req.VolumeRef], h.w.image(req.VolumeRef, req.ImageID, 0)
	if err := h.refusePlain(req, r, img); err != nil {
		return nil, err
	}
	fenced := r != nil && slices.Contains(req.Fenced, r.client)
	if fenced && r.open > 0 {
		return nil, fail(escache.CodeDeviceOpen, "its client is fenced; close it first")
	}
	if r == nil || fenced {
		h.mapSlowly(req)
		h.w.clients++
		r = &replica{
			plain: true, connected: true, client: fmt.Sprintf("%s:0/%d", h.address, h.w.clients), size: img.size, synced: 100,
			mode: escache.ModeWritethrough, req: escache.ReplicaRequest{ImageID: img.id, SizeBytes: img.size},
		}
		h.replicas[req.VolumeRef], img.holder = r, h.Name
		if h.w.caches[req.VolumeRef] == nil {
			h.w.caches[req.VolumeRef] = &cache{dirty: map[int64][]byte{}}
		}
	}
	r.epoch = req.Epoch
	return escache.ConnectResponse{Device: devicePath(req.VolumeRef), ImageID: img.id, ClientAddress: r.client}, nil
}

// OnMap makes the host call do each time while it maps an image without a cache. Ceph takes its time then.
func (h *Host) OnMap(do func()) {
	defer h.lock()()
	h.onMap = do
}

// mapSlowly lets others call meanwhile.
func (h *Host) mapSlowly(req escache.ConnectRequest) {
	h.mapping[req.VolumeRef] = req.Epoch
	defer delete(h.mapping, req.VolumeRef)
	do := h.onMap
	h.w.mu.Unlock()
	defer h.w.mu.Lock()
	do()
}

// busyMapping refuses what needs the volume while its image is being mapped.
func (h *Host) busyMapping(ref escache.VolumeRef) error {
	if _, mapping := h.mapping[ref]; mapping {
		return fail(escache.CodeBusy, "dev_connect has not ended")
	}
	return nil
}

// refusePlain says why the image must not be mapped without a cache. The replica and the image are nil
// if there is none.
func (h *Host) refusePlain(req escache.ConnectRequest, r *replica, img *image) error {
	named := req.ImageID != "" && req.Engine == "" && req.Options == (escache.ConnectOptions{})
	switch {
	case !named && !h.w.breaks("a map without a cache takes any request"):
		return fail(escache.CodeInvalidRequest, "uncached needs an imageID, and neither engine nor options")
	case r != nil && !r.plain && !h.w.breaks("an image is mapped beside a replica"):
		return fail(escache.CodeReplicaMismatch, "there is a replica here")
	case r != nil && req.Epoch < r.epoch && !h.w.breaks("a map without a cache takes older epochs"):
		return fail(escache.CodeStaleEpoch, "a newer epoch was seen")
	case img == nil:
		return fail(escache.CodeImageNotFound, "Ceph has no such image")
	case img.id != req.ImageID && !h.w.breaks("any image is mapped without a cache"):
		return fail(escache.CodeIdentityMismatch, "another image")
	case img.holder != "" && img.holder != h.Name && !h.w.breaks("a map without a cache is not exclusive"):
		return fail(escache.CodeImageInUse, "%s has it", img.holder)
	}
	return nil
}

// mayCome adds to a status what is known of an image that may be mapped at any moment.
func (h *Host) mayCome(v escache.VolumeStatus) escache.VolumeStatus {
	epoch, mapping := h.mapping[v.VolumeRef]
	if !mapping {
		return v
	}
	v.State, v.Uncached, v.Epoch, v.Device, v.SyncedPercent = escache.StateError, true, epoch, devicePath(v.VolumeRef), 0
	v.DirtyBytes, v.Connecting = new(int64), true
	v.Error = &escache.Fault{Code: escache.CodeBusy, Detail: "the image is being mapped"}
	return v
}

// mapped adds to a status what is known of an image without a cache.
func (h *Host) mapped(v escache.VolumeStatus, r *replica) escache.VolumeStatus {
	dirty := h.w.caches[v.VolumeRef].bytes()
	v.State, v.Uncached, v.Epoch, v.Mode, v.DirtyBytes = escache.StateConnected, true, r.epoch, r.mode, &dirty
	v.Device, v.ClientAddress, v.SizeBytes = devicePath(v.VolumeRef), r.client, r.size
	if h.w.breaks("a map without a cache is not told") {
		v.State, v.Device = escache.StateAbsent, ""
	}
	return v
}
