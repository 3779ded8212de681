package snapshots_test

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/grpc/codes"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"

	"github.com/escache/escache-csi/api/v1alpha1"
	"github.com/escache/escache-csi/internal/controller/volumes"
	"github.com/escache/escache-csi/test/csitest"
)

// TestGroupSnapshotsOfTheSameVolumesAtOnce name them in different orders. None waits for another for
// ever, and single snapshots go on, too.
func TestGroupSnapshotsOfTheSameVolumesAtOnce(t *testing.T) {
	w := newWorld(t)
	for _, name := range []string{"a", "b", "c"} {
		w.Create(name)
	}
	orders := [][]string{{"a", "b", "c"}, {"c", "b", "a"}, {"b", "a", "c"}, {"c", "a"}}
	ctx, cancel := context.WithTimeout(t.Context(), 3*time.Minute)
	defer cancel()
	var wait sync.WaitGroup
	for n := range 20 {
		wait.Go(func() {
			_, err := w.Service.CreateVolumeGroupSnapshot(ctx, csitest.GroupRequest(fmt.Sprint("g", n), orders[n%len(orders)]...))
			if err != nil {
				t.Errorf("g%d: %v", n, err)
			}
		})
		wait.Go(func() {
			r := &csi.CreateSnapshotRequest{Name: fmt.Sprint("s", n), SourceVolumeId: orders[n%len(orders)][0]}
			if _, err := w.Service.CreateSnapshot(ctx, r); err != nil {
				t.Errorf("s%d: %v", n, err)
			}
		})
	}
	wait.Wait()
	if len(w.Images.Taken) != 15*3+5*2+20 {
		t.Errorf("%d snapshots", len(w.Images.Taken))
	}
}

var errLost = errors.New("the API server is gone")

// dyingAt makes a service whose writes of CacheSnapshots' status fail from the nth on, as if its
// process had ended there.
func (w *world) dyingAt(n int) {
	withWatch, ok := w.API.(client.WithWatch)
	if !ok {
		w.T.Fatalf("%T", w.API)
	}
	writes := 0
	w.Cached = interceptor.NewClient(withWatch, interceptor.Funcs{
		SubResourceUpdate: func(ctx context.Context, c client.Client, sub string, o client.Object,
			opts ...client.SubResourceUpdateOption) error {
			if _, ok := o.(*v1alpha1.CacheSnapshot); ok {
				if writes++; writes >= n {
					return fmt.Errorf("%w: %w", errLost, volumes.ErrUnavailable)
				}
			}
			return c.SubResource(sub).Update(ctx, o, opts...)
		},
	})
	w.Restart()
}

func TestAGroupSnapshotThatIsOnRecordIsFinished(t *testing.T) {
	w := newWorld(t)
	w.three()
	w.dyingAt(2)
	_, err := w.SnapGroup("g", "a", "b", "c")
	csitest.Wants(t, err, codes.Unavailable, "is gone")
	if len(w.Images.Taken) != 3 {
		t.Fatalf("the group is on record, and in Ceph is %v", w.Images.Taken)
	}
	w.Cached = w.API
	w.Restart()
	w.Images.Taking = func(r volumes.SnapshotRef) { t.Errorf("%s is taken again", r) }
	group, err := w.SnapGroup("g", "a", "b", "c")
	csitest.Must(t, err)
	for _, s := range w.Snapshots() {
		if s.Status.Taken == nil || s.Status.SizeBytes != csitest.GiB {
			t.Errorf("on record: %+v", s.Status)
		}
	}
	if len(group.GetSnapshots()) != 3 {
		t.Errorf("got %v", group)
	}
}

func TestAGroupSnapshotThatIsNotOnRecordIsTakenAgain(t *testing.T) {
	w := newWorld(t)
	w.three()
	w.dyingAt(1)
	_, err := w.SnapGroup("g", "a", "b", "c")
	csitest.Wants(t, err, codes.Unavailable, "is gone")
	csitest.Wants(t, w.Delete("b"), codes.FailedPrecondition, "attached")
	w.Cached = w.API
	w.Restart()
	var mu sync.Mutex
	again := 0
	w.Images.Taking = func(volumes.SnapshotRef) {
		mu.Lock()
		defer mu.Unlock()
		again++
	}
	_, err = w.SnapGroup("g", "a", "b", "c")
	csitest.Must(t, err)
	if again != 3 || len(w.Images.Taken) != 3 {
		t.Errorf("%d taken again, in Ceph %v", again, w.Images.Taken)
	}
}

func TestADeletedGroupSnapshotThatWasInterrupted(t *testing.T) {
	w := newWorld(t)
	w.Create("a")
	w.Create("b")
	group, err := w.SnapGroup("g", "a", "b")
	csitest.Must(t, err)
	w.Images.Fail = fmt.Errorf("the monitors are gone: %w", volumes.ErrUnavailable)
	csitest.Wants(t, w.unsnapGroup("g", idsOf(group)...), codes.Unavailable, "monitors")
	w.Images.Fail = nil
	_, err = w.SnapGroup("g", "a", "b")
	csitest.Wants(t, err, codes.Aborted, "being deleted")
	_, err = w.Service.CreateVolume(t.Context(), csitest.FromSnapshot("x", idsOf(group)[1]))
	csitest.Wants(t, err, codes.Aborted, "deleted")
	csitest.Must(t, w.unsnapGroup("g", idsOf(group)...))
	if len(w.Images.Taken) != 0 || len(w.Snapshots()) != 0 {
		t.Errorf("left: %v, %v", w.Images.Taken, w.Snapshots())
	}
}
