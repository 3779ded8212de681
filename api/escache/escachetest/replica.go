package escachetest

import (
	"cmp"
	"context"
	"fmt"
	"net"
	"slices"
	"time"

	"github.com/escache/escache-csi/api/escache"
)

// none is an answer without a body.
var none any

// begin takes the volume for an operation, with the world's lock held.
func (h *Host) begin(ref escache.VolumeRef, verb string) (r *replica, end func(), err error) {
	if err := h.busyMapping(ref); err != nil {
		return nil, nil, err
	}
	r = h.replicas[ref]
	if r == nil {
		return nil, nil, fail(escache.CodeNotFound, "no replica here; create one")
	}
	for r.verb != "" && h.w.breaks("a busy volume makes callers wait") {
		h.w.mu.Unlock()
		time.Sleep(20 * time.Millisecond)
		h.w.mu.Lock()
	}
	if h.w.breaks("one operation blocks all volumes") {
		for _, other := range h.replicas {
			if other.verb != "" {
				r = other
			}
		}
	}
	if r.verb != "" && !h.w.breaks("operations run at the same time") {
		detail := fmt.Sprintf("%s has been running for %s", r.verb, time.Since(r.since).Round(time.Millisecond))
		if h.w.breaks("busy does not name the operation") {
			detail = "try again later"
		}
		return nil, nil, fail(escache.CodeBusy, "%s", detail)
	}
	r.verb, r.since = verb, time.Now()
	return r, func() { r.verb = "" }, nil
}

func (h *Host) lock() func() {
	h.w.mu.Lock()
	return h.w.mu.Unlock
}

func (h *Host) status(ref escache.VolumeRef) (any, error) {
	defer h.lock()()
	status := escache.Status{Volumes: []escache.VolumeStatus{}}
	missing, err := h.unknown(ref)
	if err != nil {
		return nil, err
	}
	if ref.Pool == "" {
		if missing {
			return status, nil
		}
		for ref := range h.replicas {
			if !h.w.breaks("the list is empty") {
				status.Volumes = append(status.Volumes, h.one(ref))
			}
		}
		for ref := range h.mapping {
			if h.replicas[ref] == nil {
				status.Volumes = append(status.Volumes, h.one(ref))
			}
		}
		return status, nil
	}
	if r := h.replicas[ref]; r != nil && h.w.breaks("status waits for the running operation") {
		for r.verb != "" {
			h.w.mu.Unlock()
			time.Sleep(20 * time.Millisecond)
			h.w.mu.Lock()
		}
	} else if r == nil && h.w.breaks("an absent volume is an error") {
		return nil, fail(escache.CodeNotFound, "no replica here")
	}
	v := h.one(ref)
	if missing {
		v = escache.VolumeStatus{
			VolumeRef: ref, Node: h.Name, HostID: h.hostID(), State: escache.StateAbsent, Role: escache.RoleUnknown, SyncedPercent: 100,
		}
	}
	status.Volumes = append(status.Volumes, v)
	return status, nil
}

