package volume

import (
	"github.com/escache/escache-csi/internal/escached/cache"
	"github.com/escache/escache-csi/internal/escached/drbd"
)

// Reading is a volume with what the kernel says of it at one moment.
type Reading struct {
	Volume

	// Replica is DRBD's state of it. Up is false while DRBD does not run it.
	Replica drbd.Status
	Up      bool
	// DiskFailed means that DRBD does not run the replica since its disk failed, or as LVM has not found the disk at the start.
	// The kernel shows no device that has neither disk nor link.
	DiskFailed bool
	// MayGoOnAlone is whether there was a permit to go on without the peer, right before Replica was read.
	MayGoOnAlone bool
	// Device is the assembled cache. Connected is false while there is none.
	Device    cache.State
	Connected bool
}
