package csi_test

import (
	"testing"

	"google.golang.org/grpc/codes"

	"github.com/escache/escache-csi/api/escache"
	"github.com/escache/escache-csi/internal/controller/volumes"
)

// TestASnapshotHasWhatWasWrittenDuringAHoldThatNobodyHasEnded: with the engine log I/O goes on meanwhile. Hosts
// with an older escached only make such a hold longer.
func TestASnapshotHasWhatWasWrittenDuringAHoldThatNobodyHasEnded(t *testing.T) {
	for _, engine := range []string{"writecache", "log"} {
		w := newWorld(t)
		r := createRequest("a")
		r.Parameters["cacheEngine"] = engine
		_, err := w.service.CreateVolume(t.Context(), r)
		must(t, err)
		v := w.volume("a")
		node := v.Spec.Replicas[0]
		_, err = w.publish("a", node)
		must(t, err)
		host := w.host(node)
		host.Stage(ref(v), "192.0.2.1:0/1", w.volume("a").Status.Epoch, escache.ModeWriteback)
		host.Break("a second hold has the image of the first")
		w.images.taking = func(volumes.SnapshotRef) { host.Stop() } // so it is not released
		_, err = w.snap("s", "a")
		wants(t, err, codes.Unavailable, node)
		host.Restart(t)
		if !host.Held(ref(v)) {
			t.Fatalf("%s: it is not held any more", engine)
		}
		if engine == "log" {
			host.Write(ref(v), dirtyBytes)
		}
		dirty := int64(-1)
		w.images.taking = func(volumes.SnapshotRef) {
			if status, _ := host.Volume(ref(v)); status.DirtyBytes != nil && status.HeldUntil != nil {
				dirty = *status.DirtyBytes
			}
		}
		_, err = w.snap("s2", "a")
		must(t, err)
		if dirty != 0 || host.Held(ref(v)) {
			t.Errorf("%s: taken with %d bytes dirty; held afterwards: %v", engine, dirty, host.Held(ref(v)))
		}
	}
}
