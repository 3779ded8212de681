package v1alpha1

import "cmp"

// AppliedModification is the newest change that a node has, or has refused. Another attachment begins
// with the newest change, and confirms it here.
type AppliedModification struct {
	// Modification is the value of spec.modifications that it has.
	Modification int64 `json:"modification,omitempty"`
	// Epoch is the attachment that has it.
	Epoch int64 `json:"epoch,omitempty"`
	// Refused is set if the node's escached does not take these values. They are not tried again in
	// this attachment.
	Refused bool `json:"refused,omitempty"`
}

// FinalCacheBytes is the size of the cache once nothing is to change any more.
func (s *CacheVolumeSpec) FinalCacheBytes() int64 { return cmp.Or(s.WantedCacheBytes, s.CacheBytes) }

// ReservedCacheBytes is the room that the cache takes on each of its hosts: the larger of the size that
// it has and the one that it is to get.
func (s *CacheVolumeSpec) ReservedCacheBytes() int64 { return max(s.WantedCacheBytes, s.CacheBytes) }

// CacheText is the size of the cache for people, and the size that it is to get if that is another one.
func (s *CacheVolumeSpec) CacheText() string {
	if !s.CacheToResize() {
		return HumanBytes(s.CacheBytes)
	}
	return HumanBytes(s.CacheBytes) + " (" + HumanBytes(s.WantedCacheBytes) + " wanted)"
}

// CacheToResize reports whether the cache is to get another size than it has.
func (s *CacheVolumeSpec) CacheToResize() bool { return s.FinalCacheBytes() != s.CacheBytes }
