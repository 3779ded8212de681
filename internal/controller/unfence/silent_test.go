package unfence_test

import (
	"context"
	"fmt"
	"log/slog"
	"net/http"
	"testing"
	"time"

	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/cache"
	cachetesting "k8s.io/client-go/tools/cache/testing"
	ctrl "sigs.k8s.io/controller-runtime"
	crcache "sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/cache/informertest"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"
	"sigs.k8s.io/controller-runtime/pkg/config"
	metricsserver "sigs.k8s.io/controller-runtime/pkg/metrics/server"

	"github.com/escache/escache-csi/api/v1alpha1"
	"github.com/escache/escache-csi/internal/controller/unfence"
	"github.com/escache/escache-csi/test/csitest"
)

// silent are volumes whose fenced host does not answer.
type silent struct{ fenced chan string }

func (s silent) FenceLate(ctx context.Context, volume string) error {
	select {
	case s.fenced <- volume:
	case <-ctx.Done():
	}
	return nil
}

func (silent) Unfence(ctx context.Context, _ string) (left int, err error) {
	<-ctx.Done()
	return 0, ctx.Err()
}

// source is a list of volumes that does not know of lists which come as a watch.
type source struct {
	*cachetesting.FakeControllerSource
}

func (source) IsWatchListSemanticsUnSupported() bool { return true }

// TestALateClientIsFencedWhileHostsDoNotAnswer: who asks a dead host waits. The late clients of all volumes are looked for
// meanwhile.
func TestALateClientIsFencedWhileHostsDoNotAnswer(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	scheme := runtime.NewScheme()
	csitest.Must(t, v1alpha1.AddToScheme(scheme))
	waiting, list, api := map[string]bool{}, source{cachetesting.NewFakeControllerSource()}, fake.NewClientBuilder().WithScheme(scheme)
	for i := range 20 {
		v := &v1alpha1.CacheVolume{}
		v.Name = fmt.Sprintf("pvc-%d", i)
		v.Status.AttachedNode, v.Status.Fenced = "n2", []v1alpha1.FencedClient{{Node: "n1", Address: csitest.OldClient}}
		waiting[v.Name] = true
		list.Add(v.DeepCopy())
		api.WithObjects(v)
	}
	informer := cache.NewSharedIndexInformer(list, &v1alpha1.CacheVolume{}, 0, cache.Indexers{})
	go informer.RunWithContext(ctx)
	m, err := ctrl.NewManager(&rest.Config{}, ctrl.Options{
		Scheme: scheme, Metrics: metricsserver.Options{BindAddress: "0"}, Controller: config.Controller{SkipNameValidation: new(true)},
		MapperProvider: func(*rest.Config, *http.Client) (meta.RESTMapper, error) { return meta.NewDefaultRESTMapper(nil), nil },
		NewClient:      func(*rest.Config, client.Options) (client.Client, error) { return api.Build(), nil },
		NewCache: func(*rest.Config, crcache.Options) (crcache.Cache, error) {
			return &informertest.FakeInformers{Scheme: scheme, InformersByGVK: map[schema.GroupVersionKind]cache.SharedIndexInformer{
				v1alpha1.GroupVersion().WithKind("CacheVolume"): informer,
			}}, nil
		},
	})
	csitest.Must(t, err)
	volumes := silent{make(chan string)}
	r := unfence.New(unfence.Config{
		Client: m.GetClient(), Volumes: volumes, Log: slog.New(slog.NewTextHandler(t.Output(), nil)),
		Again: time.Hour, Longest: time.Hour, Parallel: 2,
	})
	csitest.Must(t, r.SetupWithManager(m))
	ended := make(chan error)
	go func() { ended <- m.Start(ctx) }()
	for end := time.After(10 * time.Second); len(waiting) > 0; {
		select {
		case volume := <-volumes.fenced:
			delete(waiting, volume)
		case <-end:
			t.Fatalf("nobody looked for late clients of %d volumes", len(waiting))
		}
	}
	cancel()
	csitest.Must(t, <-ended)
}
