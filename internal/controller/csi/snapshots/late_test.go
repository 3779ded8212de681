package snapshots_test

import (
	"context"
	"fmt"
	"sync"
	"testing"

	"google.golang.org/grpc/codes"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"

	"github.com/escache/escache-csi/api/v1alpha1"
	"github.com/escache/escache-csi/internal/controller/volumes"
	"github.com/escache/escache-csi/test/csitest"
)

// slowToRecord gives csi-controller no answer to its first write of a CacheSnapshot's status. late does that write.
func (w *world) slowToRecord() (late func()) {
	w.T.Helper()
	below, ok := w.API.(client.WithWatch)
	if !ok {
		w.T.Fatalf("%T", w.API)
	}
	var kept client.Object
	w.Cached = interceptor.NewClient(below, interceptor.Funcs{
		SubResourceUpdate: func(ctx context.Context, c client.Client, sub string, o client.Object,
			opts ...client.SubResourceUpdateOption) error {
			if snapshot, ok := o.(*v1alpha1.CacheSnapshot); ok && kept == nil {
				kept = snapshot.DeepCopy()
				return csitest.ErrSlow
			}
			return c.SubResource(sub).Update(ctx, o, opts...)
		},
	})
	w.Restart()
	return func() {
		w.T.Helper()
		if kept == nil {
			w.T.Fatal("nothing was written")
		}
		_ = w.API.Status().Update(context.Background(), kept) // the API server may refuse it
	}
}

// TestALateWriteMakesNoSnapshotReadyThatCephDoesNotHave: a call takes a snapshot, and its write that it is taken reaches
// the API server only after the repeated call, which saw none of that, has removed the snapshot.
func TestALateWriteMakesNoSnapshotReadyThatCephDoesNotHave(t *testing.T) {
	for name, tc := range map[string]struct {
		snap   func(w *world) error
		inCeph int
	}{
		"snapshot":       {func(w *world) error { _, err := w.Snap("s", "a"); return err }, 1},
		"group snapshot": {func(w *world) error { _, err := w.SnapGroup("g", "a", "b"); return err }, 2},
	} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t)
			w.Create("a")
			w.Create("b")
			late := w.slowToRecord()
			if err := tc.snap(w); err == nil || len(w.Images.Taken) != tc.inCeph {
				t.Fatalf("the first call: %v, in Ceph: %v", err, w.Images.Taken)
			}
			var mu sync.Mutex
			w.Images.Refusing = func(_ context.Context, ref volumes.SnapshotRef) error {
				mu.Lock()
				defer mu.Unlock()
				delete(w.Images.Taken, ref) // it is to be replaced
				delete(w.Images.TakenAt, ref)
				return fmt.Errorf("the monitors are gone: %w", volumes.ErrUnavailable)
			}
			csitest.Wants(t, tc.snap(w), codes.Unavailable, "monitors")
			late()
			w.Images.Refusing = nil
			csitest.Must(t, tc.snap(w))
			if len(w.Images.Taken) != tc.inCeph {
				t.Errorf("ready, and in Ceph: %v", w.Images.Taken)
			}
		})
	}
}

// TestARepeatedCallLeavesCephAloneUntilNoEarlierWriteCanBeLate: the record may say any moment that the snapshot is taken.
func TestARepeatedCallLeavesCephAloneUntilNoEarlierWriteCanBeLate(t *testing.T) {
	for name, snap := range map[string]func(w *world) error{
		"snapshot":       func(w *world) error { _, err := w.Snap("s", "a"); return err },
		"group snapshot": func(w *world) error { _, err := w.SnapGroup("g", "a", "b"); return err },
	} {
		for then, refused := range map[string]bool{"": false, ", which may not be used": true} {
			t.Run(name+" of a volume"+then, func(t *testing.T) {
				w := newWorld(t)
				w.Create("a")
				w.Create("b")
				late := w.slowToRecord()
				if err := snap(w); err == nil {
					t.Fatal("the first call has an answer")
				}
				taken := len(w.Images.Taken)
				below := w.API.(client.WithWatch)
				w.Cached = interceptor.NewClient(below, interceptor.Funcs{
					Patch: func(context.Context, client.WithWatch, client.Object, client.Patch, ...client.PatchOption) error {
						return csitest.ErrSlow
					},
				})
				w.Restart()
				if refused {
					w.phase("a", v1alpha1.VolumeConflict)
				}
				w.Images.Taking = func(ref volumes.SnapshotRef) { t.Errorf("%s is taken again", ref) }
				csitest.Wants(t, snap(w), codes.Unavailable, csitest.ErrSlow.Error())
				if len(w.Images.Taken) != taken {
					t.Errorf("in Ceph: %v", w.Images.Taken)
				}
				late()
				w.Cached = w.API
				w.Restart()
				csitest.Must(t, snap(w))
			})
		}
	}
}
