package renewal

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/escache/escache-csi/internal/issuer"
)

var noon = time.Date(2027, 3, 1, 12, 0, 0, 0, time.UTC)

// modes are the two ways in which hosts have certificates, by the name that they share.
var modes = map[string]string{"each host has its own": "", "all hosts share one": shared}

func TestNothingIsWrittenWhileTwoThirdsOfALifeLast(t *testing.T) {
	for mode, name := range modes {
		t.Run(mode, func(t *testing.T) {
			w := start(t, noon, name)
			w.looks(year*2/3, 9*day, w.checkTrust)
			if w.writes != 0 {
				t.Errorf("%d writes", w.writes)
			}
		})
	}
}

func TestCertificatesAndAuthoritiesAreRenewedForDecades(t *testing.T) {
	for mode, name := range modes {
		t.Run(mode, func(t *testing.T) {
			w := start(t, noon, name)
			seen := map[string]bool{}
			w.looks(30*year, 29*day, func() {
				w.checkTrust()
				for _, c := range []struct {
					d    *document
					key  string
					left time.Duration
				}{
					{w.secret(controllerTLS), "tls.crt", year/3 - 30*day},
					{w.secret(controllerTLS), "ca.crt", 10*year/3 - 30*day},
					{w.secret(bothAuthorities), "clients.crt", 10*year/3 - 30*day},
				} {
					is := w.certificate(c.d, c.key)
					if left := is.NotAfter.Sub(w.now); left < c.left {
						t.Fatalf("%s: %s in %s has %s left", w.now, c.key, c.d, left)
					}
					seen[fmt.Sprint(c.key, is.SerialNumber)] = true
				}
			})
			// About 42 certificates of csi-controller one after the other, and five of each authority.
			if len(seen) < 50 || len(seen) > 54 {
				t.Errorf("%d certificates in 30 years", len(seen))
			}
		})
	}
}

func TestARenewalIsTold(t *testing.T) {
	w := start(t, noon, "")
	w.now = noon.Add(7 * year)
	must(t, w.Look(t.Context()))
	happened := w.happened()
	for _, part := range []string{
		`object="Secret escache-controller-tls" certificate="certificate of csi-controller" end=2035-02-27T12:00:00Z`,
		`certificate="authority of the hosts" end=2044-02-25T12:00:00Z`, `certificate="authority of the clients"`,
	} {
		if !strings.Contains(w.log.String(), part) {
			t.Errorf("the log does not tell of %q:\n%s", part, w.log.String())
		}
	}
	for _, part := range []string{
		"Normal CertificateRenewed copy of the authority of the hosts, ends 2044-02-25T12:00:00Z: the authority was renewed; " +
			"certificate of csi-controller, ends 2035-02-27T12:00:00Z: it ends 2028-02-29T12:00:00Z",
		"Normal CertificateRenewed authority of the hosts, ends 2044-02-25T12:00:00Z: it ends 2037-02-26T12:00:00Z; authority of the clients, ",
	} {
		if !strings.Contains(happened, part) {
			t.Errorf("no Event tells of %q:\n%s", part, happened)
		}
	}
}

// dueAtOnce is a world in which the authorities and the certificates have to be renewed now, and have not ended.
func dueAtOnce(t *testing.T, name string) *world {
	t.Helper()
	w := start(t, noon, name)
	w.looks(6*year+230*day, 50*day, func() {})
	w.now = issuer.RenewAt(w.certificate(w.secret(bothAuthorities), "clients.crt"))
	if leaf := issuer.RenewAt(w.certificate(w.secret(controllerTLS), "tls.crt")); leaf.After(w.now) {
		w.now = leaf
	}
	w.checkTrust()
	w.writes = 0
	return w
}

func TestWhereverARenewalStopsAllBelieveEachOther(t *testing.T) {
	broken := errors.New("broken")
	for mode, c := range map[string]struct {
		name   string
		writes int
	}{"each host has its own": {"", 4}, "all hosts share one": {shared, 3}} {
		for stop := 1; stop <= c.writes; stop++ {
			t.Run(fmt.Sprintf("%s, write %d of %d", mode, stop, c.writes), func(t *testing.T) {
				w := dueAtOnce(t, c.name)
				w.before = func(n int, _ client.Object) error {
					if n == stop {
						return broken
					}
					return nil
				}
				if err := w.Look(t.Context()); !errors.Is(err, broken) || w.writes != stop {
					t.Fatalf("%d writes, %v", w.writes, err)
				}
				w.checkTrust()
				must(t, w.Look(t.Context()))
				w.checkTrust()
				if w.writes != c.writes+1 {
					t.Errorf("%d writes, and one of them in vain, not %d", w.writes, c.writes+1)
				}
				must(t, w.Look(t.Context()))
				if w.writes != c.writes+1 {
					t.Error("more is written when all is done")
				}
			})
		}
	}
}

func TestWhatSomebodyElseHasChangedIsReadAgain(t *testing.T) {
	w := dueAtOnce(t, "")
	own := w.is(w.secret(controllerTLS), "tls.crt")
	w.before = func(_ int, o client.Object) error {
		if o.GetName() == "escache"+controllerTLS {
			w.change(w.secret(controllerTLS), "note", []byte("x"))
		}
		return nil
	}
	must(t, w.Look(t.Context()))
	if !bytes.Equal(w.is(w.secret(controllerTLS), "tls.crt"), own) {
		t.Fatal("a change of somebody else is written over")
	}
	w.before = func(int, client.Object) error { return nil }
	must(t, w.Look(t.Context()))
	if bytes.Equal(w.is(w.secret(controllerTLS), "tls.crt"), own) || string(w.is(w.secret(controllerTLS), "note")) != "x" {
		t.Error("the next look does not renew, or takes the change of somebody else back")
	}
}

func TestTroubleIsLoggedOnceAndPasses(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := start(t, noon, "")
		w.now = noon.Add(11 * month)
		w.before = func(int, client.Object) error { return errors.New("no right to write") }
		ctx, stop := context.WithCancel(t.Context())
		ended := make(chan error, 1)
		go func() { ended <- w.Start(ctx) }()
		time.Sleep(10*w.Again + time.Second)
		synctest.Wait()
		if n := strings.Count(w.log.String(), "no right to write"); n != 1 || w.writes < 10 {
			t.Errorf("%d tries, logged %d times:\n%s", w.writes, n, w.log.String())
		}
		w.before = func(int, client.Object) error { return nil }
		time.Sleep(w.Again)
		synctest.Wait()
		w.checkTrust()
		if left := w.certificate(w.secret(controllerTLS), "tls.crt").NotAfter.Sub(w.now); left < 11*month {
			t.Errorf("the certificate is valid for another %s", left)
		}
		stop()
		must(t, <-ended)
	})
}

func TestOnlyTheLeaderRenews(t *testing.T) {
	if !New(Config{}).NeedLeaderElection() {
		t.Error("each replica would renew")
	}
}
