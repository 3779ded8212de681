package renewal

import (
	"crypto/x509"
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/escache/escache-csi/internal/issuer"
)

// put writes a certificate of our own authority, after a change.
func (w *world) put(d *document, l *leaf, change func(*issuer.Subject)) {
	w.t.Helper()
	kept := w.secret(bothAuthorities)
	must(w.t, kept.read(w.t.Context(), w.api))
	known, err := readAuthorities(kept)
	must(w.t, err)
	of := l.of
	change(&of)
	cert, key, err := known[l.by].Issue(of, w.now, year)
	must(w.t, err)
	w.change(d, "tls.crt", cert)
	w.change(d, "tls.key", key)
}

func TestACertificateThatIsNotGoodIsReplaced(t *testing.T) {
	spoils := map[string]func(w *world, d *document, l *leaf){
		"it is another authority's": func(w *world, d *document, l *leaf) {
			pair, err := newAuthority(w.t, "clients", w.now).Issue(l.of.CommonName)
			must(w.t, err)
			w.change(d, "tls.crt", pair.Certificate)
			w.change(d, "tls.key", pair.Key)
		},
		"it has another name": func(w *world, d *document, l *leaf) {
			w.put(d, l, func(s *issuer.Subject) { s.CommonName, s.DNSNames = "another", []string{"another"} })
		},
		"it is for the other usage": func(w *world, d *document, l *leaf) {
			w.put(d, l, func(s *issuer.Subject) {
				s.Usage = x509.ExtKeyUsageClientAuth + x509.ExtKeyUsageServerAuth - s.Usage
			})
		},
		"the key is another's": func(w *world, d *document, _ *leaf) {
			pair, err := newAuthority(w.t, "clients", w.now).Issue("another")
			must(w.t, err)
			w.change(d, "tls.key", pair.Key)
		},
		"it is no certificate": func(w *world, d *document, _ *leaf) { w.change(d, "tls.crt", []byte("x")) },
		"the key is missing":   func(w *world, d *document, _ *leaf) { w.change(d, "tls.key", nil) },
		"it is over":           func(w *world, _ *document, _ *leaf) { w.now = w.now.Add(2 * year) },
	}
	for mode, name := range modes {
		for what, spoil := range spoils {
			t.Run(mode+": "+what, func(t *testing.T) {
				for n := range start(t, noon, name).mounted() {
					w := start(t, noon, name)
					m := w.mounted()[n]
					if m.leaf == nil {
						continue
					}
					spoil(w, m.document, m.leaf)
					w.writes = 0
					must(t, w.Look(t.Context()))
					w.checkTrust()
					if w.writes == 0 {
						t.Errorf("%s is left as it is", m)
					}
					writes := w.writes
					must(t, w.Look(t.Context()))
					if w.writes != writes {
						t.Errorf("%s is written again", m)
					}
				}
			})
		}
	}
}

// TestNothingIsMixedWithAnotherAuthority: helm upgrade may be replacing the authorities, or may have stopped half-way.
func TestNothingIsMixedWithAnotherAuthority(t *testing.T) {
	for mode, name := range modes {
		for n, m := range start(t, noon, name).mounted() {
			for _, key := range m.keys() {
				t.Run(fmt.Sprintf("%s: %s in %s", mode, key, m), func(t *testing.T) {
					w := dueAtOnce(t, name)
					d := w.mounted()[n].document
					ours := w.is(d, key)
					pair, err := newAuthority(t, "clients", w.now).Own()
					must(t, err)
					for what, content := range map[string][]byte{
						"another": pair.Certificate, "both": slices.Concat(pair.Certificate, ours), "ours first": slices.Concat(ours, pair.Certificate),
						"no": []byte("x"),
					} {
						w.change(d, key, content)
						err := w.Look(t.Context())
						if err == nil || !strings.Contains(err.Error(), key+" in "+d.String()) || !strings.Contains(err.Error(), "helm upgrade") || w.writes != 0 {
							t.Errorf("with %s authority: %d writes, %v", what, w.writes, err)
						}
					}
					w.change(d, key, ours)
					must(t, w.Look(t.Context()))
					w.checkTrust()
				})
			}
		}
	}
}

func TestWithoutAUsableAuthorityNothingIsWritten(t *testing.T) {
	for what, spoil := range map[string]func(*world){
		"servers": func(w *world) { w.change(w.secret(bothAuthorities), "servers.key", []byte("x")) },
		"clients": func(w *world) { w.change(w.secret(bothAuthorities), "clients.crt", nil) },
		"a leaf": func(w *world) {
			for _, key := range []string{"crt", "key"} {
				w.change(w.secret(bothAuthorities), "clients."+key, w.is(w.secret(controllerTLS), "tls."+key))
			}
		},
		"no Secret": func(w *world) {
			d := w.secret(bothAuthorities)
			must(w.t, d.read(w.t.Context(), w.api))
			must(w.t, w.api.Delete(w.t.Context(), d.object))
		},
	} {
		t.Run(what, func(t *testing.T) {
			w := dueAtOnce(t, "")
			spoil(w)
			if err := w.Look(t.Context()); err == nil || !strings.Contains(err.Error(), "Secret escache-tls-authority") || w.writes != 0 {
				t.Errorf("%d writes, %v", w.writes, err)
			}
		})
	}
}
