package certificate

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/pem"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/escache/escache-csi/internal/hostcert"
	"github.com/escache/escache-csi/internal/node/kube"
	"github.com/escache/escache-csi/test/testca"
)

// api signs at the second look, unless it is told to do something else.
type api struct {
	t       *testing.T
	by      *testca.Authority
	life    time.Duration
	name    string // in the certificates
	refuse  string
	down    bool
	gone    bool
	asked   int
	looks   int
	request kube.CertificateRequest
}

func (a *api) RequestCertificate(_ context.Context, r kube.CertificateRequest) (string, error) {
	if a.down {
		return "", kube.ErrUnavailable
	}
	a.asked++
	a.looks = 0
	a.request = r
	return fmt.Sprint("request-", a.asked), nil
}

func (a *api) Certificate(_ context.Context, name string) (kube.CertificateAnswer, error) {
	a.looks++
	switch {
	case a.down:
		return kube.CertificateAnswer{}, kube.ErrUnavailable
	case a.gone || name != fmt.Sprint("request-", a.asked):
		return kube.CertificateAnswer{}, kube.ErrNotFound
	case a.refuse != "":
		return kube.CertificateAnswer{Refused: a.refuse}, nil
	case a.looks < 2:
		return kube.CertificateAnswer{}, nil
	}
	key, err := hostcert.Check(a.request.Request, "n1", "n1.example")
	if err != nil {
		a.t.Fatal(err)
	}
	certificate, err := a.by.For(key, a.name, time.Now().Add(a.life))
	if err != nil {
		a.t.Fatal(err)
	}
	return kube.CertificateAnswer{Certificate: certificate}, nil
}

type world struct {
	*Keeper

	api *api
}

func start(t *testing.T) *world {
	t.Helper()
	by, err := testca.NewAuthority("hosts")
	if err != nil {
		t.Fatal(err)
	}
	w := &world{api: &api{t: t, by: by, life: 90 * 24 * time.Hour, name: "n1.example"}}
	dir := t.TempDir()
	w.Keeper = New(Options{
		Node: "n1", Name: "n1.example", File: filepath.Join(dir, "tls", "escached.pem"), Authority: filepath.Join(dir, "ca"),
		API: w.api, Log: slog.New(slog.DiscardHandler),
	})
	w.trust(t, by)
	return w
}

func (w *world) trust(t *testing.T, a *testca.Authority) {
	t.Helper()
	if err := os.WriteFile(w.options.Authority, a.Certificate(), 0o600); err != nil {
		t.Fatal(err)
	}
}

// steps goes on until there is nothing to do for a minute, or n times.
func (w *world) steps(t *testing.T, n int) {
	t.Helper()
	for range n {
		if w.step(t.Context()) >= checkEvery && w.pending == nil {
			return
		}
	}
}

// serial numbers the certificate that is there.
func (w *world) serial(t *testing.T) string {
	t.Helper()
	pair, err := tls.LoadX509KeyPair(w.options.File, w.options.File)
	if err != nil {
		t.Fatal(err)
	}
	leaf, err := x509.ParseCertificate(pair.Certificate[0])
	if err != nil {
		t.Fatal(err)
	}
	return leaf.SerialNumber.String()
}

func TestAMissingCertificateIsAskedFor(t *testing.T) {
	w := start(t)
	w.steps(t, 10)
	w.serial(t)
	if info, err := os.Stat(w.options.File); err != nil || info.Mode().Perm() != 0o600 {
		t.Errorf("%v %v", info, err)
	}
	if w.api.request.Signer != hostcert.Signer || w.api.asked != 1 {
		t.Errorf("%d requests, the last of signer %q", w.api.asked, w.api.request.Signer)
	}
	w.steps(t, 10)
	if again := New(w.options); again.step(t.Context()) != checkEvery || w.api.asked != 1 {
		t.Error("a good certificate is asked for again")
	}
}

