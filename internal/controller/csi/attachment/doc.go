// Package attachment gives a volume to a node and takes it away: it decides by the rules of the package
// authority, and has the package volumes do each step. Whoever calls it has the volume's lock.
package attachment

import "github.com/escache/escache-csi/internal/controller/volumes"

// Attacher attaches and detaches volumes.
type Attacher struct{ *volumes.Steps }
