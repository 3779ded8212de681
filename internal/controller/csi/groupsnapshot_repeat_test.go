package csi_test

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
)

// TestGroupSnapshotsOfTheSameVolumesAtOnce name them in different orders. None waits for another for
// ever, and single snapshots go on, too.
func TestGroupSnapshotsOfTheSameVolumesAtOnce(t *testing.T) {
	w := newWorld(t)
	for _, name := range []string{"a", "b", "c"} {
		w.create(name)
	}
	orders := [][]string{{"a", "b", "c"}, {"c", "b", "a"}, {"b", "a", "c"}, {"c", "a"}}
	ctx, cancel := context.WithTimeout(t.Context(), 3*time.Minute)
	defer cancel()
	var wait sync.WaitGroup
	for n := range 20 {
		wait.Go(func() {
			_, err := w.service.CreateVolumeGroupSnapshot(ctx, groupRequest(fmt.Sprint("g", n), orders[n%len(orders)]...))
			if err != nil {
				t.Errorf("g%d: %v", n, err)
			}
		})
		wait.Go(func() {
			r := &csi.CreateSnapshotRequest{Name: fmt.Sprint("s", n), SourceVolumeId: orders[n%len(orders)][0]}
			if _, err := w.service.CreateSnapshot(ctx, r); err != nil {
				t.Errorf("s%d: %v", n, err)
			}
		})
	}
	wait.Wait()
	if len(w.images.taken) != 15*3+5*2+20 {
		t.Errorf("%d snapshots", len(w.images.taken))
	}
}

var errLost = errors.New("the API server is gone")

// dyingAt makes a service whose writes of CacheSnapshots' status fail from the nth on, as if its
// process had ended there.
func (w *world) dyingAt(n int) {
	withWatch, ok := w.api.(client.WithWatch)
	if !ok {
		w.t.Fatalf("%T", w.api)
	}
	writes := 0
	w.cached = interceptor.NewClient(withWatch, interceptor.Funcs{
		SubResourceUpdate: func(ctx context.Context, c client.Client, sub string, o client.Object, opts ...client.SubResourceUpdateOption) error {
			if _, ok := o.(*v1alpha1.CacheSnapshot); ok {
				if writes++; writes >= n {
					return fmt.Errorf("%w: %w", errLost, volumes.ErrUnavailable)
				}
			}
			return c.SubResource(sub).Update(ctx, o, opts...)
		},
	})
	w.restart()
}

func TestAGroupSnapshotThatIsOnRecordIsFinished(t *testing.T) {
	w := newWorld(t)
	w.three()
	w.dyingAt(2)
	_, err := w.snapGroup("g", "a", "b", "c")
	wants(t, err, codes.Unavailable, "is gone")
	if len(w.images.taken) != 3 {
		t.Fatalf("the group is on record, and in Ceph is %v", w.images.taken)
	}
	w.cached = w.api
	w.restart()
	w.images.taking = func(r volumes.SnapshotRef) { t.Errorf("%s is taken again", r) }
	group, err := w.snapGroup("g", "a", "b", "c")
	must(t, err)
	for _, s := range w.snapshots() {
		if s.Status.Taken == nil || s.Status.SizeBytes != gib {
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
	_, err := w.snapGroup("g", "a", "b", "c")
	wants(t, err, codes.Unavailable, "is gone")
	wants(t, w.delete("b"), codes.FailedPrecondition, "attached")
	w.cached = w.api
	w.restart()
	var mu sync.Mutex
	again := 0
	w.images.taking = func(volumes.SnapshotRef) {
		mu.Lock()
		defer mu.Unlock()
		again++
	}
	_, err = w.snapGroup("g", "a", "b", "c")
	must(t, err)
	if again != 3 || len(w.images.taken) != 3 {
		t.Errorf("%d taken again, in Ceph %v", again, w.images.taken)
	}
}

func TestADeletedGroupSnapshotThatWasInterrupted(t *testing.T) {
	w := newWorld(t)
	w.create("a")
	w.create("b")
	group, err := w.snapGroup("g", "a", "b")
	must(t, err)
	w.images.fail = fmt.Errorf("the monitors are gone: %w", volumes.ErrUnavailable)
	wants(t, w.unsnapGroup("g", idsOf(group)...), codes.Unavailable, "monitors")
	w.images.fail = nil
	_, err = w.snapGroup("g", "a", "b")
	wants(t, err, codes.Aborted, "being deleted")
	_, err = w.service.CreateVolume(t.Context(), fromSnapshot("x", idsOf(group)[1]))
	wants(t, err, codes.Aborted, "deleted")
	must(t, w.unsnapGroup("g", idsOf(group)...))
	if len(w.images.taken) != 0 || len(w.snapshots()) != 0 {
		t.Errorf("left: %v, %v", w.images.taken, w.snapshots())
	}
}
