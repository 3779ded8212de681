//go:build e2e

package nodeapi

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/go-logr/logr"
	clientgoscheme "k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/log"
	metricsserver "sigs.k8s.io/controller-runtime/pkg/metrics/server"

	"github.com/escache/escache-csi/internal/controller/signer"
	"github.com/escache/escache-csi/internal/hostcert"
	"github.com/escache/escache-csi/internal/node/certificate"
	"github.com/escache/escache-csi/internal/node/kube"
	"github.com/escache/escache-csi/test/testca"
)

const names = "{node}.escached.example"

// ownCertificate runs both sides with the rights that the chart gives them, and csi-node with the
// token of a pod on its node.
func ownCertificate(t *testing.T, w *world) {
	log.SetLogger(logr.Discard())
	authority, err := testca.NewAuthority("hosts")
	check(t, err)
	runSigner(t, w, authority)
	n8 := w.onNode(t, "n8")
	file := filepath.Join(t.TempDir(), "tls", "escached.pem")
	keeper := certificate.New(certificate.Options{
		Node: "n8", Name: hostcert.Name(names, "n8"), File: file, API: n8, Log: slog.New(slog.NewTextHandler(os.Stderr, nil)),
	})
	ctx, stop := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- keeper.Run(ctx) }()
	var pair tls.Certificate
	for until := time.Now().Add(3 * time.Minute); ; time.Sleep(100 * time.Millisecond) {
		if pair, err = tls.LoadX509KeyPair(file, file); err == nil {
			break
		}
		if time.Now().After(until) {
			t.Fatalf("%v; requests:\n%s", err, w.kubectl(t, "", "get", "csr", "-o", "yaml"))
		}
	}
	stop()
	check(t, <-ended)
	leaf, err := x509.ParseCertificate(pair.Certificate[0])
	check(t, err)
	if _, err := leaf.Verify(x509.VerifyOptions{Roots: authority.Pool(), DNSName: "n8.escached.example"}); err != nil {
		t.Error(err)
	}

	for what, c := range map[string]struct {
		of           *kube.Client
		node, signer string
		usages       []string
		told         string
	}{
		"another node's":            {n8, "n9", hostcert.Signer, hostcert.Usages(), "token is of node n8"},
		"a client's":                {n8, "n8", hostcert.Signer, []string{"digital signature", "client auth"}, "usages"},
		"with a token of no node":   {w.client, "n8", hostcert.Signer, hostcert.Usages(), "to which node"},
		"of another signer":         {n8, "n8", "escache.io/other", hostcert.Usages(), ""},
		"of Kubernetes' own signer": {n8, "n8", "kubernetes.io/kubelet-serving", []string{"digital signature", "server auth"}, ""},
	} {
		_, request, err := hostcert.NewRequest(c.node, hostcert.Name(names, c.node))
		check(t, err)
		name, err := c.of.RequestCertificate(t.Context(), kube.CertificateRequest{Prefix: "other-", Signer: c.signer, Request: request, Usages: c.usages})
		check(t, err)
		var answer kube.CertificateAnswer
		for end := time.Now().Add(time.Minute); answer.Refused == "" && time.Now().Before(end); time.Sleep(100 * time.Millisecond) {
			answer, err = c.of.Certificate(t.Context(), name)
			check(t, err)
			if len(answer.Certificate) > 0 {
				t.Fatalf("a certificate %s is signed", what)
			}
			if c.told == "" && time.Until(end) < 55*time.Second {
				break // it is nobody's
			}
		}
		if (c.told == "") != (answer.Refused == "") || !strings.Contains(answer.Refused, c.told) {
			t.Errorf("a certificate %s: %q, want a refusal with %q", what, answer.Refused, c.told)
		}
	}
}

// onNode is the API as csi-node's pod on a node has it.
func (w *world) onNode(t *testing.T, node string) *kube.Client {
	t.Helper()
	w.kubectl(t, `{"apiVersion":"v1","kind":"Node","metadata":{"name":"`+node+`"}}`, "apply", "-f", "-")
	account := w.account.User[strings.LastIndex(w.account.User, ":")+1:]
	w.kubectl(t, `{"apiVersion":"v1","kind":"Pod","metadata":{"name":"csi-node","namespace":"`+w.account.Namespace+`"},"spec":{"nodeName":"`+node+`",`+
		`"serviceAccountName":"`+account+`","tolerations":[{"operator":"Exists"}],"containers":[{"name":"c","image":"i"}]}}`, "apply", "-f", "-")
	uid := w.kubectl(t, "", "-n", w.account.Namespace, "get", "pod", "csi-node", "-o", "jsonpath={.metadata.uid}")
	token := w.kubectl(t, "", "-n", w.account.Namespace, "create", "token", account, "--bound-object-kind=Pod", "--bound-object-name=csi-node",
		"--bound-object-uid="+uid)
	config, err := clientcmd.BuildConfigFromFlags("", w.account.Kubeconfig)
	check(t, err)
	config = rest.AnonymousClientConfig(config)
	config.BearerToken = token
	client, err := kube.New(config)
	check(t, err)
	return client
}

// runSigner signs with the rights that the chart gives csi-controller.
func runSigner(t *testing.T, w *world, authority *testca.Authority) {
	t.Helper()
	pair, err := authority.Own()
	check(t, err)
	dir := t.TempDir()
	cert, key := filepath.Join(dir, "cert"), filepath.Join(dir, "key")
	check(t, os.WriteFile(cert, pair.Certificate, 0o600))
	check(t, os.WriteFile(key, pair.Key, 0o600))
	config, err := clientcmd.BuildConfigFromFlags("", w.kube.ChartAccount(t, checkout, "controller").Kubeconfig)
	check(t, err)
	manager, err := ctrl.NewManager(config, ctrl.Options{
		Scheme: clientgoscheme.Scheme, Logger: logr.Discard(), Metrics: metricsserver.Options{BindAddress: "0"}, Cache: signer.Requests(),
	})
	check(t, err)
	check(t, signer.New(signer.Config{
		Client: manager.GetClient(), Account: w.account.User, Pattern: names, Cert: cert, Key: key, Life: time.Hour,
		Log: slog.New(slog.NewTextHandler(os.Stderr, nil)), Now: time.Now, Longest: 30 * time.Second,
	}).SetupWithManager(manager))
	ctx, stop := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- manager.Start(ctx) }()
	t.Cleanup(func() {
		stop()
		check(t, <-ended)
	})
}
