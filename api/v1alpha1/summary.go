package v1alpha1

import (
	"math"
	"slices"
	"strconv"
	"strings"

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// SetDirtyBytes sets the dirty bytes, both the number and the text that `kubectl get` shows.
func (s *CacheVolumeStatus) SetDirtyBytes(n int64) {
	s.DirtyBytes = n
	s.Summary.Dirty = HumanBytes(n)
}

// Summarize sets the text that `kubectl get` shows for the list of outdated nodes. Who changes the list calls it.
func (s *CacheVolumeStatus) Summarize() { s.Summary.Outdated = strings.Join(s.Outdated, ",") }

// IsOutdated reports whether the record says that the node's replica is not current.
func (s *CacheVolumeStatus) IsOutdated(node string) bool {
	return slices.Contains(s.Outdated, node)
}

// HostID returns the identity on record of the machine on which the node's replica was created, or
// which has the volume without a cache. It is empty if there is none on record.
func (s *CacheVolumeStatus) HostID(node string) string {
	if s.UncachedAttached() && node == s.AttachedNode {
		return s.Uncached.HostID
	}
	for _, host := range s.Hosts {
		if host.Node == node {
			return host.HostID
		}
	}
	return ""
}

// SetHostID records on which machine the node's replica was created. It reports whether that changes
// the record. An empty id is not recorded.
func (s *CacheVolumeStatus) SetHostID(node, id string) (changed bool) {
	if id == "" || s.HostID(node) == id {
		return false
	}
	s.Hosts = slices.DeleteFunc(s.Hosts, func(host ReplicaHost) bool { return host.Node == node })
	s.Hosts = append(s.Hosts, ReplicaHost{Node: node, HostID: id})
	return true
}

// ModificationPending reports whether the attached node may not have the newest change of the
// volume's mode and options yet. While no node has the volume, or one has it without a cache, there is
// nothing to wait for: the next attachment with a cache begins with it.
func (v *CacheVolume) ModificationPending() bool {
	if v.Spec.Modifications == 0 || v.Status.AttachedNode == "" || v.Status.UncachedAttached() {
		return false
	}
	applied := v.Status.Applied
	return applied == nil || applied.Modification != v.Spec.Modifications || applied.Epoch != v.Status.Epoch
}

// ModificationRefused reports whether the last node that was given the newest change has refused it.
func (v *CacheVolume) ModificationRefused() bool {
	applied := v.Status.Applied
	return applied != nil && applied.Refused && applied.Modification == v.Spec.Modifications
}

// FlushAttached reports whether the volume is attached only for csi-controller's own work, and not for a pod: its cache
// is written back, or it is trimmed.
func (s *CacheVolumeStatus) FlushAttached() bool {
	return s.AttachedNode != "" && s.FlushEpoch == s.Epoch
}

// TrimAttached reports whether a node has the volume only so that its free space is given back to Ceph, without a
// cache and not for a pod.
func (s *CacheVolumeStatus) TrimAttached() bool { return s.FlushAttached() && s.UncachedAttached() }

// UncachedAttached reports whether a node has the volume without a cache: one outside its group, for a pod, or one that
// trims it.
func (s *CacheVolumeStatus) UncachedAttached() bool {
	return s.AttachedNode != "" && s.Uncached != nil && s.Uncached.Epoch == s.Epoch
}

// Faults returns the conditions that say what is wrong with an attached volume, the worst first. It
// returns none for a detached volume, whose conditions may be old.
func (s *CacheVolumeStatus) Faults() []metav1.Condition {
	var faults []metav1.Condition
	for _, kind := range []string{ConditionHealthy, ConditionRedundant, ConditionSynced} {
		c := meta.FindStatusCondition(s.Conditions, kind)
		if s.AttachedNode != "" && c != nil && c.Status == metav1.ConditionFalse {
			faults = append(faults, *c)
		}
	}
	return faults
}

// LeftDirty reports whether the volume is attached nowhere and its cache may hold dirty data.
func (s *CacheVolumeStatus) LeftDirty() bool {
	return s.AttachedNode == "" && s.Authority == AuthorityCache
}

// WithoutPod reports whether no pod has the volume, and its cache may hold dirty data. csi-controller may be
// having it written back.
func (v *CacheVolume) WithoutPod() bool {
	return v.Status.Authority == AuthorityCache && (v.Status.AttachedNode == "" || v.Status.FlushAttached())
}

// SelectsOnNode reports whether a CacheFlush of a node is for the volume: it is attached there or, with
// secondCopies, attached elsewhere and has a replica there. A dirty volume that no pod has is selected if
// one of its current copies is there: whoever takes the host away takes that copy away.
func (s *CacheFlushSpec) SelectsOnNode(v *CacheVolume) bool {
	if v.WithoutPod() {
		return v.Spec.HasReplica(s.Node) && !v.Status.IsOutdated(s.Node)
	}
	at := v.Status.AttachedNode
	return at != "" && (at == s.Node || s.SecondCopies && v.Spec.HasReplica(s.Node))
}

// Moves reports whether a CacheFlush of a node wants the volume's second copy, which is there, on another host.
func (s *CacheFlushSpec) Moves(v *CacheVolume) bool {
	at := v.Status.AttachedNode
	return s.MoveSecondCopies && s.Mode == FlushModeDrain && at != "" && at != s.Node && !v.Status.FlushAttached() &&
		v.Spec.HasReplica(at) && v.Spec.HasReplica(s.Node)
}

// OutdatedWithout returns the outdated nodes except one. It never returns nil, which a patch would
// write as null.
func (s *CacheVolumeStatus) OutdatedWithout(node string) []string {
	return slices.DeleteFunc(append([]string{}, s.Outdated...), func(other string) bool { return other == node })
}

// HasReplica reports whether the node has one of the volume's two replicas.
func (s *CacheVolumeSpec) HasReplica(node string) bool {
	return slices.Contains(s.Replicas, node)
}

// HumanBytes formats n bytes for people: 1536 MiB is "1.5Gi".
func HumanBytes(n int64) string {
	const unit = 1024
	value, name := float64(n), ""
	for _, next := range []string{"Ki", "Mi", "Gi", "Ti", "Pi", "Ei"} {
		if value < unit {
			break
		}
		value, name = value/unit, next
	}
	return strconv.FormatFloat(math.Round(value*10)/10, 'f', -1, 64) + name
}

// BeingReleased reports whether the volume is to be given up and its image kept. Once that has begun,
// there is no way back, whatever the spec says.
func (v *CacheVolume) BeingReleased() bool {
	return v.Spec.Release || v.Status.Phase == VolumeReleasing
}

// BeingMade reports whether the volume's image may not be there, or not be whole.
func (s *CacheVolumeStatus) BeingMade() bool { return s.Phase == "" || s.Phase == VolumePending }

// Groups returns the group of the volume and, while it moves, also the one that it goes to.
func (v *CacheVolume) Groups() []string {
	if m := v.Status.Move; m != nil && m.Group != v.Spec.Group {
		return []string{v.Spec.Group, m.Group}
	}
	return []string{v.Spec.Group}
}

// ToMove reports whether the volume is to go, or goes, to another group.
func (v *CacheVolume) ToMove() bool { return v.Spec.MoveTo != nil || v.Status.Move != nil }
