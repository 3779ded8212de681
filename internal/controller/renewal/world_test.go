package renewal

import (
	"bytes"
	"context"
	"crypto/x509"
	"encoding/pem"
	"log/slog"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/tools/events"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"

	"github.com/escache/escache-csi/internal/issuer"
	"github.com/escache/escache-csi/test/testca"
)

const (
	day   = 24 * time.Hour
	month = 30 * day
	year  = 365 * day

	space  = "escache-system"
	shared = "escached.example"
)

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// world is what Helm has installed at a time, and a Renewal with a clock.
type world struct {
	*Renewal

	t      *testing.T
	api    client.Client
	now    time.Time
	log    bytes.Buffer
	events *events.FakeRecorder
	writes int
	// before is called before each write, with its number; an error takes the write's place.
	before func(n int, o client.Object) error
}

// start installs at a time. name is that of the certificate of all hosts, empty if each has its own.
func start(t *testing.T, at time.Time, name string) *world {
	t.Helper()
	w := &world{t: t, now: at, events: events.NewFakeRecorder(1000), before: func(int, client.Object) error { return nil }}
	scheme := runtime.NewScheme()
	must(t, corev1.AddToScheme(scheme))
	w.api = interceptor.NewClient(fake.NewClientBuilder().WithScheme(scheme).Build(), interceptor.Funcs{
		Update: func(ctx context.Context, c client.WithWatch, o client.Object, opts ...client.UpdateOption) error {
			w.writes++
			if err := w.before(w.writes, o); err != nil {
				return err
			}
			return c.Update(ctx, o, opts...)
		},
	})
	w.Renewal = New(Config{
		Reader: w.api, Writer: w.api, Namespace: space, Prefix: "escache", ClientName: "csi-controller", SharedName: name,
		Life: year, AuthorityLife: 10 * year, Events: w.events, Log: slog.New(slog.NewTextHandler(&w.log, nil)),
		Now: func() time.Time { return w.now }, Again: time.Minute, Longest: time.Minute,
	})
	w.install(newAuthority(t, "escached", at), newAuthority(t, "clients", at))
	return w
}

// newAuthority is one as Helm makes it.
func newAuthority(t *testing.T, name string, at time.Time) *testca.Authority {
	t.Helper()
	a, err := testca.NewAuthority(name, func(c *x509.Certificate) { c.NotBefore, c.NotAfter = at, at.Add(10*year) })
	must(t, err)
	return a
}

func (w *world) install(servers, callers *testca.Authority) {
	w.t.Helper()
	serversOwn, err := servers.Own()
	must(w.t, err)
	callersOwn, err := callers.Own()
	must(w.t, err)
	w.create(bothAuthorities, map[string][]byte{
		"servers.crt": serversOwn.Certificate, "servers.key": serversOwn.Key, "clients.crt": callersOwn.Certificate, "clients.key": callersOwn.Key,
	})
	from := func(c *x509.Certificate) { c.NotBefore, c.NotAfter = w.now, w.now.Add(year) }
	own, err := callers.Issue(w.ClientName, from)
	must(w.t, err)
	w.create(controllerTLS, map[string][]byte{"ca.crt": serversOwn.Certificate, "tls.crt": own.Certificate, "tls.key": own.Key})
	if w.SharedName != "" {
		all, err := servers.Issue(w.SharedName, from, func(c *x509.Certificate) { c.DNSNames = []string{w.SharedName} })
		must(w.t, err)
		w.create(sharedTLS, map[string][]byte{"ca.crt": callersOwn.Certificate, "tls.crt": all.Certificate, "tls.key": all.Key})
		return
	}
	w.create(hostsAuthority, map[string][]byte{"tls.crt": serversOwn.Certificate, "tls.key": serversOwn.Key})
	must(w.t, w.api.Create(w.t.Context(), &corev1.ConfigMap{
		ObjectMeta: metav1.ObjectMeta{Namespace: space, Name: "escache" + believed},
		Data:       map[string]string{"clients.crt": string(callersOwn.Certificate), "hosts.crt": string(serversOwn.Certificate)},
	}))
}

func (w *world) create(suffix string, data map[string][]byte) {
	w.t.Helper()
	must(w.t, w.api.Create(w.t.Context(), &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Namespace: space, Name: "escache" + suffix}, Data: data}))
}

// is returns what an object has.
func (w *world) is(d *document, key string) []byte {
	w.t.Helper()
	must(w.t, d.read(w.t.Context(), w.api))
	return d.get(key)
}

