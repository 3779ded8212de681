package escachetest

import (
	"bytes"

	"github.com/escache/escache-csi/api/escache"
)

// DevicePath is where the hosts make a volume's device.
func DevicePath(ref escache.VolumeRef) string { return devicePath(ref) }

// SetConnectable sets the size of the caches that the host's memory allows to be connected. 0 means
// any, which is what a host of Alone begins with.
func (h *Host) SetConnectable(bytes int64) {
	defer h.lock()()
	h.connectable = bytes
}

// Change makes the host report something else of a replica: a device appears or goes with Device,
// data becomes dirty with DirtyBytes, DRBD's states change. It does nothing without a replica.
func (h *Host) Change(ref escache.VolumeRef, how func(*escache.VolumeStatus)) {
	defer h.lock()()
	r := h.replicas[ref]
	if r == nil {
		return
	}
	before := h.one(ref)
	after := before
	how(&after)
	c := h.w.caches[ref]
	if c.unknown = after.DirtyBytes == nil; !c.unknown {
		c.played = *after.DirtyBytes - int64(len(c.dirty))*block
	}
	r.epoch, r.primary, r.client, r.mode = after.Epoch, after.Role == escache.RolePrimary, after.ClientAddress, after.Mode
	r.connected, r.device, r.size = after.Device != "", after.Device, after.SizeBytes
	if after.DiskState != before.DiskState {
		r.disk = after.DiskState
	}
	r.peers, r.synced, r.resync = after.Peers, after.SyncedPercent, after.Resync
	r.suspended, r.mayGoOnAlone, r.connecting = after.IOSuspended, after.MayGoOnAlone, after.Connecting
	if r.held != nil && after.HeldUntil == nil {
		h.letGo(r)
	}
}

// InImage is the block at an offset of the volume's image in Ceph, as somebody sees it who does not ask the cache.
func (h *Host) InImage(ref escache.VolumeRef, offset int64) []byte {
	defer h.lock()()
	if img := h.w.images[ref]; img != nil {
		return bytes.Clone(img.blocks[offset])
	}
	return nil
}

// Break makes the host break a rule of the contract from now on, as those of Breaking do; "" ends that.
func (h *Host) Break(rule string) {
	defer h.lock()()
	h.w.broken = rule
}

// Supersede says that the record proves that the replica was superseded in an epoch, so that it may
// be abandoned, and is not trimmed.
func (h *Host) Supersede(ref escache.VolumeRef, epoch int64) {
	defer h.lock()()
	if r := h.replicas[ref]; r != nil {
		r.superseded = epoch
	}
}

// Discard says that the record gives up what only caches have had up to an epoch.
func (h *Host) Discard(ref escache.VolumeRef, epoch int64) {
	defer h.lock()()
	if r := h.replicas[ref]; r != nil {
		r.discarded = epoch
	}
}

// Sicken makes the host report that it is not healthy; an empty reason heals it.
func (h *Host) Sicken(reason string) {
	defer h.lock()()
	h.sick = reason
}

// Forget removes all replicas.
func (h *Host) Forget() {
	defer h.lock()()
	clear(h.replicas)
	clear(h.w.caches)
	clear(h.w.images)
}

// Replicas returns how many replicas the host has.
func (h *Host) Replicas() int {
	defer h.lock()()
	return len(h.replicas)
}

// Replace puts another machine in the host's place: it has the same name and other, empty disks.
func (h *Host) Replace() {
	h.Forget()
	defer h.lock()()
	h.id = "another-" + h.id
}

// Secret returns the secret that a replica has for its link, "" if it has none.
func (h *Host) Secret(ref escache.VolumeRef) escache.Secret {
	defer h.lock()()
	if r := h.replicas[ref]; r != nil {
		return r.req.Secret
	}
	return ""
}
