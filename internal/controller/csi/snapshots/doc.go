// Package snapshots takes snapshots of volumes and removes them, one by one and in groups. It keeps their
// records, and the images of deleted volumes that still have some. Whoever calls it has the locks of the
// volumes.
package snapshots

import "github.com/escache/escache-csi/internal/controller/volumes"

// Snapshots takes and removes snapshots.
type Snapshots struct {
	*volumes.Steps

	// ImagePrefix begins the names of all snapshots of this Kubernetes cluster.
	ImagePrefix string
}
