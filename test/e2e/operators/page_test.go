//go:build e2e

package operators

import (
	"bytes"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"encoding/pem"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/cookiejar"
	"net/http/httptest"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/escache/escache-csi/test/kubetest"
)

// thePage has the web page served by csi-controller itself, with the chart's rights, on a replica
// that does not lead.
func (w *world) thePage(t *testing.T) {
	account := w.kube.ChartAccount(t, checkout, "controller", "page.enabled=true")
	address, metrics := w.standby(t, account)
	w.kubectl(t, "-n", account.Namespace, "create", "serviceaccount", "viewer")
	w.kubectl(t, "-n", account.Namespace, "create", "serviceaccount", "passer-by")
	w.kubectl(t, "create", "clusterrole", "viewer", "--verb=list", "--resource=cachevolumes.escache.io")
	w.kubectl(t, "create", "clusterrolebinding", "viewer", "--clusterrole=viewer", "--serviceaccount="+account.Namespace+":viewer")
	token := func(name string) string {
		return strings.TrimSpace(w.kubectl(t, "-n", account.Namespace, "create", "token", name))
	}
	for name, c := range map[string]struct {
		token string
		want  int
	}{
		"nobody": {"", http.StatusUnauthorized}, "a made-up token": {"x.y.z", http.StatusUnauthorized},
		"a stranger": {token("passer-by"), http.StatusForbidden}, "who may look": {token("viewer"), http.StatusOK},
	} {
		for _, path := range []string{"/", "/live", "/events"} {
			if path == "/events" && c.want == http.StatusOK {
				continue // it goes on: the browser reads it
			}
			code, body := fetch(t, address+path, c.token)
			if code != c.want || strings.Contains(body, "pvc-a") != (c.want == http.StatusOK) {
				t.Errorf("%s as %s: %d, want %d\n%s", path, name, code, c.want, body)
			}
		}
	}
	jar, _ := cookiejar.New(nil)
	browser := trusting(jar)
	answer, err := browser.PostForm(address+"/login", url.Values{"token": {token("viewer")}})
	must(t, err)
	defer answer.Body.Close()
	body, _ := io.ReadAll(answer.Body)
	if answer.StatusCode != http.StatusOK {
		t.Errorf("after logging in: %d", answer.StatusCode)
	}
	says(t, string(body), "pvc-a", "the test leads", "by csi-controller-1, version test", "https://grafana.example/d/escache?var-volume=pvc-a")
	w.inBrowser(t, address, token("viewer"))

	// What alerts ask csi-controller for is there before anything happens, so that the first time
	// counts, and under that very name.
	_, text := fetch(t, metrics, "")
	says(t, text, `leader_election_master_status{name="escache-csi-controller"} 0`,
		`escache_controller_ceph_call_seconds_count{operation="blocklist_add",result="ok"} 0`)
}

// standby starts csi-controller, which never leads since somebody else has the lease, and returns
// the addresses of its page and metrics.
func (w *world) standby(t *testing.T, account kubetest.Account) (page, metrics string) {
	t.Helper()
	must(t, w.api.Create(t.Context(), &coordinationv1.Lease{
		ObjectMeta: metav1.ObjectMeta{Namespace: account.Namespace, Name: "escache-csi-controller"},
		Spec: coordinationv1.LeaseSpec{
			HolderIdentity: new("the test"), LeaseDurationSeconds: new(int32(3600)),
			AcquireTime: new(metav1.NowMicro()), RenewTime: new(metav1.NowMicro()),
		},
	}))
	dir, err := os.MkdirTemp("", "page-") //nolint:usetesting // a socket's path has 108 characters at most
	must(t, err)
	t.Cleanup(func() { os.RemoveAll(dir) })
	cert, key := filepath.Join(dir, "tls.crt"), filepath.Join(dir, "tls.key")
	selfSigned(t, cert, key)
	linkKey := filepath.Join(dir, "link-key")
	must(t, os.WriteFile(linkKey, []byte(rand.Text()+rand.Text()), 0o600))
	address, figures := freePort(t), freePort(t)
	var log bytes.Buffer
	command := exec.Command(controllerBinary(t), "--kubeconfig", account.Kubeconfig, "--lease-namespace", account.Namespace,
		"--csi-socket", filepath.Join(dir, "csi.sock"), "--ceph-dir", dir, "--metrics-address", figures, "--health-address=0", "--escached-plaintext",
		"--replication-secret-file", linkKey,
		"--identity=csi-controller-1", "--page-address", address, "--page-cert", cert, "--page-key", key, "--page-grafana=https://grafana.example/d/escache")
	command.Stdout, command.Stderr = &log, &log
	command.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	must(t, command.Start())
	t.Cleanup(func() {
		_ = command.Process.Kill()
		_ = command.Wait()
		if t.Failed() {
			t.Logf("log of csi-controller:\n%s", log.String())
		}
	})
	for deadline := time.Now().Add(time.Minute); ; time.Sleep(100 * time.Millisecond) {
		if conn, err := net.DialTimeout("tcp", address, time.Second); err == nil {
			conn.Close()
			return "https://" + address, "http://" + figures + "/metrics"
		}
		if time.Now().After(deadline) {
			t.Fatal("the page is not served")
		}
	}
}

// trusting takes the test's own certificate.
func trusting(jar http.CookieJar) *http.Client {
	return &http.Client{Jar: jar, Transport: &http.Transport{TLSClientConfig: &tls.Config{InsecureSkipVerify: true}}}
}

func fetch(t *testing.T, address, token string) (int, string) {
	t.Helper()
	r, err := http.NewRequestWithContext(t.Context(), http.MethodGet, address, nil)
	must(t, err)
	if token != "" {
		r.Header.Set("Authorization", "Bearer "+token)
	}
	answer, err := trusting(nil).Do(r)
	must(t, err)
	defer answer.Body.Close()
	body, err := io.ReadAll(answer.Body)
	must(t, err)
	return answer.StatusCode, string(body)
}

// selfSigned writes the certificate that the standard library's test servers have.
func selfSigned(t *testing.T, cert, key string) {
	t.Helper()
	s := httptest.NewTLSServer(nil)
	defer s.Close()
	pair := s.TLS.Certificates[0]
	secret, err := x509.MarshalPKCS8PrivateKey(pair.PrivateKey)
	must(t, err)
	must(t, os.WriteFile(cert, pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: pair.Certificate[0]}), 0o600))
	must(t, os.WriteFile(key, pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: secret}), 0o600))
}

func freePort(t *testing.T) string {
	t.Helper()
	l, err := (&net.ListenConfig{}).Listen(t.Context(), "tcp", "127.0.0.1:0")
	must(t, err)
	defer l.Close()
	return l.Addr().String()
}

// controllerBinary builds csi-controller. Its tags are those of the installed librbd.
func controllerBinary(t *testing.T) string {
	t.Helper()
	tags, err := exec.CommandContext(t.Context(), filepath.Join(checkout, "hack/ceph-tags.sh")).Output()
	must(t, err)
	path := filepath.Join(t.TempDir(), "csi-controller")
	command := exec.CommandContext(t.Context(), "go", "build", "-tags", strings.TrimSpace(string(tags)), "-ldflags", "-X main.version=test", "-o", path,
		"./cmd/csi-controller")
	command.Dir = checkout
	if out, err := command.CombinedOutput(); err != nil {
		t.Fatal(fmt.Errorf("%w\n%s", err, out))
	}
	return path
}
