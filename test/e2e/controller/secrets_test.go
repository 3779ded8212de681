//go:build e2e

package controller

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"crypto/tls"
	"crypto/x509"
	"encoding/base64"
	"encoding/hex"
	"encoding/pem"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/container-storage-interface/spec/lib/go/csi"

	"github.com/escache/escache-csi/internal/cachevolume"
	"github.com/escache/escache-csi/internal/plugin"
)

// secrets plants keys and tokens in every place that csi-controller takes one from, has it succeed
// and fail with them while it logs all it can, and looks for them in whatever others may read.
func secrets(t *testing.T, w *world) {
	dir := t.TempDir()
	certFile, keyFile, tlsKey := w.pageCertificate(t, dir)
	page := freeAddress(t)
	w.kubectl(t, "", "-n", w.account.Namespace, "create", "serviceaccount", "looker")
	defer w.kubectl(t, "", "-n", w.account.Namespace, "delete", "serviceaccount", "looker")
	token := strings.TrimSpace(w.kubectl(t, "", "-n", w.account.Namespace, "create", "token", "looker"))
	d := leader(t, time.Minute, w.launch(t, "a", append(soon, "--log-level=debug",
		"--page-address="+page, "--page-cert="+certFile, "--page-key="+keyFile)...))
	s := &search{planted: map[string]string{
		"Ceph's key": keyOf(t, filepath.Join(w.cephDir, clusterID, "keyring")), "a key that Ceph refuses": keyOf(t, w.foreignKeyring(t)),
		"the page's TLS key": tlsKey, "a token": token, "a secret in a CSI call": "planted-in-a-call-0123456789",
		"a pod's variable": "planted-in-a-pod-0123456789",
	}}

	request := creation("pvc-secret")
	request.Secrets = map[string]string{"userID": "admin", "userKey": s.planted["a secret in a CSI call"]}
	var made *csi.CreateVolumeResponse
	var err error
	eventually(t, time.Minute, func() bool { // the hosts have to be seen first
		made, err = d.CreateVolume(t.Context(), request)
		return err == nil
	}, func() string { return fmt.Sprint(err) })
	node := w.one(t).Spec.Replicas[0]
	attached, err := d.ControllerPublishVolume(t.Context(), &csi.ControllerPublishVolumeRequest{
		VolumeId: made.GetVolume().GetVolumeId(), NodeId: node, VolumeCapability: capability(), Secrets: request.GetSecrets(),
	})
	must(t, err)
	links, err := os.ReadFile(w.linkKey)
	must(t, err)
	secret := w.fleet.Hosts[node].Secret(cachevolume.Ref(w.one(t)))
	if !secret.Valid() {
		t.Fatal("the link has no secret, so nothing would be found")
	}
	s.planted["what the secrets of links are derived from"], s.planted["a link's secret"] = string(links), string(secret)
	s.checkNoSecret(t, "the answers to calls", made.String()+attached.String(), "pvc-secret")

	w.addCluster(t, "refused", w.ceph.Conf(), w.foreignKeyring(t))
	broken := filepath.Join(dir, "keyring") // as somebody who copies it by hand may leave it
	must(t, os.WriteFile(broken, []byte("[client.admin]\n\tkey "+s.planted["Ceph's key"]+"\n"), 0o600))
	w.addCluster(t, "broken", w.ceph.Conf(), broken) // both stay: the tests that follow show that they do not matter to volumes elsewhere
	for _, cluster := range []string{"refused", "broken"} {
		err := d.createIn(t, enough, "pvc-"+cluster, cluster, "rbd")
		s.checkNoSecret(t, "the error of a wrong key", fmt.Sprint(err), cluster)
	}
	for _, send := range []func() (*http.Request, error){
		func() (*http.Request, error) {
			return http.NewRequestWithContext(t.Context(), http.MethodGet, "https://"+page, nil)
		},
		func() (*http.Request, error) {
			form := url.Values{"token": {s.planted["a token"]}}
			return http.NewRequestWithContext(t.Context(), http.MethodPost, "https://"+page+"/login", strings.NewReader(form.Encode()))
		},
	} {
		s.checkNoSecret(t, "the page", askPage(t, send, s.planted["a token"]), "escache")
	}

	for _, file := range []string{"cmdline", "environ"} {
		text, err := os.ReadFile(fmt.Sprintf("/proc/%d/%s", d.command.Process.Pid, file))
		must(t, err)
		s.checkNoSecret(t, file, string(text), map[string]string{"cmdline": "--ceph-dir", "environ": "PATH="}[file])
	}
	w.kubectl(t, fmt.Sprintf(`{"apiVersion":"v1","kind":"Pod","metadata":{"name":"driver","namespace":%q},"spec":{"containers":[{"name":"c","image":"i",`+
		`"env":[{"name":"KEY","value":%q}]}]}}`, w.account.Namespace, s.planted["a pod's variable"]), "apply", "-f", "-")
	s.checkNoSecret(t, "the support bundle", w.supportBundle(t), `"driver"`)
	w.kubectl(t, "", "-n", w.account.Namespace, "delete", "pod", "driver", "--now")
	kinds := "events,cachevolumes,nodegroups,persistentvolumes,volumeattachments,leases"
	s.checkNoSecret(t, "Events and records", w.kubectl(t, "", "get", kinds, "-A", "-o", "json"), "escache-pvc-secret")

	until(t, func() error { return d.unpublish(t.Context(), made.GetVolume().GetVolumeId(), node) })
	until(t, func() error { return d.delete(t.Context(), made.GetVolume().GetVolumeId()) })
	log, err := os.ReadFile(filepath.Join(d.dir, "log"))
	must(t, err)
	s.checkNoSecret(t, "the log", string(log), "pvc-secret", `"level":"DEBUG"`)
}

