package engine

import (
	"github.com/escache/escache-csi/internal/escached/cache/log/memory"
	"github.com/escache/escache-csi/internal/escached/cache/log/resident"
)

// Memory implements cache.Engine: the process may use this much, and the memory that outlives it is beside that.
func (*Engine) Memory(diskBytes int64) int64 {
	if diskBytes <= 0 {
		return 0
	}
	return resident.Bound(diskBytes) + memory.Bytes
}
