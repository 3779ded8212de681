//go:build e2e

package operators

import (
	"context"
	"errors"
	"log/slog"
	"os"
	"strings"
	"sync"
	"testing"
	"time"

	"k8s.io/client-go/tools/clientcmd"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/config"
	"sigs.k8s.io/controller-runtime/pkg/manager"
	metricsserver "sigs.k8s.io/controller-runtime/pkg/metrics/server"

	"github.com/escache/escache-csi/internal/controller/cacheflush"
	"github.com/escache/escache-csi/internal/controller/drain"
	"github.com/escache/escache-csi/internal/controller/hosts"
	"github.com/escache/escache-csi/internal/controller/linkkey"
	"github.com/escache/escache-csi/internal/controller/move"
	"github.com/escache/escache-csi/internal/controller/nodegroup"
	"github.com/escache/escache-csi/internal/controller/repair"
	"github.com/escache/escache-csi/internal/controller/reservation"
	"github.com/escache/escache-csi/internal/controller/volumes"
	"github.com/escache/escache-csi/internal/operation"
)

// lead starts the controllers that these commands ask for something, with the policy that is csi-controller's default: those of
// flushes, groups, repairs and moves.
func (w *world) lead(t *testing.T) {
	t.Helper()
	rest, err := clientcmd.BuildConfigFromFlags("", w.kube.Kubeconfig())
	must(t, err)
	m, err := ctrl.NewManager(rest, ctrl.Options{
		Scheme: w.api.Scheme(), Metrics: metricsserver.Options{BindAddress: "0"}, Controller: config.Controller{SkipNameValidation: new(true)},
	})
	must(t, err)
	logger := slog.New(slog.NewTextHandler(os.Stderr, &slog.HandlerOptions{Level: slog.LevelWarn}))
	h := hosts.New(m.GetClient(), m.GetAPIReader(), hosts.Options{Port: w.fleet.Port, Log: logger})
	locks := operation.NewLocks(time.Now)
	events := m.GetEventRecorder("test")
	book := reservation.NewBook(reservation.Slots{
		Ports: reservation.Range{First: 7800, Last: 8799}, Minors: reservation.Range{First: 100, Last: 1099},
	})
	guard := nodegroup.NewGuard(m.GetClient(), m.GetAPIReader(), book)
	links, err := linkkey.New("the test's", []byte(strings.Repeat("k", 32)))
	must(t, err)
	noted := &images{}
	locked := volumes.NewLocked(volumes.NewSteps(volumes.Config{
		Cached: m.GetClient(), Live: m.GetAPIReader(), Images: noted, Hosts: h, Book: book, Groups: guard, Links: links, Events: events,
		Log: logger, Now: time.Now,
	}), locks)
	drainer := drain.New(drain.Config{Client: m.GetClient(), Live: m.GetAPIReader(), Hosts: h, Locks: locks, Now: time.Now})
	must(t, m.Add(manager.RunnableFunc(func(ctx context.Context) error {
		return errors.Join(nodegroup.Follow(ctx, m.GetCache(), book), nodegroup.Rebuild(ctx, m.GetAPIReader(), book))
	})))
	must(t, cacheflush.New(cacheflush.Config{
		Client: m.GetClient(), Live: m.GetAPIReader(), Hosts: h, Events: events, Log: logger, Now: time.Now,
		Flusher: locked, Drain: drainer,
		Pass: 2 * time.Second, Verify: 3 * time.Second, Parallel: 4, Volumes: 16,
	}).SetupWithManager(m))
	must(t, nodegroup.New(nodegroup.Config{
		Client: m.GetClient(), Live: m.GetAPIReader(), Hosts: h, Locks: locks, Events: events, Log: logger, Now: time.Now,
		Book: book, Guard: guard, Images: noted,
		Poll: time.Second, Patience: 4 * time.Second, Quiet: time.Second, Parallel: 1,
	}).SetupWithManager(m))
	must(t, move.New(move.Config{
		Client: m.GetClient(), Live: m.GetAPIReader(), Volumes: locked, Events: events, Log: logger,
		Again: time.Second, Soon: 200 * time.Millisecond, Seldom: 5 * time.Second, Longest: time.Minute, Parallel: 4,
	}).SetupWithManager(m))
	must(t, m.Add(repair.New(repair.Config{
		Policy: repair.Policy{After: 15 * time.Minute, Drain: true, Patience: 2 * time.Minute, Parallel: 4},
		Client: m.GetClient(), Live: m.GetAPIReader(), Volumes: locked, Drainer: drainer, Hosts: h, Locks: locks, Events: events, Log: logger,
		Now: time.Now, Every: time.Second, Longest: time.Minute, Ask: time.Second,
	})))
	ctx, stop := context.WithCancel(context.Background())
	w.stop, w.ended = stop, make(chan struct{})
	go func() {
		defer close(w.ended)
		if err := m.Start(ctx); err != nil {
			w.root.Error(err)
		}
	}()
	w.root.Cleanup(w.retire) // not of a subtest that starts another leader
}

// images is a Ceph that has of each image what was noted on it last. Nothing else of it is asked for.
type images struct {
	volumes.Images

	notes sync.Map // a volumes.Note by volumes.ImageRef
}

func (i *images) Note(_ context.Context, image volumes.ImageRef, note volumes.Note) error {
	i.notes.Store(image, note)
	return nil
}

func (i *images) Noted(_ context.Context, image volumes.ImageRef) (volumes.Note, error) {
	note, _ := i.notes.Load(image)
	noted, _ := note.(volumes.Note)
	return noted, nil
}

// Find finds the images of that name on which something was noted.
func (i *images) Find(_ context.Context, clusterID, pool, image string) ([]volumes.Found, error) {
	var out []volumes.Found
	i.notes.Range(func(key, value any) bool {
		ref, _ := key.(volumes.ImageRef)
		if note, is := value.(volumes.Note); is && (clusterID == "" || ref.ClusterID == clusterID) && ref.Pool == pool && ref.Image == image {
			out = append(out, volumes.Found{ImageRef: ref, Note: note})
		}
		return true
	})
	return out, nil
}

// retire ends the controllers.
func (w *world) retire() {
	w.stop()
	<-w.ended
}
