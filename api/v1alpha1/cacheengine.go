package v1alpha1

import "cmp"

// CacheEngine is the way in which a volume's cache is built, and the format of its disks.
//
// +kubebuilder:validation:Enum=writecache;log
type CacheEngine string

// Engines of a cache, the same as in the escache HTTP API.
const (
	CacheEngineWritecache CacheEngine = "writecache"
	// CacheEngineLog is experimental.
	CacheEngineLog CacheEngine = "log"
)

// Recorded returns what a record has for the engine: nothing for writecache. A csi-controller that does
// not know the field would take it away with its next change, and the API server would refuse that.
func (e CacheEngine) Recorded() CacheEngine {
	if e == CacheEngineWritecache {
		return ""
	}
	return e
}

// Engine returns the engine of the cache, also of a volume whose record does not name it.
func (s *CacheVolumeSpec) Engine() CacheEngine { return cmp.Or(s.CacheEngine, CacheEngineWritecache) }
