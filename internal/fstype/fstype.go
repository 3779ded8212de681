// Package fstype names the filesystems that volumes can have. csi-controller refuses others when a
// volume is made, csi-node when it is staged.
package fstype

import (
	"errors"
	"fmt"
)

// Filesystem types that can be made and mounted.
const (
	Ext4 = "ext4"
	XFS  = "xfs"
)

// MinXFSBytes is the smallest size for which mkfs.xfs makes a filesystem, 300 MiB.
const MinXFSBytes = 300 << 20

// ErrUnknown means that the driver does not support this filesystem type.
var ErrUnknown = errors.New("unknown filesystem type")

// Known returns ErrUnknown unless a filesystem of this type can be made and mounted.
func Known(name string) error {
	if name == Ext4 || name == XFS {
		return nil
	}
	return fmt.Errorf("%w %q: this driver makes %s and %s", ErrUnknown, name, Ext4, XFS)
}
