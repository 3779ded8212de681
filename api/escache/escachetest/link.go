package escachetest

import (
	"cmp"
	"context"
	"fmt"
	"io"
	"slices"

	"github.com/escache/escache-csi/api/escache"
)

// seen is the other host of a replica as DRBD would show it. The hosts of a world are always linked.
func (h *Host) seen(ref escache.VolumeRef, r *replica) []escache.Peer {
	for _, node := range r.req.Nodes {
		for _, other := range h.w.Hosts {
			p := other.replicas[ref]
			if other == h || other.Name != node.Name || p == nil {
				continue
			}
			if p.req.Secret != r.req.Secret && !h.w.breaks("anybody is taken for the peer") {
				return []escache.Peer{{
					Name: node.Name, Address: node.Address, ConnectionState: escache.LinkStandAlone, DiskState: escache.DiskUnknown,
				}}
			}
			peer := escache.Peer{
				Name: node.Name, Address: node.Address, ConnectionState: escache.LinkConnected,
				DiskState: cmp.Or(p.disk, escache.DiskUpToDate), Role: escache.RoleSecondary,
			}
			if p.primary && !h.w.breaks("a peer's role is not told") {
				peer.Role = escache.RolePrimary
			}
			return []escache.Peer{peer}
		}
	}
	return nil
}

// onlyCopy reports whether the peer of a replica has the device and no complete copy of its own.
func (h *Host) onlyCopy(ref escache.VolumeRef, r *replica) bool {
	peers := r.peers
	if peers == nil && !h.w.alone {
		peers = h.seen(ref, r)
	}
	return slices.ContainsFunc(peers, func(p escache.Peer) bool {
		return p.Role == escache.RolePrimary && p.Linked() && p.DiskState != escache.DiskUpToDate
	})
}

// FailDisk makes the disk below a host's replica fail, until it is closed. The replica stays without it.
func (w *World) FailDisk(_ context.Context, ref escache.VolumeRef, host string) (io.Closer, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, h := range w.Hosts {
		if r := h.replicas[ref]; h.Name == host && r != nil {
			r.disk = escache.DiskDiskless
			return closer(func() error { return nil }), nil
		}
	}
	return nil, fmt.Errorf("%s has no replica of %s", host, ref.Image)
}

// inUse reports whether a replica's volume is in use over a link that is up.
func (h *Host) inUse(ref escache.VolumeRef, r *replica) bool {
	for _, other := range h.w.Hosts {
		p := other.replicas[ref]
		if other != h && p != nil && p.req.Secret == r.req.Secret && (p.connected || r.connected) {
			return true
		}
	}
	return false
}

// takesSecret reports whether a replica that keeps its peer takes the secret of a request.
func (h *Host) takesSecret(have *replica, req escache.ReplicaRequest) bool {
	if h.w.breaks("a secret is kept for ever") {
		return false
	}
	return !req.MustExist && (!h.inUse(req.VolumeRef, have) || h.w.breaks("another secret is taken at once"))
}

// takesAddresses reports whether a replica takes these nodes whatever its copy is: they are the same two hosts at
// other addresses, and it has neither the device nor a link.
func (h *Host) takesAddresses(have *replica, nodes []escache.ReplicaNode) bool {
	sameName := func(a, b escache.ReplicaNode) bool { return a.Name == b.Name }
	peers := have.peers
	if peers == nil && !h.w.alone {
		peers = h.seen(have.req.VolumeRef, have)
	}
	return slices.EqualFunc(have.req.Nodes, nodes, sameName) && !have.primary && !slices.ContainsFunc(peers, escache.Peer.Linked)
}

// repeer gives a replica another partner, or new addresses. The partner does not answer yet.
func (h *Host) repeer(r *replica, nodes []escache.ReplicaNode) {
	r.req.Nodes, r.peers = nodes, nil
	for _, node := range nodes {
		if node.Name != h.Name {
			r.peers = append(r.peers, escache.Peer{
				Name: node.Name, Address: node.Address, ConnectionState: escache.LinkWFConnection, DiskState: escache.DiskUnknown,
			})
		}
	}
}
