package authority

import (
	"github.com/escache/escache-csi/api/escache"
	"github.com/escache/escache-csi/api/v1alpha1"
)

// CopyLoss is what a replica's own host, or its peer, proves of a copy that does not come back by itself.
type CopyLoss string

// Losses.
const (
	// NoLoss: nothing is proven. The copy may be catching up.
	NoLoss CopyLoss = ""
	// DiskLost: the disk below the replica has failed.
	DiskLost CopyLoss = "disk lost"
	// OtherMachine: the host has other disks than those on which the replica was created, and no replica.
	OtherMachine CopyLoss = "other machine"
	// ReplicaGone: the host has the same disks, and no replica on them.
	ReplicaGone CopyLoss = "replica gone"
)

// Answer is what escached on a host has said of a volume, or the error that came instead.
type Answer struct {
	Status escache.VolumeStatus
	Err    error
}

// Unlinked reports whether the holder answers that its copy is current and that it is not linked to the
// peer.
func Unlinked(holder Report, peer string) bool {
	for _, p := range holder.status.Peers {
		if p.Name == peer {
			return holder.known && holder.status.DiskState == escache.DiskUpToDate && !p.Linked()
		}
	}
	return false
}

// WorksOnItsOwn reports whether the holder writes to its own disk, which is current.
func WorksOnItsOwn(holder Report) bool {
	return holder.known && holder.status.Role == escache.RolePrimary && holder.status.DiskState == escache.DiskUpToDate
}

// CopyLossOf judges a copy on a node that is on record as outdated, by what its host says and by what the
// holder says of it. What is not said, or not by the host that was asked, proves nothing. A copy that
// is counted is never lost: its host may be wrong, and it may hold the truth.
func CopyLossOf(v *v1alpha1.CacheVolume, node string, own Answer, holder Report) CopyLoss {
	if !v.Status.IsOutdated(node) {
		return NoLoss
	}
	// While the link is up, the peer has brought up whatever it has.
	for _, p := range holder.status.Peers {
		if holder.known && p.Name == node && p.ConnectionState == escache.LinkConnected && p.DiskState.Lost() {
			return DiskLost
		}
	}
	if neverMade(v, node, own) {
		return ReplicaGone
	}
	return StandbyLossOf(v, node, own)
}

// neverMade reports whether a host answers that it has nothing of a volume whose new copy it was to get, and was lost before it
// had created that. The record does not know the host's disks then. It does not matter which machine that is: the copy does not count.
// While the copy is being made, that is the next step.
func neverMade(v *v1alpha1.CacheVolume, node string, own Answer) bool {
	repair := v.Status.Repair
	return repair != nil && repair.Lost == node && repair.Substitute == "" && v.Status.HostID(node) == "" && absent(v, node, own)
}

// absent reports whether a host says that it has nothing of a volume.
func absent(v *v1alpha1.CacheVolume, node string, own Answer) bool {
	s := own.Status
	return own.Err == nil && s.State == escache.StateAbsent && s.Node == node && s.HostID != "" && s.Epoch <= v.Status.Epoch &&
		s.ClientAddress == "" && s.Device == ""
}

// StandbyLossOf judges a copy of a volume that no pod has, by what its own host says. The record may count the
// copy, and the host may be wrong. So the answer is a reason to have another copy written back, and none to
// replace this one or to drop it.
func StandbyLossOf(v *v1alpha1.CacheVolume, node string, own Answer) CopyLoss {
	if r := Heard(v, node, own.Status, own.Err); r.known && r.status.DiskState.Lost() {
		return DiskLost
	}
	return absenceOf(v, node, own)
}

// absenceOf judges what a host says that has nothing of the volume.
func absenceOf(v *v1alpha1.CacheVolume, node string, own Answer) CopyLoss {
	switch id := v.Status.HostID(node); {
	case id == "" || !absent(v, node, own):
		return NoLoss
	case own.Status.HostID != id:
		return OtherMachine
	default:
		return ReplicaGone
	}
}
