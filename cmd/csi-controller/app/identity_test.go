package app

import (
	"context"
	"errors"
	"log/slog"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"
)

// failing answers the first calls with these errors.
func failing(t *testing.T, failures ...error) client.Client {
	t.Helper()
	scheme, err := newScheme()
	if err != nil {
		t.Fatal(err)
	}
	system := &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: "kube-system", UID: "one-of-a-kind"}}
	return fake.NewClientBuilder().WithScheme(scheme).WithObjects(system).WithInterceptorFuncs(interceptor.Funcs{
		Get: func(ctx context.Context, c client.WithWatch, key client.ObjectKey, into client.Object, opts ...client.GetOption) error {
			if len(failures) == 0 {
				return c.Get(ctx, key, into, opts...)
			}
			err := failures[0]
			failures = failures[1:]
			return err
		},
	}).Build()
}

func TestTheIdentityIsThatOfKubeSystem(t *testing.T) {
	log := slog.New(slog.DiscardHandler)
	away := apierrors.NewServiceUnavailable("starting")
	if id, err := knownCluster(t.Context(), failing(t, away, errors.New("connection refused")), log, time.Millisecond); err != nil || id != "one-of-a-kind" {
		t.Errorf("after two failures: %q, %v", id, err)
	}
	namespaces := schema.GroupResource{Resource: "namespaces"}
	forbidden := apierrors.NewForbidden(namespaces, "kube-system", errors.New("no rule"))
	_, err := knownCluster(t.Context(), failing(t, forbidden), log, time.Hour)
	for _, says := range []string{"ClusterRole", "resourceNames: [kube-system]", "verbs: [get]"} {
		if err == nil || !strings.Contains(err.Error(), says) {
			t.Errorf("the refusal does not say %q: %v", says, err)
		}
	}
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Millisecond)
	defer cancel()
	if id, err := knownCluster(ctx, failing(t, away), log, time.Hour); err == nil {
		t.Errorf("ended by its context with %q", id)
	}
}