func TestACertificateIsReplacedWhenItHasTo(t *testing.T) {
	for what, change := range map[string]func(*testing.T, *world){
		"a third of its life is left": func(_ *testing.T, w *world) {
			w.now = func() time.Time { return time.Now().Add(w.api.life*2/3 + time.Hour) }
		},
		"it is over": func(_ *testing.T, w *world) {
			w.now = func() time.Time { return time.Now().Add(w.api.life + time.Hour) }
		},
		"it has another name": func(_ *testing.T, w *world) { w.options.Name = "n1.example"; w.api.name = "n1.example" },
		"it is damaged": func(t *testing.T, w *world) {
			if err := os.WriteFile(w.options.File, []byte("half"), 0o600); err != nil {
				t.Fatal(err)
			}
		},
		"the authority is another": func(t *testing.T, w *world) {
			by, err := testca.NewAuthority("next")
			if err != nil {
				t.Fatal(err)
			}
			w.api.by = by
			w.trust(t, by)
		},
		"the authority becomes known, and is another": func(t *testing.T, w *world) {
			if err := os.Remove(w.options.Authority); err != nil {
				t.Fatal(err)
			}
			if w.step(t.Context()) != checkEvery {
				t.Error("it is replaced while the authority is not known")
			}
			by, err := testca.NewAuthority("next")
			if err != nil {
				t.Fatal(err)
			}
			w.api.by = by
			w.trust(t, by)
		},
	} {
		t.Run(what, func(t *testing.T) {
			w := start(t)
			if what == "it has another name" { // of all hosts, before each had its own
				w.options.Name, w.api.name = "shared.example", "shared.example"
				pair, err := w.api.by.Server("shared.example")
				if err != nil {
					t.Fatal(err)
				}
				if err := replace(w.options.File, append(pair.Certificate, pair.Key...)); err != nil {
					t.Fatal(err)
				}
			}
			w.steps(t, 10)
			before, asked := w.serial(t), w.api.asked
			change(t, w)
			w.step(t.Context()) // asks
			if w.api.asked != asked+1 {
				t.Fatal("nothing is asked for")
			}
			w.now = time.Now
			w.steps(t, 10)
			if w.serial(t) == before {
				t.Error("it is still the old one")
			}
		})
	}
}

func TestTroubleLeavesTheOldCertificateAndIsTriedAgain(t *testing.T) {
	for what, trouble := range map[string]func(*api){
		"the API server is down":        func(a *api) { a.down = true },
		"the request is refused":        func(a *api) { a.refuse = "Denied" },
		"the request is gone":           func(a *api) { a.gone = true },
		"the certificate is of another": func(a *api) { a.name = "n2.example" },
	} {
		t.Run(what, func(t *testing.T) {
			w := start(t)
			w.steps(t, 10)
			before := w.serial(t)
			w.now = func() time.Time { return time.Now().Add(w.api.life * 9 / 10) }
			good := *w.api
			trouble(w.api)
			for range 12 {
				if wait := w.step(t.Context()); wait > refusedWait || wait < firstWait {
					t.Fatalf("waits %s", wait)
				}
			}
			if w.serial(t) != before {
				t.Fatal("the old certificate is gone")
			}
			w.api.down, w.api.refuse, w.api.gone, w.api.name = good.down, good.refuse, good.gone, good.name
			w.pending = nil
			w.step(t.Context())
			w.now = time.Now
			w.steps(t, 10)
			if w.serial(t) == before {
				t.Error("it is not renewed when the trouble is over")
			}
		})
	}
}

func TestRunEndsWithItsContext(t *testing.T) {
	ctx, stop := context.WithCancel(t.Context())
	stop()
	if err := start(t).Run(ctx); err != nil && !errors.Is(err, context.Canceled) {
		t.Error(err)
	}
}

func TestTheFileHasBothKeyAndCertificate(t *testing.T) {
	w := start(t)
	w.steps(t, 10)
	content, err := os.ReadFile(w.options.File)
	if err != nil {
		t.Fatal(err)
	}
	first, rest := pem.Decode(content)
	second, rest := pem.Decode(rest)
	if first.Type != "CERTIFICATE" || second.Type != "PRIVATE KEY" || len(rest) > 0 {
		t.Errorf("%s", content)
	}
}
