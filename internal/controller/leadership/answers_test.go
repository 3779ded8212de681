package leadership

import (
	"cmp"
	"context"
	"fmt"
	"net/http"
	"net/http/httptest"
	"testing"

	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/rest"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/escache/escache-csi/api/v1alpha1"
)

// TestAnAnswerReplacesWhatTheObjectHad is about controller-runtime's client, not about its fake. Lists that are read
// page by page, and the checks for an API server that drops a field, rely on it. JSON alone would keep what an answer lacks.
func TestAnAnswerReplacesWhatTheObjectHad(t *testing.T) {
	const volume = `{"apiVersion":"escache.io/v1alpha1","kind":"CacheVolume","metadata":{"name":"v"},"spec":{}}`
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Content-Type", "application/json")
		body := volume
		if r.Method == http.MethodGet {
			body = `{"apiVersion":"escache.io/v1alpha1","kind":"CacheVolumeList","metadata":{},"items":[` + volume + `]}`
		}
		_, _ = fmt.Fprint(w, body)
	}))
	defer server.Close()
	scheme, mapper := runtime.NewScheme(), meta.NewDefaultRESTMapper(nil)
	if err := v1alpha1.AddToScheme(scheme); err != nil {
		t.Fatal(err)
	}
	mapper.Add(v1alpha1.GroupVersion().WithKind("CacheVolume"), meta.RESTScopeRoot)
	c, err := client.New(&rest.Config{Host: server.URL}, client.Options{Scheme: scheme, Mapper: mapper})
	if err != nil {
		t.Fatal(err)
	}
	old := func() *v1alpha1.CacheVolume {
		v := &v1alpha1.CacheVolume{Spec: v1alpha1.CacheVolumeSpec{FromVolume: "old"}, Status: v1alpha1.CacheVolumeStatus{AttachedNode: "old"}}
		v.Name = "v"
		return v
	}
	for name, do := range map[string]func(ctx context.Context, v *v1alpha1.CacheVolume) error{
		"create":        func(ctx context.Context, v *v1alpha1.CacheVolume) error { return c.Create(ctx, v) },
		"update":        func(ctx context.Context, v *v1alpha1.CacheVolume) error { return c.Update(ctx, v) },
		"status update": func(ctx context.Context, v *v1alpha1.CacheVolume) error { return c.Status().Update(ctx, v) },
		"patch": func(ctx context.Context, v *v1alpha1.CacheVolume) error {
			return c.Patch(ctx, v, client.MergeFrom(old()))
		},
		"list": func(ctx context.Context, v *v1alpha1.CacheVolume) error {
			page := &v1alpha1.CacheVolumeList{Items: []v1alpha1.CacheVolume{*v}}
			err := c.List(ctx, page)
			*v = page.Items[0]
			return err
		},
	} {
		v := old()
		if err := do(t.Context(), v); err != nil || cmp.Or(v.Spec.FromVolume, v.Status.AttachedNode) != "" {
			t.Errorf("%s: %v; spec %+v, status %+v", name, err, v.Spec, v.Status)
		}
	}
}
