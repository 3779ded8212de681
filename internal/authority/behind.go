package authority

import (
	"fmt"

	"github.com/escache/escache-csi/api/v1alpha1"
)

// Noted is what an image's metadata says of the last attachment of its volume.
type Noted struct {
	Volume string
	Epoch  int64
	// Node is the one that had the volume then. It is for people only.
	Node string
}

// NotBehind returns an error if the image was attached later than the record speaks of: the record was set
// back, for example by restoring an old etcd. What another volume has noted says nothing. The error wraps
// ErrRecordBehind.
func NotBehind(v *v1alpha1.CacheVolume, image Noted) error {
	if image.Epoch > v.Status.Epoch && image.Volume == v.Name {
		return fmt.Errorf("volume %s: %w: its image's metadata has epoch %d of node %q, the record says %d",
			v.Name, ErrRecordBehind, image.Epoch, image.Node, v.Status.Epoch)
	}
	return nil
}