func (h *Host) one(ref escache.VolumeRef) escache.VolumeStatus {
	v := escache.VolumeStatus{
		VolumeRef: ref, Node: h.Name, HostID: h.hostID(), State: escache.StateAbsent, Role: escache.RoleUnknown, SyncedPercent: 100,
	}
	if h.w.breaks("status does not say who answers") {
		v.Node, v.HostID = "", ""
	}
	r := h.replicas[ref]
	if r == nil {
		return h.mayCome(v)
	}
	v.ImageID, v.CacheBytes, v.SizeBytes, v.Port, v.Minor = r.req.ImageID, r.req.CacheBytes, r.req.SizeBytes, r.req.Port, r.req.Minor
	v.Engine = r.req.Engine
	if r.plain {
		return h.mapped(v, r)
	}
	v.Epoch, v.State, v.Role, v.DiskState = r.epoch, escache.StateStandby, escache.RoleSecondary, escache.DiskUpToDate
	v.Peers, v.SyncedPercent, v.Resync, v.IOSuspended = slices.Clone(r.peers), r.synced, r.resync, r.suspended
	if r.req.Join && h.w.breaks("a resync has no end") {
		v.Resync = &escache.Resync{}
	}
	v.MayGoOnAlone = r.mayGoOnAlone || r.primary && h.w.breaks("it goes on without a current peer")
	if r.peers == nil && !h.w.alone {
		v.Peers = h.seen(ref, r)
	}
	v.Connecting = h.connecting(r)
	if r.primary {
		v.Role = escache.RolePrimary
	}
	if h.empty(ref, r) || r.req.Join && h.w.breaks("a joined copy stays empty") {
		v.DiskState = escache.DiskInconsistent
	}
	v.DiskState = cmp.Or(r.disk, v.DiskState)
	if dirty := h.w.caches[ref].bytes(); !h.w.caches[ref].unknown {
		v.DirtyBytes = &dirty
	}
	if !r.connected {
		return v
	}
	v.Mode, v.Device, v.ClientAddress, v.SizeBytes, v.HeldUntil = h.modeOf(r), cmp.Or(r.device, devicePath(ref)), r.client, r.size, r.held
	switch {
	case r.verb == "flush":
		v.State = escache.StateFlushing
	case v.Mode == escache.ModeWritethrough:
		v.State = escache.StateDraining
	default:
		v.State = escache.StateConnected
	}
	return v
}

// modeOf is the mode that a status says. While it may change, the device is one that writes back.
func (h *Host) modeOf(r *replica) escache.Mode {
	if r.verb == "mode" || r.verb == "dev_connect" {
		return escache.ModeWriteback
	}
	return r.mode
}

// connecting reports whether a dev_connect has not ended.
func (h *Host) connecting(r *replica) bool {
	return r.connecting || r.connected && h.w.breaks("a connect is never over")
}

// empty reports a copy that waits for one with data; beside that it is filled at once.
func (h *Host) empty(ref escache.VolumeRef, r *replica) bool {
	if h.w.alone {
		return false
	}
	for _, peer := range h.w.Hosts {
		if p := peer.replicas[ref]; peer != h && p != nil && !p.req.Join {
			return false
		}
	}
	return r.req.Join
}

func (h *Host) put(_ context.Context, req escache.ReplicaRequest) (any, error) {
	defer h.lock()()
	if err := h.checkNodes(req); err != nil {
		return nil, err
	}
	if err := h.busyMapping(req.VolumeRef); err != nil {
		return nil, err
	}
	if r := h.replicas[req.VolumeRef]; r != nil {
		if r.plain && !h.w.breaks("a replica is created beside a map without a cache") {
			return nil, fail(escache.CodeConnected, "mapped without a cache; stop it first")
		}
		return nil, h.putAgain(r, req)
	}
	if req.MustExist && !h.w.breaks("what must exist is created") {
		return nil, fail(escache.CodeNotFound, "no replica here")
	}
	if err := h.canRun(req.Engine); err != nil {
		return nil, err
	}
	req.Engine = cmp.Or(req.Engine, escache.EngineWritecache)
	for ref, r := range h.replicas {
		samePort := r.req.Port == req.Port && !h.w.breaks("a port is given twice")
		if samePort || r.req.Minor == req.Minor && !h.w.breaks("a minor is given twice") {
			return nil, fail(escache.CodePortInUse, "port or minor belongs to %s", ref.Image)
		}
	}
	used := int64(0)
	for _, r := range h.replicas {
		used += r.req.CacheBytes
	}
	full := used+req.CacheBytes > h.capacity && !h.w.breaks("space is not checked")
	if !full || h.w.breaks("a refused replica stays") {
		h.replicas[req.VolumeRef] = &replica{req: req, epoch: req.Epoch, size: req.SizeBytes, synced: 100}
		if h.w.caches[req.VolumeRef] == nil {
			h.w.caches[req.VolumeRef] = &cache{dirty: map[int64][]byte{}}
		}
	}
	if full {
		return nil, fail(escache.CodeNoRoom, "not enough space")
	}
	return none, nil
}

func (h *Host) checkNodes(req escache.ReplicaRequest) error {
	a, b := req.Nodes[0], req.Nodes[1]
	if a.Name == b.Name || a.Address == b.Address || (a.Name != h.Name && b.Name != h.Name) ||
		net.ParseIP(a.Address) == nil || net.ParseIP(b.Address) == nil {
		return fail(escache.CodeInvalidRequest, "nodes: two different hosts with IP addresses are needed, one of them this one")
	}
	return nil
}

