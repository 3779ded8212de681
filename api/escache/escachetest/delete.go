package escachetest

import (
	"slices"

	"github.com/escache/escache-csi/api/escache"
)

func (h *Host) delete(ref escache.VolumeRef, discard bool, epoch int64) error {
	defer h.lock()()
	if h.replicas[ref] == nil {
		if h.w.breaks("what is gone cannot be deleted") {
			return fail(escache.CodeNotFound, "no replica here")
		}
		return nil
	}
	r, end, err := h.begin(ref, "delete_replica")
	if err != nil {
		return err
	}
	defer end()
	if err := h.mayDelete(ref, r, discard, epoch); err != nil {
		return err
	}
	if r.connected {
		h.disconnect(ref, r)
	}
	delete(h.replicas, ref)
	if h.w.breaks("space is not given back") {
		h.leaked += r.req.CacheBytes
	}
	if !slices.ContainsFunc(h.w.Hosts, func(h *Host) bool { return h.replicas[ref] != nil }) {
		delete(h.w.caches, ref)
	}
	return nil
}

// mayDelete refuses to delete a replica that is in use, or that has data which is not to be discarded.
func (h *Host) mayDelete(ref escache.VolumeRef, r *replica, discard bool, epoch int64) error {
	forced := discard && h.w.breaks("discard removes a connected replica")
	switch {
	case r.connected && !h.w.breaks("a connected replica is deleted") && !forced:
		return fail(escache.CodeConnected, "stop it first")
	case h.onlyCopy(ref, r) && !h.w.breaks("the only copy is deleted"):
		if h.w.breaks("a refused delete removes the only copy") {
			delete(h.replicas, ref)
		}
		return fail(escache.CodeConnected, "its peer has it connected, and lives from this copy")
	case discard && r.epoch > epoch && !h.w.breaks("a later attachment's replica is discarded"):
		return fail(escache.CodeStaleEpoch, "epoch %d has been seen here", r.epoch)
	case h.w.caches[ref].unknown && !discard:
		return fail(escache.CodeDirtyUnknown, "nobody can say that the cache is clean")
	case h.w.caches[ref].bytes() > 0 && !discard && !h.w.breaks("a dirty replica is deleted"):
		return fail(escache.CodeDirty, "flush it first")
	}
	return nil
}

func (h *Host) disconnect(ref escache.VolumeRef, r *replica) {
	if r.plain {
		delete(h.replicas, ref)
	}
	r.connected, r.abandoning, r.primary, r.client, r.mode, r.device = false, false, false, "", "", ""
	if img := h.w.images[ref]; img != nil && img.holder == h.Name && !h.w.breaks("stop keeps the image's lock") {
		img.holder = ""
	}
	if h.w.breaks("stop forgets the epoch") {
		r.epoch = 0
	}
}
