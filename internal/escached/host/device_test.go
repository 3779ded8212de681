package host

import (
	"fmt"
	"os"
	"testing"

	"golang.org/x/sync/errgroup"

	"github.com/escache/escache-csi/api/escache"
	"github.com/escache/escache-csi/internal/escached"
	"github.com/escache/escache-csi/internal/escached/volume"
)

// Two volumes of one pool come and go at the same time. The last link that goes takes the pool's
// directory with it, and must not take it away below a link that is just being made.
func TestLinksOfAPoolComeAndGoSideBySide(t *testing.T) {
	h := &Host{Config: escached.Config{DeviceDir: t.TempDir()}}
	var g errgroup.Group
	for i := range 2 {
		v := volume.Volume{VolumeRef: escache.VolumeRef{Pool: "rbd", Image: fmt.Sprintf("image-%d", i)}}
		g.Go(func() error {
			for range 2000 {
				link, err := h.Link(v, "/dev/mapper/"+v.Name())
				if err != nil {
					return err
				}
				if _, err := os.Lstat(link); err != nil {
					return err
				}
				if err := h.Unlink(v); err != nil {
					return err
				}
			}
			return nil
		})
	}
	if err := g.Wait(); err != nil {
		t.Error(err)
	}
}
