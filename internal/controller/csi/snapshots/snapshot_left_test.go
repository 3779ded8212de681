package snapshots_test

import (
	"testing"

	"google.golang.org/grpc/codes"

	"github.com/escache/escache-csi/api/escache"
	"github.com/escache/escache-csi/internal/controller/volumes"
	"github.com/escache/escache-csi/test/csitest"
)

// TestASnapshotHasWhatWasWrittenDuringAHoldThatNobodyHasEnded: with the engine log I/O goes on meanwhile. Hosts
// with an older escached only make such a hold longer.
func TestASnapshotHasWhatWasWrittenDuringAHoldThatNobodyHasEnded(t *testing.T) {
	for _, engine := range []string{"writecache", "log"} {
		w := newWorld(t)
		r := csitest.CreateRequest("a")
		r.Parameters["cacheEngine"] = engine
		_, err := w.Service.CreateVolume(t.Context(), r)
		csitest.Must(t, err)
		v := w.Volume("a")
		node := v.Spec.Replicas[0]
		_, err = w.Publish("a", node)
		csitest.Must(t, err)
		host := w.Host(node)
		host.Stage(csitest.Ref(v), "192.0.2.1:0/1", w.Volume("a").Status.Epoch, escache.ModeWriteback)
		host.Break("a second hold has the image of the first")
		w.Images.Taking = func(volumes.SnapshotRef) { host.Stop() } // so it is not released
		_, err = w.Snap("s", "a")
		csitest.Wants(t, err, codes.Unavailable, node)
		host.Restart(t)
		if !host.Held(csitest.Ref(v)) {
			t.Fatalf("%s: it is not held any more", engine)
		}
		if engine == "log" {
			host.Write(csitest.Ref(v), csitest.DirtyBytes)
		}
		dirty := int64(-1)
		w.Images.Taking = func(volumes.SnapshotRef) {
			if status := host.Status(csitest.Ref(v)); status.DirtyBytes != nil && status.HeldUntil != nil {
				dirty = *status.DirtyBytes
			}
		}
		_, err = w.Snap("s2", "a")
		csitest.Must(t, err)
		if dirty != 0 || host.Held(csitest.Ref(v)) {
			t.Errorf("%s: taken with %d bytes dirty; held afterwards: %v", engine, dirty, host.Held(csitest.Ref(v)))
		}
	}
}
