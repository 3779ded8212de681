package hosttest

import (
	"reflect"

	"github.com/escache/escache-csi/api/escache"
)

// repeer gives a replica another partner, as escached does for one that is current.
func (h *Host) repeer(there *replica, request escache.ReplicaRequest) *escache.Problem {
	same := there.request
	same.Nodes = request.Nodes
	if !reflect.DeepEqual(same, request) || there.status.DiskState != escache.DiskUpToDate {
		return problem(escache.CodeReplicaMismatch, "a replica with other parameters is here")
	}
	there.request = request
	there.status.Peers = nil
	for _, node := range request.Nodes {
		if node.Name != h.name {
			there.status.Peers = []escache.Peer{{
				Name: node.Name, Address: node.Address, ConnectionState: escache.LinkWFConnection, DiskState: escache.DiskUnknown,
			}}
		}
	}
	return nil
}

// Sync plays the copy of a volume from here to the partner; at 100 percent it is current.
func (h *Host) Sync(volume escache.VolumeRef, percent float64) {
	h.change(volume, func(s *escache.VolumeStatus) {
		s.SyncedPercent = percent
		for i := range s.Peers {
			s.Peers[i].ConnectionState, s.Peers[i].DiskState = escache.LinkSyncSource, escache.DiskInconsistent
			if percent >= 100 {
				s.Peers[i].ConnectionState, s.Peers[i].DiskState = escache.LinkConnected, escache.DiskUpToDate
			}
		}
	})
}

// Partner is who the replica's partner is; empty until it was changed.
func (h *Host) Partner(volume escache.VolumeRef) string {
	h.mu.Lock()
	defer h.mu.Unlock()
	if r := h.replicas[volume]; r != nil && len(r.status.Peers) > 0 {
		return r.status.Peers[0].Name
	}
	return ""
}

// SetEpoch is what the host says of which attachment its device is.
func (h *Host) SetEpoch(volume escache.VolumeRef, epoch int64) {
	h.change(volume, func(s *escache.VolumeStatus) { s.Epoch = epoch })
}
