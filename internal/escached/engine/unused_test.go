package engine

import (
	"testing"

	"github.com/escache/escache-csi/api/escache"
	"github.com/escache/escache-csi/internal/escached/drbd"
)

// The second host was lost before the volume was connected for the first time. DRBD calls the copy Inconsistent, as it
// does a half filled one.
func TestAReplicaThatWasNeverUsedHasNothingDirty(t *testing.T) {
	bothNew := linked(drbd.Connected, drbd.Inconsistent)
	bothNew.PeerDisk = drbd.Inconsistent
	for name, tc := range map[string]struct {
		status drbd.Status
		change func(*world)
		clean  bool
	}{
		"never used":              {cut(drbd.Inconsistent), func(*world) {}, true},
		"never used, and linked":  {bothNew, func(*world) {}, true},
		"about to be filled":      {linked("SyncTarget", drbd.Inconsistent), func(*world) {}, false},
		"half filled":             {cut(drbd.Inconsistent), func(w *world) { copy(w.blocks("/dev/drbd100"), "part of a resync") }, false},
		"not known to be current": {cut(drbd.Consistent), func(*world) {}, false},
		"outdated":                {cut(drbd.Outdated), func(*world) {}, false},
	} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t)
			e := w.engine()
			if err := e.PutReplica(t.Context(), putReq); err != nil {
				t.Fatal(err)
			}
			w.minors[putReq.Minor] = tc.status
			tc.change(w)
			all, err := e.Status(t.Context(), &ref)
			if err != nil {
				t.Fatal(err)
			}
			s := all.Volumes[0]
			if clean := s.DirtyBytes != nil && *s.DirtyBytes == 0; clean != tc.clean {
				t.Errorf("dirty: %v, disk %s", s.DirtyBytes, s.DiskState)
			}
			if s.State != escache.StateStandby {
				t.Errorf("state %s", s.State)
			}
		})
	}
}
