package signer

import (
	"crypto/tls"
	"crypto/x509"
	"encoding/pem"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	certificates "k8s.io/api/certificates/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"

	"github.com/escache/escache-csi/internal/hostcert"
	"github.com/escache/escache-csi/test/testca"
)

const (
	account = "system:serviceaccount:escache-system:escache-node"
	pattern = "{node}.escached.example"
)

type world struct {
	*Reconciler

	client client.Client
	roots  *x509.CertPool
}

func start(t *testing.T) *world {
	t.Helper()
	signing, err := testca.NewAuthority("hosts")
	must(t, err)
	dir := t.TempDir()
	cert, key := filepath.Join(dir, "cert"), filepath.Join(dir, "key")
	pair, err := signing.Own()
	must(t, err)
	must(t, os.WriteFile(cert, pair.Certificate, 0o600))
	must(t, os.WriteFile(key, pair.Key, 0o600))
	scheme := runtime.NewScheme()
	must(t, certificates.AddToScheme(scheme))
	c := fake.NewClientBuilder().WithScheme(scheme).WithStatusSubresource(&certificates.CertificateSigningRequest{}).Build()
	return &world{client: c, roots: signing.Pool(), Reconciler: New(Config{
		Client: c, Account: account, Pattern: pattern, Cert: cert, Key: key, Life: 90 * 24 * time.Hour,
		Log: slog.New(slog.DiscardHandler), Now: time.Now, Longest: time.Minute,
	})}
}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// ask is n1's csi-node that asks, after a change, and the reconciler's decision.
func (w *world) ask(t *testing.T, change func(*certificates.CertificateSigningRequest)) (*certificates.CertificateSigningRequest, []byte) {
	t.Helper()
	key, request, err := hostcert.NewRequest("n1", "n1.escached.example")
	must(t, err)
	csr := &certificates.CertificateSigningRequest{
		ObjectMeta: metav1.ObjectMeta{GenerateName: "escached-n1-"},
		Spec: certificates.CertificateSigningRequestSpec{
			Request: request, SignerName: hostcert.Signer, Username: account,
			Usages: []certificates.KeyUsage{certificates.UsageServerAuth, certificates.UsageDigitalSignature},
			Extra:  map[string]certificates.ExtraValue{extraNode: {"n1"}},
		},
	}
	change(csr)
	must(t, w.client.Create(t.Context(), csr))
	_, err = w.Reconcile(t.Context(), ctrl.Request{NamespacedName: types.NamespacedName{Name: csr.Name}})
	must(t, err)
	must(t, w.client.Get(t.Context(), client.ObjectKeyFromObject(csr), csr))
	return csr, key
}

func TestTheCertificateOfTheRequestersNodeIsSigned(t *testing.T) {
	w := start(t)
	csr, key := w.ask(t, func(*certificates.CertificateSigningRequest) {})
	if !has(csr, certificates.CertificateApproved) {
		t.Fatalf("not approved: %+v", csr.Status)
	}
	pair, err := tls.X509KeyPair(csr.Status.Certificate, key)
	must(t, err)
	leaf, err := x509.ParseCertificate(pair.Certificate[0])
	must(t, err)
	if _, err := leaf.Verify(x509.VerifyOptions{Roots: w.roots, DNSName: "n1.escached.example"}); err != nil {
		t.Error(err)
	}
	if leaf.VerifyHostname("n2.escached.example") == nil || leaf.IsCA || len(leaf.DNSNames) != 1 ||
		!slices.Equal(leaf.ExtKeyUsage, []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth}) {
		t.Errorf("it can do more than it should: %v %v %v", leaf.DNSNames, leaf.ExtKeyUsage, leaf.IsCA)
	}
	if left := time.Until(leaf.NotAfter); left > w.Life || left < w.Life-time.Hour {
		t.Errorf("it is valid for %s", left)
	}
}

func TestWhatIsNotTheOwnNodesRequestIsRefused(t *testing.T) {
	type csr = certificates.CertificateSigningRequest
	other := func(node, name string) []byte {
		_, request, err := hostcert.NewRequest(node, name)
		must(t, err)
		return request
	}
	for what, c := range map[string]struct {
		change func(*csr)
		told   string
	}{
		"another node":            {func(r *csr) { r.Spec.Request = other("n2", "n2.escached.example") }, "n2"},
		"another name":            {func(r *csr) { r.Spec.Request = other("n1", "n2.escached.example") }, "n2.escached.example"},
		"a token of another node": {func(r *csr) { r.Spec.Extra[extraNode] = certificates.ExtraValue{"n2"} }, "token is of node n2"},
		"a token of no node":      {func(r *csr) { r.Spec.Extra = nil }, errNoNode.Error()},
		"a token of two nodes":    {func(r *csr) { r.Spec.Extra[extraNode] = certificates.ExtraValue{"n1", "n2"} }, errNoNode.Error()},
		"another account":         {func(r *csr) { r.Spec.Username = "system:serviceaccount:default:escache-node" }, "default"},
		"an administrator":        {func(r *csr) { r.Spec.Username = "admin"; r.Spec.Groups = []string{"system:masters"} }, "admin"},
		"a client's usage":        {func(r *csr) { r.Spec.Usages[0] = certificates.UsageClientAuth }, "client auth"},
		"one usage more":          {func(r *csr) { r.Spec.Usages = append(r.Spec.Usages, certificates.UsageClientAuth) }, "client auth"},
		"no usage":                {func(r *csr) { r.Spec.Usages = nil }, "usages"},
		"no request":              {func(r *csr) { r.Spec.Request = []byte("x") }, "PEM"},
	} {
		got, _ := start(t).ask(t, c.change)
		if len(got.Status.Certificate) > 0 || has(got, certificates.CertificateApproved) || !has(got, certificates.CertificateDenied) ||
			!strings.Contains(got.Status.Conditions[0].Message, c.told) {
			t.Errorf("%s: %+v, want a refusal that tells of %q", what, got.Status, c.told)
		}
	}
}

func TestAnApprovalByHandDoesNotReplaceTheChecks(t *testing.T) {
	got, _ := start(t).ask(t, func(r *certificates.CertificateSigningRequest) {
		r.Spec.Username = "somebody"
		r.Status.Conditions = []certificates.CertificateSigningRequestCondition{{Type: certificates.CertificateApproved, Status: "True"}}
	})
	if len(got.Status.Certificate) > 0 || !has(got, certificates.CertificateFailed) {
		t.Errorf("%+v", got.Status)
	}
}

func TestRequestsOfOtherSignersAreLeftAlone(t *testing.T) {
	got, _ := start(t).ask(t, func(r *certificates.CertificateSigningRequest) { r.Spec.SignerName = "kubernetes.io/kubelet-serving" })
	if len(got.Status.Certificate) > 0 || len(got.Status.Conditions) > 0 {
		t.Errorf("%+v", got.Status)
	}
	if _, _, err := (rules{account, pattern}).judge(got); err == nil {
		t.Error("it would be signed")
	}
}

func TestACertificateEndsWithItsAuthority(t *testing.T) {
	w := start(t)
	w.Life = 100 * 365 * 24 * time.Hour
	csr, _ := w.ask(t, func(*certificates.CertificateSigningRequest) {})
	block, _ := pem.Decode(csr.Status.Certificate)
	leaf, err := x509.ParseCertificate(block.Bytes)
	must(t, err)
	a, err := readAuthority(w.Cert, w.Key)
	must(t, err)
	if end := a.Certificate().NotAfter; !leaf.NotAfter.Equal(end) {
		t.Errorf("it ends at %s, its authority at %s", leaf.NotAfter, end)
	}
}
