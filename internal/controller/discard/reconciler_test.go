package discard

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/tools/events"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"

	"github.com/escache/escache-csi/api/v1alpha1"
	"github.com/escache/escache-csi/internal/authority"
	"github.com/escache/escache-csi/internal/controller/volumes"
)

// fakeVolumes answers what a test wants.
type fakeVolumes struct {
	err   error
	calls int
}

func (v *fakeVolumes) Discard(_ context.Context, d *v1alpha1.CacheDiscard) (*v1alpha1.DiscardedCache, error) {
	v.calls++
	if v.err != nil {
		return nil, v.err
	}
	return &v1alpha1.DiscardedCache{RequestedBy: d.Spec.RequestedBy, Nodes: []string{"n1"}, BytesAtStake: 4096, Epoch: d.Spec.Epoch}, nil
}

func TestReconcile(t *testing.T) {
	refused := fmt.Errorf("n1 answers: %w", authority.ErrRefused)
	for name, tc := range map[string]struct {
		errs  []error // of the tries, one each
		phase v1alpha1.DiscardPhase
		says  string
		event string
		calls int
		write int
	}{
		"done":                        {[]error{nil, nil}, v1alpha1.DiscardDone, "alice gave up", "CacheDiscarded", 1, 1},
		"refused":                     {[]error{refused, refused}, v1alpha1.DiscardRefused, "n1 answers", "DiscardRefused", 1, 1},
		"no such volume":              {[]error{volumes.ErrNotFound}, v1alpha1.DiscardRefused, "not found", "DiscardRefused", 1, 1},
		"Ceph is down, then not":      {[]error{errors.New("down"), errors.New("down"), nil}, v1alpha1.DiscardDone, "4096 bytes", "CacheDiscarded", 3, 2},
		"Ceph is down, and that long": {[]error{errors.New("down"), errors.New("down")}, v1alpha1.DiscardPending, "down", "", 2, 1},
	} {
		t.Run(name, func(t *testing.T) {
			scheme := runtime.NewScheme()
			if err := v1alpha1.AddToScheme(scheme); err != nil {
				t.Fatal(err)
			}
			d := &v1alpha1.CacheDiscard{ObjectMeta: metav1.ObjectMeta{Name: "d"}}
			d.Spec = v1alpha1.CacheDiscardSpec{Volume: "v", Confirm: "v", Epoch: 7, RequestedBy: "alice"}
			v := &v1alpha1.CacheVolume{ObjectMeta: metav1.ObjectMeta{Name: "v"}}
			writes := 0
			api := fake.NewClientBuilder().WithScheme(scheme).WithStatusSubresource(d).WithObjects(d, v).WithInterceptorFuncs(interceptor.Funcs{
				SubResourceUpdate: func(ctx context.Context, c client.Client, _ string, o client.Object, opts ...client.SubResourceUpdateOption) error {
					writes++
					return c.Status().Update(ctx, o, opts...)
				},
			}).Build()
			recorder, doer := events.NewFakeRecorder(10), &fakeVolumes{}
			r := New(Config{
				Client: api, Live: api, Volumes: doer, Events: recorder, Log: slog.New(slog.DiscardHandler), Now: time.Now,
				Again: time.Second, Longest: time.Minute,
			})
			for _, err := range tc.errs {
				doer.err = err
				result, failure := r.Reconcile(t.Context(), ctrl.Request{NamespacedName: client.ObjectKey{Name: "d"}})
				if failure != nil {
					t.Fatal(failure)
				}
				retries := err != nil && !errors.Is(err, authority.ErrRefused) && !errors.Is(err, volumes.ErrNotFound)
				if (result.RequeueAfter > 0) != retries {
					t.Errorf("after %v: again in %s", err, result.RequeueAfter)
				}
			}
			if err := api.Get(t.Context(), client.ObjectKey{Name: "d"}, d); err != nil {
				t.Fatal(err)
			}
			if d.Status.Phase != tc.phase || !strings.Contains(d.Status.Message, tc.says) || doer.calls != tc.calls || writes != tc.write {
				t.Errorf("%d calls, %d writes, status %+v", doer.calls, writes, d.Status)
			}
			if is := d.Status.Summary; (is == v1alpha1.CacheDiscardSummary{AtStake: "4Ki", Nodes: "n1"}) != (tc.phase == v1alpha1.DiscardDone) {
				t.Errorf("kubectl get shows %+v", is)
			}
			told := 0
			for len(recorder.Events) > 0 {
				if e := <-recorder.Events; strings.Contains(e, tc.event) {
					told++
				}
			}
			wanted := 2 // on the request and on the volume
			if tc.event == "" {
				wanted = 0
			}
			if told != wanted {
				t.Errorf("%d events %q", told, tc.event)
			}
		})
	}
}
