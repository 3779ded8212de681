package csi_test

import (
	"context"
	"testing"
	"time"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/grpc/codes"
)

// TestTheTextStaysTheSameWhileACacheIsWrittenBack: Kubernetes makes an Event of each different text, and counts
// up those that are the same. How much is left is another number at each try.
func TestTheTextStaysTheSameWhileACacheIsWrittenBack(t *testing.T) {
	for name, begin := range map[string]func(w *world) (node string, try func() error){
		"to attach it": func(w *world) (string, func() error) {
			_, _, survivor, third := w.powerLoss("a")
			w.host(survivor).FlushAtMost(dirtyBytes / 4)
			return survivor, func() error { _, err := w.publish("a", third); return err }
		},
		"to take a snapshot": func(w *world) (string, func() error) {
			v, node := w.connected("a")
			dirty := int64(gib)
			return node, func() error {
				dirty += gib
				w.host(node).Write(ref(v), dirty)
				ctx, cancel := context.WithTimeout(context.Background(), 35*time.Second) // not enough to write back and to hold
				defer cancel()
				_, err := w.service.CreateSnapshot(ctx, &csi.CreateSnapshotRequest{Name: "s", SourceVolumeId: "a"})
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
				wants(t, err, codes.Aborted, "the repeated call goes on")
				status, _ := w.host(node).Volume(ref(w.volume("a")))
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
