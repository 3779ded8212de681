package signer

import (
	"context"
	"log/slog"
	"os"
	"path/filepath"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"

	"github.com/escache/escache-csi/test/testca"
)

// TestTheAuthorityIsPublished without its key, also when it is replaced, and is not written again and again.
func TestTheAuthorityIsPublished(t *testing.T) {
	m := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Namespace: "escache-system", Name: "escache-hosts-authority"}}
	scheme := runtime.NewScheme()
	must(t, corev1.AddToScheme(scheme))
	writes := 0
	api := interceptor.NewClient(fake.NewClientBuilder().WithScheme(scheme).WithObjects(m).Build(), interceptor.Funcs{
		Update: func(ctx context.Context, c client.WithWatch, o client.Object, opts ...client.UpdateOption) error {
			writes++
			return c.Update(ctx, o, opts...)
		},
	})
	dir := t.TempDir()
	p := NewPublisher(PublisherConfig{
		Reader: api, Writer: api, ConfigMap: client.ObjectKeyFromObject(m), Cert: filepath.Join(dir, "cert"), Key: filepath.Join(dir, "key"),
		Log: slog.New(slog.DiscardHandler), Again: time.Minute, Longest: time.Minute,
	})
	if err := p.Look(t.Context()); err == nil || writes > 0 {
		t.Errorf("there is no authority: %v, %d writes", err, writes)
	}
	for n, name := range []string{"first", "next"} {
		authority, err := testca.NewAuthority(name)
		must(t, err)
		pair, err := authority.Own()
		must(t, err)
		must(t, os.WriteFile(p.Cert, pair.Certificate, 0o600))
		if err := p.Look(t.Context()); err == nil || writes != n {
			t.Errorf("%s: its key is not there yet: %v, %d writes", name, err, writes)
		}
		must(t, os.WriteFile(p.Key, pair.Key, 0o600))
		must(t, p.Look(t.Context()))
		must(t, p.Look(t.Context()))
		must(t, api.Get(t.Context(), p.ConfigMap, m))
		if m.Data[published] != string(pair.Certificate) || len(m.Data) != 1 || writes != n+1 {
			t.Errorf("%s: %v after %d writes", name, m.Data, writes)
		}
	}
}
