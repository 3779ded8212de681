package escachetest

import "github.com/escache/escache-csi/api/escache"

func (h *Host) node() escache.Node {
	defer h.lock()()
	n := escache.Node{
		Name: h.Name, HostID: h.hostID(), Version: "fake", Healthy: h.sick == "",
		CacheCapacityBytes: h.capacity, CacheAllocatedBytes: h.leaked,
		MaxVolumes: 100, Kernel: escache.Kernel{Release: "6.1", DRBD: "8.4", Writecache: "1.6", RBD: true},
		Engines: h.engines(),
	}
	if h.sick != "" {
		n.Reasons = []string{h.sick}
	}
	for ref, r := range h.replicas {
		if r.plain {
			continue
		}
		n.Volumes++
		n.CacheAllocatedBytes += r.req.CacheBytes
		if r.connected && !h.w.breaks("primaries are not counted") {
			n.Primaries++
			n.DirtyBytes += h.w.caches[ref].bytes()
		}
	}
	n.ConnectedBytes = h.connectedBytes()
	n.CacheMemoryBytes = n.ConnectedBytes / memoryShare
	if h.connectable > 0 {
		total := max(h.connectable, n.ConnectedBytes)
		n.ConnectableBytes, n.CacheMemoryFreeBytes = &total, (total-n.ConnectedBytes)/memoryShare
	}
	if h.w.breaks("a connected cache takes no memory") {
		n.CacheMemoryBytes = 0
	}
	if h.w.breaks("nothing is connectable") {
		n.ConnectableBytes = new(int64)
	}
	n.CacheFreeBytes = n.CacheCapacityBytes - n.CacheAllocatedBytes
	return n
}

// memoryShare says how much memory a connected cache takes: its size divided by this.
const memoryShare = 50

// connectedBytes is the size of the caches connected here.
func (h *Host) connectedBytes() (sum int64) {
	for _, r := range h.replicas {
		if r.connected && !h.w.breaks("connected caches are not counted") {
			sum += r.req.CacheBytes
		}
	}
	return sum
}

// hostID is who answers, by the host's own word.
func (h *Host) hostID() string {
	switch {
	case h.w.breaks("a host has no identity"):
		return ""
	case h.w.breaks("all hosts have one identity"):
		return "disks"
	}
	return h.id
}
