package conformance

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/pem"
	"fmt"
	"log/slog"
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
	own, err := selfSigned()
	if err != nil {
		t.Fatal(err)
	}
	trusted := x509.NewCertPool()
	leaf, err := x509.ParseCertificate(own.Certificate[0])
	if err != nil {
		t.Fatal(err)
	}
	trusted.AddCert(leaf)
	key, err := x509.MarshalPKCS8PrivateKey(own.PrivateKey)
	if err != nil {
		t.Fatal(err)
	}
	target := Target{
		Pool: "rbd", Storage: w, FirstPort: 7800, FirstMinor: 100, ImageBytes: 128 * mib, CallTimeout: 20 * time.Second,
		Record: func(_ context.Context, ref escache.VolumeRef, _, host string, epoch int64) error {
			for _, h := range w.Hosts {
				if h.Name != host {
					h.Supersede(ref, epoch)
				}
			}
			return nil
		},
	}
	for i, h := range w.Hosts {
		handler, err := h.Handler()
		if err != nil {
			t.Fatal(err)
		}
		server := httptest.NewUnstartedServer(handler)
		server.TLS = &tls.Config{ClientAuth: tls.RequireAndVerifyClientCert, ClientCAs: trusted}
		if rule == "anybody may call" {
			server.TLS.ClientAuth = tls.RequestClientCert
		}
		server.Config.ErrorLog = slog.NewLogLogger(slog.DiscardHandler, slog.LevelError)
		server.StartTLS()
		t.Cleanup(server.Close)
		dir := t.TempDir()
		files := TLSFiles{CA: filepath.Join(dir, "ca"), Cert: filepath.Join(dir, "cert"), Key: filepath.Join(dir, "key")}
		for path, block := range map[string]*pem.Block{
			files.CA:   {Type: "CERTIFICATE", Bytes: server.Certificate().Raw},
			files.Cert: {Type: "CERTIFICATE", Bytes: own.Certificate[0]},
			files.Key:  {Type: "PRIVATE KEY", Bytes: key},
		} {
			if err := os.WriteFile(path, pem.EncodeToMemory(block), 0o600); err != nil {
				t.Fatal(err)
			}
		}
		target.Hosts[i] = Host{Name: h.Name, Address: fmt.Sprintf("10.0.0.%d", i+1), URL: server.URL, TLS: files, Devices: h}
	}
	return target
}

// TestSuitePassesWhatFollowsTheContract: no check may demand more than the contract says.
func TestSuitePassesWhatFollowsTheContract(t *testing.T) {
	target := fake(t, "")
	if err := target.Validate(); err != nil {
		t.Fatal(err)
	}
	Run(t, target)
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
				target.CallTimeout = 5 * time.Second
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
