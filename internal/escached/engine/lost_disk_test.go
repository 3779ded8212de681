package engine

import (
	"strings"
	"testing"

	"github.com/escache/escache-csi/api/escache"
	"github.com/escache/escache-csi/internal/escached/faileddisk"
	"github.com/escache/escache-csi/internal/escached/volume"
)

// TestADiskThatWasLostWhileTheHostWasOffIsAFailedDisk: one of several disks of the volume group. csi-controller replaces
// a copy at once only if its host says that the disk has failed.
func TestADiskThatWasLostWhileTheHostWasOffIsAFailedDisk(t *testing.T) {
	name := volume.NameOf(ref)
	for what, c := range map[string]struct {
		partial, active, fails bool
	}{
		"on the lost disk":                 {partial: true, fails: true},
		"on another disk":                  {},
		"on a disk that works without LVM": {partial: true, active: true},
	} {
		w := booted(t)
		w.takenOver(3)
		w.missingDisks = 1
		lv := w.lvs[name]
		lv.Partial, lv.Active = c.partial, c.active
		w.lvs[name] = lv
		if c.fails {
			w.notActivated = name // LVM refuses to activate a part of a volume
		}
		e := w.engine()
		if err := e.Recover(t.Context()); err != nil {
			t.Fatal(what, err)
		}
		status, err := e.Status(t.Context(), &ref)
		if err != nil || len(status.Volumes) != 1 {
			t.Fatal(what, status, err)
		}
		s := status.Volumes[0]
		told := s.DiskState.Lost() && s.State == escache.StateError && s.Error.Code == escache.CodeCacheError
		if told != c.fails || (e.FailedDisks.Get(name) != faileddisk.Sound) != c.fails {
			t.Errorf("%s: %+v, error %+v, mark %q", what, s, s.Error, e.FailedDisks.Get(name))
		}
		n, _ := e.Node(t.Context())
		if n.Healthy || !strings.Contains(strings.Join(n.Reasons, " "), "vgreduce --removemissing --force escache") {
			t.Errorf("%s: the host tells no remedy: %q", what, n.Reasons)
		}
	}
}
