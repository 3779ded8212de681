package attachment_test

import (
	"context"
	"testing"
	"time"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/grpc/codes"

	"github.com/escache/escache-csi/test/csitest"
)

// TestTheTextStaysTheSameWhileACacheIsWrittenBack: Kubernetes makes an Event of each different text, and counts
// up those that are the same. How much is left is another number at each try.
func TestTheTextStaysTheSameWhileACacheIsWrittenBack(t *testing.T) {
	for name, begin := range map[string]func(w *world) (node string, try func() error){
		"to attach it": func(w *world) (string, func() error) {
			_, _, survivor, third := w.PowerLoss("a")
			w.Host(survivor).FlushAtMost(csitest.DirtyBytes / 4)
			return survivor, func() error { _, err := w.Publish("a", third); return err }
		},
		"to take a snapshot": func(w *world) (string, func() error) {
			v, node := w.Connected("a")
			dirty := int64(csitest.GiB)
			return node, func() error {
				dirty += csitest.GiB
				w.Host(node).Write(csitest.Ref(v), dirty)
				ctx, cancel := context.WithTimeout(context.Background(), 35*time.Second) // not enough to write back and to hold
				defer cancel()
				_, err := w.Service.CreateSnapshot(ctx, &csi.CreateSnapshotRequest{Name: "s", SourceVolumeId: "a"})
				return err
			}
		},
	} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t)
			node, try := begin(w)
			var texts [2]string
			var left [2]int64
			for i := range texts {
				err := try()
				csitest.Wants(t, err, codes.Aborted, "the repeated call goes on")
				status := w.Host(node).Status(csitest.Ref(w.Volume("a")))
				texts[i], left[i] = err.Error(), *status.DirtyBytes
			}
			if left[0] == left[1] {
				t.Fatalf("%d bytes are left after both tries", left[0])
			}
			if texts[0] != texts[1] {
				t.Errorf("with %d bytes left %q, with %d %q", left[0], texts[0], left[1], texts[1])
			}
		})
	}
}
