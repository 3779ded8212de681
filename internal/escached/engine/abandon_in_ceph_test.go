package engine

import (
	"testing"

	"github.com/escache/escache-csi/api/escache"
	"github.com/escache/escache-csi/internal/escached/cache"
	"github.com/escache/escache-csi/internal/escached/drbd"
	"github.com/escache/escache-csi/internal/escached/volume"
)

// drained is a host with the device of epoch 2, which writes through and was taken from it, and a record
// that says that Ceph has everything. Its peer is lost.
func drained(t *testing.T) (*world, *Engine) {
	t.Helper()
	w, e := cutOff(t)
	w.caches.Alter(volume.NameOf(ref), func(s *cache.State) { s.Options.Mode = cache.Writethrough })
	w.record.Outdated, w.record.InCeph = nil, true
	return w, e
}

// TestADeviceIsGivenUpIfCephHasEverything: then this copy is not the only one, whatever the record says of
// the replicas.
func TestADeviceIsGivenUpIfCephHasEverything(t *testing.T) {
	filled := func(w *world) {
		st := linked("SyncSource", drbd.UpToDate)
		st.Role, st.PeerDisk = drbd.Primary, drbd.Inconsistent
		w.minors[100], w.record.Outdated = st, []string{"n2"}
	}
	for name, c := range map[string]struct {
		change func(w *world)
		epoch  int64
		want   escache.Code
	}{
		"its partner has it":            {func(*world) {}, 3, ""},
		"a third node has it":           {func(w *world) { w.record.AttachedNode = "n3" }, 3, ""},
		"detached in this epoch":        {func(w *world) { w.record.AttachedNode, w.record.Epoch = "", 2 }, 2, ""},
		"asked with the epoch before":   {func(*world) {}, 2, ""},
		"no replicas on record":         {func(w *world) { w.record.Replicas = nil }, 3, ""},
		"its peer is linked, and empty": {filled, 3, ""},
		"it is this node's again":       {func(w *world) { w.record.AttachedNode = "n1" }, 3, escache.CodeNotSuperseded},
		"another node's in this epoch":  {func(w *world) { w.record.Epoch = 2 }, 2, escache.CodeNotSuperseded},
		"an older epoch":                {func(*world) {}, 1, escache.CodeNotSuperseded},
		"newer than the record":         {func(*world) {}, 4, escache.CodeNotSuperseded},
		"another image":                 {func(w *world) { w.record.ImageID = "20cd" }, 3, escache.CodeNotSuperseded},
		"no answer":                     {func(w *world) { w.recordErr = errNoRecord }, 3, escache.CodeNotSuperseded},
		"Ceph does not have everything": {func(w *world) { w.record.InCeph = false }, 3, escache.CodeNotSuperseded},
		"its cache writes back: the record was set back": {func(w *world) {
			w.caches.Alter(volume.NameOf(ref), func(s *cache.State) { s.Options.Mode = cache.Writeback })
		}, 3, escache.CodeNotSuperseded},
	} {
		w, e := drained(t)
		c.change(w)
		steps := len(w.steps)
		err := abandon(e, c.epoch)
		switch {
		case code(err) != c.want:
			t.Errorf("%s: got %v, want %q", name, err, c.want)
		case c.want != "" && len(w.steps) != steps:
			t.Errorf("%s: a refusal changes nothing, but there was %q", name, w.steps[steps:])
		case c.want == "" && (len(w.maps)+w.connected() > 0 || w.minors[100].Disk != drbd.Outdated || w.minors[100].Role != drbd.Secondary):
			t.Errorf("%s: left: %q, %+v", name, w.left(), w.minors[100])
		}
	}
}
