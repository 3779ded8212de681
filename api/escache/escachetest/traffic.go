package escachetest

import (
	"context"
	"time"

	"github.com/escache/escache-csi/api/escache"
)

// Traffic says what happens to a connected volume's cache while a flush runs.
type Traffic struct {
	// CephPerSecond is how many bytes Ceph takes; 0 takes everything at once, less than 0 nothing
	// at all.
	CephPerSecond int64
	// PodPerSecond is how many bytes a pod writes. They become dirty unless the volume writes
	// through.
	PodPerSecond int64
	// Refuse is the answer to every flush and change of mode; empty: they are served.
	Refuse escache.Code
}

// Load sets a volume's traffic.
func (h *Host) Load(ref escache.VolumeRef, traffic Traffic) {
	defer h.lock()()
	if r := h.replicas[ref]; r != nil {
		r.traffic = traffic
	}
}

// FlushAtMost makes the host slow: one flush writes back at most so much, and then its time is up.
// 0 makes it fast again.
func (h *Host) FlushAtMost(bytes int64) {
	defer h.lock()()
	h.perFlush = bytes
}

// paced reports whether a flush takes time.
func (h *Host) paced(r *replica) bool { return h.perFlush > 0 || r.traffic != Traffic{} }

// tick is the length of a step of a played flush.
const tick = 20 * time.Millisecond

// flushSlowly flushes in steps, with the lock held before and after.
func (h *Host) flushSlowly(ctx context.Context, ref escache.VolumeRef, r *replica) (any, error) {
	for timeIsUp := false; ; timeIsUp = ctx.Err() != nil {
		switch {
		case h.replicas[ref] != r || !r.connected:
			return nil, fail(escache.CodeNotConnected, "not connected here")
		case r.traffic.Refuse != "":
			return nil, fail(r.traffic.Refuse, "the test refuses this")
		}
		left := h.flushStep(h.w.caches[ref], r)
		if left == 0 || h.perFlush > 0 || timeIsUp {
			return escache.FlushResponse{Clean: left == 0, DirtyBytes: left}, nil
		}
		h.w.mu.Unlock()
		select {
		case <-ctx.Done():
		case <-time.After(tick):
		}
		h.w.mu.Lock()
	}
}

// flushStep writes a share back and returns what is dirty then.
func (h *Host) flushStep(c *cache, r *replica) int64 {
	left, share := c.bytes(), int64(time.Second/tick)
	switch {
	case h.perFlush > 0:
		left = max(0, left-h.perFlush)
	case r.traffic.CephPerSecond == 0:
		left = 0
	case r.traffic.CephPerSecond > 0:
		left = max(0, left-r.traffic.CephPerSecond/share)
	}
	if r.mode != escache.ModeWritethrough {
		left += r.traffic.PodPerSecond / share
	}
	c.empty()
	c.played = left
	return left
}
