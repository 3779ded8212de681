package engine

import (
	"math"
	"testing"

	"github.com/escache/escache-csi/api/escache"
	"github.com/escache/escache-csi/internal/escached/volume"
)

// TestAVolumeWhoseTagsCannotBeReadIsNotAbsent: a later escached may have written them, or somebody
// has changed them. Its device may be there all the same.
func TestAVolumeWhoseTagsCannotBeReadIsNotAbsent(t *testing.T) {
	for name, change := range map[string]func(tags map[string]string){
		"of a later version":     func(tags map[string]string) { tags["v"] = "3" },
		"without an epoch":       func(tags map[string]string) { delete(tags, "epoch") },
		"without pool and image": func(tags map[string]string) { delete(tags, "pool"); delete(tags, "image") },
	} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t)
			if err := w.engine().PutReplica(t.Context(), putReq); err != nil {
				t.Fatal(err)
			}
			change(w.lvs[volume.NameOf(ref)].Tags)
			e := w.engine()
			if err := e.Recover(t.Context()); err != nil {
				t.Fatal(err)
			}
			one, err := e.Status(t.Context(), &ref)
			if err != nil {
				t.Fatal(err)
			}
			if s := one.Volumes[0]; s.VolumeRef != ref || s.State != escache.StateError || s.Error == nil || s.SyncedPercent != 0 || s.DirtyBytes != nil {
				t.Errorf("asked for it: %+v", s)
			}
			all, err := e.Status(t.Context(), nil)
			if err != nil {
				t.Fatal(err)
			}
			if named := name != "without pool and image"; named && (len(all.Volumes) != 1 || all.Volumes[0].State != escache.StateError) {
				t.Errorf("asked for all: %+v", all.Volumes)
			}
			if n, err := e.Node(t.Context()); err != nil || n.Healthy || len(n.Reasons) != 1 {
				t.Errorf("the host: %+v, %v", n, err)
			}
			if err := e.PutReplica(t.Context(), putReq); err == nil {
				t.Error("laid over it")
			}
			if err := e.DeleteReplica(t.Context(), ref, new(int64(math.MaxInt64))); err == nil {
				t.Error("deleted, and nobody knows what it is")
			}
			if _, there := w.lvs[volume.NameOf(ref)]; !there {
				t.Error("its LV is gone")
			}
		})
	}
}
