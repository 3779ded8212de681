package preflight

import (
	"context"
	"slices"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"
)

func TestTheEndsOfCertificatesComeFromTheDriversSecrets(t *testing.T) {
	w := healthy(t)
	const first = "cache-controller-tls"
	w.ends(first, noon.AddDate(0, 0, 9))
	c := w.cluster()
	ends, err := c.Ends(t.Context())
	must(t, err)
	sorted := slices.IsSortedFunc(ends, func(a, b End) int { return a.At.Compare(b.At) })
	if len(ends) < 2 || ends[0] != (End{first, noon.AddDate(0, 0, 9)}) || !sorted {
		t.Errorf("got %v", ends)
	}
	whole := len(ends)

	of[*corev1.Secret](w, first).Data["tls.crt"] = []byte("no certificate")
	ends, err = w.cluster().Ends(t.Context())
	must(t, err)
	if len(ends) != whole-1 || ends[0].At.Sub(noon) < 300*24*time.Hour {
		t.Errorf("with one that is no certificate: %v", ends)
	}
	w.without(of[*corev1.Secret](w, first))
	ends, err = w.cluster().Ends(t.Context())
	must(t, err)
	if len(ends) != whole-1 {
		t.Errorf("with a Secret that is missing: %v", ends)
	}

	c.API = interceptor.NewClient(c.API.(client.WithWatch), interceptor.Funcs{
		Get: func(ctx context.Context, api client.WithWatch, key client.ObjectKey, o client.Object, opts ...client.GetOption) error {
			if _, secret := o.(*corev1.Secret); secret {
				return apierrors.NewForbidden(schema.GroupResource{Resource: "secrets"}, key.Name, nil)
			}
			return api.Get(ctx, key, o, opts...)
		},
	})
	ends, err = c.Ends(t.Context())
	must(t, err)
	if len(ends) != 0 {
		t.Errorf("of Secrets that may not be read: %v", ends)
	}
}