func (h *Host) putAgain(have *replica, req escache.ReplicaRequest) error {
	_, end, err := h.begin(req.VolumeRef, "put_replica")
	if err != nil {
		return err
	}
	defer end()
	if err := h.differs(have, req); err != nil {
		return err
	}
	other := !slices.Equal(have.req.Nodes, req.Nodes)
	readdressed := other && h.takesAddresses(have, req.Nodes)
	repeered := other && !readdressed
	switch {
	case readdressed:
		h.repeer(have, req.Nodes)
	case repeered:
		if cmp.Or(have.disk, escache.DiskUpToDate) != escache.DiskUpToDate {
			return fail(escache.CodeReplicaMismatch, "only a current replica takes another partner")
		}
		h.repeer(have, req.Nodes)
	}
	if have.req.ImageID == "" && !h.w.breaks("an image id is not filled in") {
		have.req.ImageID = req.ImageID
	}
	have.req.SizeBytes = max(have.req.SizeBytes, req.SizeBytes)
	if repeered || h.takesSecret(have, req) {
		have.req.Secret = req.Secret
	}
	if !have.connected && !h.w.breaks("the epoch of a confirmation is forgotten") {
		have.epoch = max(have.epoch, req.Epoch)
	}
	return nil
}

// differs returns why a request cannot be for the replica that is here.
func (h *Host) differs(have *replica, req escache.ReplicaRequest) error {
	switch {
	case h.w.breaks("a replica is created but once"):
		return fail(escache.CodeReplicaMismatch, "it is here already")
	case h.w.breaks("parameters are not compared"):
	case req.ImageID != "" && have.req.ImageID != "" && req.ImageID != have.req.ImageID:
		return fail(escache.CodeIdentityMismatch, "the replica belongs to another image")
	case req.CacheBytes != have.req.CacheBytes || req.Port != have.req.Port || req.Minor != have.req.Minor ||
		h.otherEngine(have, req.Engine) ||
		req.SizeBytes < have.req.SizeBytes && h.w.breaks("an older size is refused"):
		if h.w.breaks("a refusal repeats the request") {
			return fail(escache.CodeReplicaMismatch, "other parameters: %s", string(req.Secret))
		}
		return fail(escache.CodeReplicaMismatch, "other parameters; delete it first")
	}
	if req.Epoch != 0 && req.Epoch < have.epoch && !h.w.breaks("an old request is carried out") {
		return fail(escache.CodeStaleEpoch, "epoch %d has been seen here", have.epoch)
	}
	return nil
}

func (h *Host) connect(_ context.Context, req escache.ConnectRequest) (any, error) {
	defer h.lock()()
	if req.Uncached {
		return h.mapPlain(req)
	}
	o := req.Options
	if o.HighWatermark != 0 && o.LowWatermark >= o.HighWatermark {
		return nil, fail(escache.CodeInvalidRequest, "lowWatermark must be below highWatermark")
	}
	r, end, err := h.begin(req.VolumeRef, "dev_connect")
	if err != nil {
		return nil, err
	}
	defer end()
	if req.Epoch < r.epoch && !h.w.breaks("older epochs are taken") {
		if h.w.breaks("a refused epoch is recorded") {
			r.epoch = req.Epoch
		}
		return nil, fail(escache.CodeStaleEpoch, "a newer epoch was seen")
	}
	if h.otherEngine(r, req.Engine) {
		if h.w.breaks("a refused engine is recorded") {
			r.req.Engine = req.Engine
		}
		return nil, fail(escache.CodeReplicaMismatch, "the replica is of engine %s", r.req.Engine)
	}
	if err := h.checkOrder(r, o.CacheOptions); err != nil {
		return nil, err
	}
	if err := h.canRun(req.Engine); err != nil {
		return nil, err
	}
	more := h.connectedBytes() + r.req.CacheBytes
	if h.connectable > 0 && more > h.connectable && !r.connected && !h.w.breaks("memory is not checked") {
		if h.w.breaks("a connect without memory stores the epoch") {
			r.epoch = req.Epoch
		}
		return nil, fail(escache.CodeNoRoom, "there is no memory for a cache of %d bytes", r.req.CacheBytes)
	}
	answer, err := h.assemble(req, r)
	if err != nil {
		return nil, err
	}
	if !h.w.breaks("a newer epoch is not recorded") || r.epoch == 0 {
		r.epoch = req.Epoch
	}
	return answer, nil
}