// change is somebody else's change of a key.
func (w *world) change(d *document, key string, value []byte) {
	w.t.Helper()
	must(w.t, d.read(w.t.Context(), w.api))
	d.set(key, value)
	before := w.before
	w.before = func(int, client.Object) error { return nil }
	must(w.t, d.write(w.t.Context(), w.api))
	w.before = before
	w.writes--
}

func (w *world) certificate(d *document, key string) *x509.Certificate {
	w.t.Helper()
	c, err := parse(w.is(d, key))
	must(w.t, err)
	return c
}

// trust is whom hosts and csi-controller believe, by where that is mounted.
func (w *world) trust() (callers, servers map[string]*x509.Certificate) {
	w.t.Helper()
	controller := map[string]*x509.Certificate{"csi-controller's Secret": w.certificate(w.secret(controllerTLS), "ca.crt")}
	if w.SharedName != "" {
		return map[string]*x509.Certificate{"the Secret of all hosts": w.certificate(w.secret(sharedTLS), "ca.crt")}, controller
	}
	controller["the hosts' authority"] = w.certificate(w.secret(hostsAuthority), "tls.crt")
	controller["the ConfigMap"] = w.certificate(w.authoritiesMap(), "hosts.crt")
	return map[string]*x509.Certificate{"the ConfigMap": w.certificate(w.authoritiesMap(), "clients.crt")}, controller
}

// server is the certificate that a host shows: that of all hosts, or one that is signed now.
func (w *world) server() *x509.Certificate {
	w.t.Helper()
	if w.SharedName != "" {
		return w.certificate(w.secret(sharedTLS), "tls.crt")
	}
	a, err := issuer.Parse(w.is(w.secret(hostsAuthority), "tls.crt"), w.is(w.secret(hostsAuthority), "tls.key"))
	must(w.t, err)
	cert, _, err := a.Issue(issuer.Subject{CommonName: "n1", DNSNames: []string{"n1.example"}, Usage: x509.ExtKeyUsageServerAuth}, w.now, 90*day)
	must(w.t, err)
	block, _ := pem.Decode(cert)
	leaf, err := x509.ParseCertificate(block.Bytes)
	must(w.t, err)
	return leaf
}

// checkTrust fails unless all believe each other now, and nobody believes a certificate of authorities that have only
// the names of ours.
func (w *world) checkTrust() {
	w.t.Helper()
	callers, servers := w.trust()
	check := func(roots map[string]*x509.Certificate, leaf *x509.Certificate, usage x509.ExtKeyUsage, want bool) {
		w.t.Helper()
		for where, root := range roots {
			pool := x509.NewCertPool()
			pool.AddCert(root)
			_, err := leaf.Verify(x509.VerifyOptions{Roots: pool, CurrentTime: w.now, KeyUsages: []x509.ExtKeyUsage{usage}})
			if (err == nil) != want {
				w.t.Fatalf("%s: who believes the authority in %s believes %s: %v, want %t", w.now, where, leaf.Subject, err, want)
			}
		}
	}
	check(callers, w.certificate(w.secret(controllerTLS), "tls.crt"), x509.ExtKeyUsageClientAuth, true)
	check(servers, w.server(), x509.ExtKeyUsageServerAuth, true)
	if w.SharedName == "" { // Helm's certificates are for both usages, so in one authority they would open each host
		check(callers, w.server(), x509.ExtKeyUsageAny, false)
		check(servers, w.certificate(w.secret(controllerTLS), "tls.crt"), x509.ExtKeyUsageAny, false)
	}
	for name, roots := range map[string]map[string]*x509.Certificate{"clients": callers, "escached": servers} {
		pair, err := newAuthority(w.t, name, w.now).Issue("csi-controller")
		must(w.t, err)
		stranger, err := parse(pair.Certificate)
		must(w.t, err)
		stranger.NotBefore, stranger.NotAfter = w.now.Add(-day), w.now.Add(day)
		check(roots, stranger, x509.ExtKeyUsageAny, false)
	}
}

// happened are the Events.
func (w *world) happened() string {
	var all []string
	for len(w.events.Events) > 0 {
		all = append(all, <-w.events.Events)
	}
	return strings.Join(all, "\n")
}

// looks lets time pass in steps, with a look at each.
func (w *world) looks(span, step time.Duration, each func()) {
	w.t.Helper()
	for end := w.now.Add(span); w.now.Before(end); w.now = w.now.Add(step) {
		must(w.t, w.Look(w.t.Context()))
		each()
	}
}
