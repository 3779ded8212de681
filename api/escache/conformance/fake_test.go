package conformance

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/pem"
	"fmt"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/escache/escache-csi/api/escache"
	"github.com/escache/escache-csi/api/escache/escachetest"
)

// fake serves the two hosts of a world that breaks a rule over TLS; "" breaks none.
func fake(t *testing.T, rule string) Target {
	t.Helper()
	w := escachetest.Breaking(rule)
	trusted := x509.NewCertPool()
	own, other := trustedClient(t, trusted, "csi-controller"), trustedClient(t, trusted, "webshop")
	target := Target{
		Pool: "rbd", Storage: w, Other: other, FirstPort: 7800, FirstMinor: 100, ImageBytes: 128 * mib, CallTimeout: 20 * time.Second,
		Record: func(_ context.Context, ref escache.VolumeRef, _, host string, epoch int64) error {
			for _, h := range w.Hosts {
				if h.Name != host {
					h.Supersede(ref, epoch)
				}
			}
			return nil
		},
		FailDisk: w.FailDisk, Restart: w.Restart,
	}
	for i, h := range w.Hosts {
		handler, err := h.Handler()
		if err != nil {
			t.Fatal(err)
		}
		server := httptest.NewUnstartedServer(named(handler, rule))
		server.TLS = &tls.Config{ClientAuth: tls.RequireAndVerifyClientCert, ClientCAs: trusted}
		if rule == "anybody may call" {
			server.TLS.ClientAuth = tls.RequestClientCert
		}
		server.Config.ErrorLog = slog.NewLogLogger(slog.DiscardHandler, slog.LevelError)
		server.StartTLS()
		t.Cleanup(server.Close)
		own.CA = filepath.Join(t.TempDir(), "ca")
		writePEM(t, own.CA, "CERTIFICATE", server.Certificate().Raw)
		target.Hosts[i] = Host{Name: h.Name, Address: fmt.Sprintf("10.0.0.%d", i+1), URL: server.URL, TLS: own, Devices: h}
	}
	return target
}

// trustedClient makes a client's certificate, and has it trusted.
func trustedClient(t *testing.T, by *x509.CertPool, name string) TLSFiles {
	t.Helper()
	own, err := selfSigned(name)
	if err != nil {
		t.Fatal(err)
	}
	leaf, err := x509.ParseCertificate(own.Certificate[0])
	if err != nil {
		t.Fatal(err)
	}
	by.AddCert(leaf)
	key, err := x509.MarshalPKCS8PrivateKey(own.PrivateKey)
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	files := TLSFiles{Cert: filepath.Join(dir, "cert"), Key: filepath.Join(dir, "key")}
	writePEM(t, files.Cert, "CERTIFICATE", own.Certificate[0])
	writePEM(t, files.Key, "PRIVATE KEY", key)
	return files
}

func writePEM(t *testing.T, path, kind string, der []byte) {
	t.Helper()
	if err := os.WriteFile(path, pem.EncodeToMemory(&pem.Block{Type: kind, Bytes: der}), 0o600); err != nil {
		t.Fatal(err)
	}
}

// named lets only csi-controller through.
func named(next http.Handler, rule string) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if rule == "anybody may call" || rule == "every name may call" || r.TLS.PeerCertificates[0].Subject.CommonName == "csi-controller" {
			next.ServeHTTP(w, r)
			return
		}
		w.Header().Set("Content-Type", escache.ProblemContentType)
		w.WriteHeader(http.StatusForbidden)
		_, _ = fmt.Fprint(w, `{"type":"urn:escache:problem:forbidden","title":"Forbidden","status":403,"detail":"not you","code":"forbidden"}`)
	})
}

// TestSuitePassesWhatFollowsTheContract: no check may demand more than the contract says.
func TestSuitePassesWhatFollowsTheContract(t *testing.T) {
	target := fake(t, "")
	if err := target.Validate(); err != nil {
		t.Fatal(err)
	}
	Run(t, target)
}

// TestSuitePassesHoldsInWhichIOGoesOn: the engine log is the only one.
func TestSuitePassesHoldsInWhichIOGoesOn(t *testing.T) {
	target := fake(t, "")
	target.Engine = escache.EngineLog
	for _, check := range holdChecks() {
		t.Run(check.Name, func(t *testing.T) {
			t.Parallel()
			runCheck(t, target, check)
		})
	}
}

func TestSuiteCatchesEveryBrokenRule(t *testing.T) {
	for _, check := range Checks() {
		if len(mutants[check.Name]) == 0 {
			t.Errorf("nothing shows that %q can fail", check.Name)
		}
		for _, rule := range mutants[check.Name] {
			t.Run(rule, func(t *testing.T) {
				t.Parallel()
				target := fake(t, rule)
				target.CallTimeout, target.Engine = 5*time.Second, engines[check.Name]
				r := record(t.Context(), func(r *recorder) { runCheck(r, target, check) })
				if !r.Failed() {
					t.Errorf("%q passes although %s", check.Name, rule)
				}
				t.Logf("%s: %.300s", check.Name, strings.Join(r.said, "; "))
			})
		}
	}
	for name := range mutants {
		if !slices.ContainsFunc(Checks(), func(c Check) bool { return c.Name == name }) {
			t.Errorf("there is no check %q", name)
		}
	}
}

// recorder is a T for a check that is meant to fail.
type recorder struct {
	ctx      context.Context
	mu       sync.Mutex
	said     []string
	cleanups []func()
}

func record(ctx context.Context, f func(*recorder)) *recorder {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	r := &recorder{ctx: ctx}
	inGoroutine := func(f func()) {
		done := make(chan struct{})
		go func() {
			defer close(done)
			f()
		}()
		<-done
	}
	inGoroutine(func() { f(r) })
	for len(r.cleanups) > 0 {
		last := r.cleanups[len(r.cleanups)-1]
		r.cleanups = r.cleanups[:len(r.cleanups)-1]
		inGoroutine(last)
	}
	return r
}

func (r *recorder) Helper()                   {}
func (r *recorder) Context() context.Context  { return r.ctx }
func (r *recorder) Logf(string, ...any)       {}
func (r *recorder) Cleanup(f func())          { r.cleanups = append(r.cleanups, f) }
func (r *recorder) Skipf(f string, a ...any)  { runtime.Goexit() }
func (r *recorder) Fatalf(f string, a ...any) { r.Errorf(f, a...); runtime.Goexit() }

func (r *recorder) Errorf(format string, args ...any) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.said = append(r.said, fmt.Sprintf(format, args...))
}

func (r *recorder) Failed() bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	return len(r.said) > 0
}