func (h *Host) assemble(req escache.ConnectRequest, r *replica) (any, error) {
	answer := func() (any, error) {
		return escache.ConnectResponse{Device: devicePath(req.VolumeRef), ImageID: r.req.ImageID, ClientAddress: r.client}, nil
	}
	h.w.clients++
	client := fmt.Sprintf("%s:0/%d", h.address, h.w.clients)
	if fenced := slices.Contains(req.Fenced, r.client) || h.w.breaks("every map is taken for fenced"); r.connected && fenced {
		if r.open > 0 {
			return nil, fail(escache.CodeDeviceOpen, "its client is fenced; close it first")
		}
		if !h.w.breaks("a fenced client's map is handed out") {
			h.disconnect(req.VolumeRef, r)
		}
		if h.w.breaks("what was dirty is gone with a fenced client's map") {
			h.w.caches[req.VolumeRef].empty()
		}
	}
	if r.connected {
		if h.w.breaks("a repeated connect is refused") {
			return nil, fail(escache.CodeConnected, "it is connected already")
		}
		if h.w.breaks("a repeated connect maps again") {
			r.client = client
		}
		return answer()
	}
	r.primary = h.w.breaks("a refused connect stays Primary")
	img, err := h.imageFor(req, r)
	if err != nil {
		return nil, err
	}
	r.connected, r.primary, r.client, r.req.ImageID, img.holder = true, true, client, img.id, h.Name
	r.size, r.mode, r.disk = img.size, escache.ModeWriteback, ""
	if h.w.breaks("the device has another size") {
		r.size -= block
	}
	if h.w.breaks("the peer does not learn of a resize") && r.req.Nodes[1].Name == h.Name {
		r.size = r.req.SizeBytes
	} else {
		r.req.SizeBytes = img.size
	}
	if req.Options.Mode != "" && !h.w.breaks("options are ignored") {
		r.mode = req.Options.Mode
	}
	r.options = req.Options.CacheOptions
	if h.w.breaks("data does not move") && r.req.Nodes[1].Name == h.Name {
		img.blocks = map[int64][]byte{}
	}
	return answer()
}

// imageFor returns the image that a replica may be connected to, or the reason against it.
func (h *Host) imageFor(req escache.ConnectRequest, r *replica) (*image, error) {
	img := h.w.image(req.VolumeRef, cmp.Or(req.ImageID, r.req.ImageID), r.req.SizeBytes)
	if img == nil {
		return nil, fail(escache.CodeImageNotFound, "Ceph has no such image")
	}
	for _, id := range []string{req.ImageID, r.req.ImageID} {
		if id != "" && id != img.id && !h.w.breaks("image ids are not compared") {
			return nil, fail(escache.CodeIdentityMismatch, "another image")
		}
	}
	if h.empty(req.VolumeRef, r) && !h.w.breaks("joined copies are declared equal") {
		return nil, fail(escache.CodeOutdated, "it was not filled yet")
	}
	if r.disk == escache.DiskOutdated {
		return nil, fail(escache.CodeOutdated, "the replica here is outdated")
	}
	if r.disk == escache.DiskConsistent {
		return nil, fail(escache.CodeFencingRefused, "nobody confirms that the replica here is current")
	}
	for _, peer := range h.w.Hosts {
		if p := peer.replicas[req.VolumeRef]; peer != h && p != nil && p.connected && !h.w.breaks("two hosts may connect") {
			return nil, fail(escache.CodeConnected, "connected on %s", peer.Name)
		}
	}
	if img.holder != "" && img.holder != h.Name && !h.w.breaks("a lock is no obstacle") && !h.w.breaks("two hosts may connect") {
		return nil, fail(escache.CodeImageInUse, "%s has it", img.holder)
	}
	return img, nil
}
