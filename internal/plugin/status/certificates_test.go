package status

import (
	"context"
	"crypto/x509"
	"strings"
	"testing"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"

	"github.com/escache/escache-csi/api/v1alpha1"
	"github.com/escache/escache-csi/internal/plugin/plugintest"
	"github.com/escache/escache-csi/internal/plugin/state"
	"github.com/escache/escache-csi/internal/preflight"
	"github.com/escache/escache-csi/test/testca"
)

// controllerWith is a group, and csi-controller's Deployment and its Secret, with a certificate that ends then.
func controllerWith(t *testing.T, end time.Time) []client.Object {
	t.Helper()
	authority, err := testca.NewAuthority("a")
	if err != nil {
		t.Fatal(err)
	}
	pair, err := authority.Issue("csi-controller", func(c *x509.Certificate) { c.NotBefore, c.NotAfter = plugintest.Noon.AddDate(-1, 0, 0), end })
	if err != nil {
		t.Fatal(err)
	}
	d := &appsv1.Deployment{ObjectMeta: metav1.ObjectMeta{Namespace: "escache-system", Name: "controller", Labels: map[string]string{
		"app.kubernetes.io/part-of": "escache-csi", "app.kubernetes.io/component": "controller",
	}}}
	d.Spec.Replicas, d.Status.ReadyReplicas = new(int32(1)), 1
	d.Spec.Template.Spec.Volumes = []corev1.Volume{{
		Name: "tls", VolumeSource: corev1.VolumeSource{Secret: &corev1.SecretVolumeSource{SecretName: "client"}},
	}}
	secret := &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Namespace: "escache-system", Name: "client"}}
	secret.Data = map[string][]byte{"tls.crt": pair.Certificate}
	return []client.Object{d, secret, &v1alpha1.NodeGroup{ObjectMeta: metav1.ObjectMeta{Name: "rack1"}}}
}

func TestStatusTellsOfCertificatesThatEnd(t *testing.T) {
	const todo = "see why it is not renewed: with tls.mode generated"
	for name, tc := range map[string]struct {
		end   time.Time
		says  string
		wrong bool
	}{
		"in a year":      {plugintest.Noon.AddDate(1, 0, 0), "Certificates: 1, the first (csi-controller) ends in 366d (2028-03-01)", false},
		"in fifteen":     {plugintest.Noon.AddDate(0, 0, 15), "ends in 15d (2027-03-16)", false},
		"in some days":   {plugintest.Noon.AddDate(0, 0, 13), "driver certificate of csi-controller: it ends in 13d (2027-03-14)", true},
		"three days ago": {plugintest.Noon.AddDate(0, 0, -3), "driver certificate of csi-controller: it ended 3d ago (2027-02-26)", true},
	} {
		t.Run(name, func(t *testing.T) {
			api := plugintest.Cluster(t, controllerWith(t, tc.end)...)
			c, _ := plugintest.Output()
			out, err := textOf(t.Context(), c, api, options{}, 0, &state.Certificates{})
			if err != nil {
				t.Fatal(err)
			}
			if !strings.Contains(out, tc.says) || strings.Contains(out, todo) != tc.wrong {
				t.Errorf("says:\n%s", out)
			}
		})
	}
}

func TestStatusReadsSecretsOnce(t *testing.T) {
	reads := 0
	api := interceptor.NewClient(plugintest.Cluster(t, controllerWith(t, plugintest.Noon)...), interceptor.Funcs{
		Get: func(ctx context.Context, api client.WithWatch, key client.ObjectKey, o client.Object, opts ...client.GetOption) error {
			if _, secret := o.(*corev1.Secret); secret {
				reads++
			}
			return api.Get(ctx, key, o, opts...)
		},
	})
	c, _ := plugintest.Output()
	known := &state.Certificates{}
	for range 3 {
		if _, err := textOf(t.Context(), c, api, options{}, 0, known); err != nil {
			t.Fatal(err)
		}
	}
	if reads != 1 {
		t.Errorf("%d reads", reads)
	}
}

func TestTheLineOfCertificatesFitsEightyColumns(t *testing.T) {
	ends := make([]preflight.End, 12)
	for i := range ends {
		ends[i] = preflight.End{Of: "csi-controller", At: plugintest.Noon.AddDate(0, 0, 400-i)}
	}
	line := certificateLine(ends, plugintest.Noon)
	if len(line) > 80 || !strings.Contains(line, "12, the first (csi-controller) ends in 389d") {
		t.Errorf("%d columns: %s", len(line), line)
	}
}