// search is for what must not be found.
type search struct{ planted map[string]string }

// checkNoSecret fails the test where a text has a secret in it, plain or in a usual disguise, or does not
// have the marks that show that it is the right text.
func (s *search) checkNoSecret(t *testing.T, where, text string, marks ...string) {
	t.Helper()
	for _, mark := range marks {
		if !strings.Contains(text, mark) {
			t.Errorf("%s does not have %q, so nothing was looked at:\n%.2000s", where, mark, text)
		}
	}
	for name, secret := range s.planted {
		for _, form := range []string{
			secret, base64.StdEncoding.EncodeToString([]byte(secret)), url.QueryEscape(secret), hex.EncodeToString([]byte(secret)),
		} {
			if at := strings.Index(text, form); at >= 0 {
				t.Errorf("%s: %s is in it, after %q", where, name, text[max(0, at-80):at])
			}
		}
	}
}

func keyOf(t *testing.T, keyring string) string {
	t.Helper()
	text, err := os.ReadFile(keyring)
	must(t, err)
	_, key, _ := strings.Cut(string(text), "key = ")
	key, _, _ = strings.Cut(key, "\n")
	if len(key) < 30 {
		t.Fatalf("no key in %s", keyring)
	}
	return strings.TrimSpace(key)
}

// pageCertificate writes the certificate that the standard library's test servers have; the secret
// is a line of its key.
func (w *world) pageCertificate(t *testing.T, dir string) (certFile, keyFile, secret string) {
	t.Helper()
	s := httptest.NewTLSServer(nil)
	defer s.Close()
	pair := s.TLS.Certificates[0]
	der, err := x509.MarshalPKCS8PrivateKey(pair.PrivateKey)
	must(t, err)
	key := pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: der})
	certFile, keyFile = filepath.Join(dir, "tls.crt"), filepath.Join(dir, "tls.key")
	must(t, os.WriteFile(certFile, pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: pair.Certificate[0]}), 0o600))
	must(t, os.WriteFile(keyFile, key, 0o600))
	return certFile, keyFile, strings.Split(string(key), "\n")[1]
}

func freeAddress(t *testing.T) string {
	t.Helper()
	l, err := (&net.ListenConfig{}).Listen(t.Context(), "tcp", "127.0.0.1:0")
	must(t, err)
	defer l.Close()
	return l.Addr().String()
}

func askPage(t *testing.T, send func() (*http.Request, error), token string) string {
	t.Helper()
	r, err := send()
	must(t, err)
	r.Header.Set("Authorization", "Bearer "+token)
	r.Header.Set("Content-Type", "application/x-www-form-urlencoded")
	c := http.Client{Transport: &http.Transport{TLSClientConfig: &tls.Config{InsecureSkipVerify: true}}, Timeout: time.Minute}
	answer, err := c.Do(r)
	must(t, err)
	defer answer.Body.Close()
	body, err := io.ReadAll(answer.Body)
	must(t, err)
	return fmt.Sprint(answer.Status, answer.Header, string(body))
}

// supportBundle is all that kubectl escache support-bundle packs, in one text.
func (w *world) supportBundle(t *testing.T) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "bundle.tar.gz")
	var out bytes.Buffer
	args := []string{"support-bundle", "-f", path, "--kubeconfig", w.kube.Kubeconfig(), "--driver-namespace", w.account.Namespace}
	if exit := plugin.Run("test", args, strings.NewReader(""), &out, &out); exit != 0 {
		t.Fatalf("support-bundle: exit %d: %s", exit, out.String())
	}
	file, err := os.Open(path)
	must(t, err)
	defer file.Close()
	packed, err := gzip.NewReader(file)
	must(t, err)
	var text bytes.Buffer
	for archive := tar.NewReader(packed); ; {
		header, err := archive.Next()
		if errors.Is(err, io.EOF) {
			return text.String()
		}
		must(t, err)
		fmt.Fprintln(&text, header.Name)
		_, err = io.Copy(&text, archive)
		must(t, err)
	}
}
