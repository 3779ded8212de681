package modification

import (
	"context"
	"log/slog"
	"strings"
	"testing"
	"time"

	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/client-go/tools/events"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/escache/escache-csi/api/v1alpha1"
	"github.com/escache/escache-csi/internal/controller/volumes"
)

// TestWhatAChangeOfTheSizeWaitsForIsTold: once, and after another operation on the volume has ended.
func TestWhatAChangeOfTheSizeWaitsForIsTold(t *testing.T) {
	w := newWorld(t)
	log, recorder := slog.New(slog.DiscardHandler), events.NewFakeRecorder(10)
	r := NewResizeReporter(ResizeConfig{
		Volumes: volumes.NewLocked(volumes.NewSteps(volumes.Config{Cached: w.api, Live: w.api, Log: log, Now: time.Now}), w.locks),
		Events:  recorder, Log: log, Again: time.Second, Longest: time.Minute, Parallel: 1,
	})
	reconcile := func() (again bool) {
		t.Helper()
		result, err := r.Reconcile(context.Background(), ctrl.Request{NamespacedName: client.ObjectKey{Name: "v"}})
		must(t, err)
		return result.RequeueAfter > 0
	}
	wish := func(bytes int64) {
		t.Helper()
		v := w.volume()
		v.Spec.WantedCacheBytes = bytes
		must(t, w.api.Update(t.Context(), v))
	}
	if resizes(w.volume()) {
		t.Error("a volume that nobody changes is looked at")
	}
	wish(5 << 30)
	done, err := w.locks.Begin("v", "something else")
	must(t, err)
	if !resizes(w.volume()) || !reconcile() || len(recorder.Events) > 0 {
		t.Error("it does not wait for the other operation")
	}
	done()
	for range 2 {
		if reconcile() {
			t.Error("it tries again")
		}
	}
	if len(recorder.Events) != 1 {
		t.Fatalf("%d Events", len(recorder.Events))
	}
	if said := <-recorder.Events; !strings.Contains(said, "Normal CacheResizeWaits the cache has 1Gi and is to have 5Gi") || !strings.Contains(said, "n1") {
		t.Errorf("it says %s", said)
	}
	wish(1 << 30) // it is taken back
	if !resizes(w.volume()) || reconcile() || len(recorder.Events) > 0 {
		t.Error("a change that was taken back still waits")
	}
	v := w.volume()
	if meta.FindStatusCondition(v.Status.Conditions, v1alpha1.ConditionCacheResized) != nil || v.Status.Summary.Cache != "1Gi" || resizes(v) {
		t.Errorf("status %+v", v.Status)
	}
}
