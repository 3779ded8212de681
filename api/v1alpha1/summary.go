package v1alpha1

import (
	"math"
	"slices"
	"strconv"
)

// SetDirtyBytes records how much of the volume Ceph has not yet, for code and for people.
func (s *CacheVolumeStatus) SetDirtyBytes(n int64) {
	s.DirtyBytes = n
	s.Summary.Dirty = HumanBytes(n)
}

// IsOutdated reports whether the node's replica is on record as not current.
func (s *CacheVolumeStatus) IsOutdated(node string) bool {
	return slices.Contains(s.Outdated, node)
}

// FlushAttached reports whether the attached node has the volume only to write its cache back, and no pod has it.
func (s *CacheVolumeStatus) FlushAttached() bool {
	return s.AttachedNode != "" && s.FlushEpoch == s.Epoch
}

// HasReplica reports whether the node is one of the volume's two.
func (s *CacheVolumeSpec) HasReplica(node string) bool {
	return slices.Contains(s.Replicas, node)
}

// HumanBytes is n bytes rounded for people: 1536 MiB is "1.5Gi".
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
