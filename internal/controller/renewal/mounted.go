package renewal

import (
	"bytes"
	"crypto/tls"
	"crypto/x509"
	"encoding/pem"
	"errors"
	"fmt"
	"maps"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/escache/escache-csi/internal/issuer"
)

// What the names of the chart's objects end with.
const (
	bothAuthorities = "-tls-authority" // both authorities, with their keys
	hostsAuthority  = "-hosts-authority"
	believed        = "-authorities" // a ConfigMap with the certificates of both
	controllerTLS   = "-controller-tls"
	sharedTLS       = "-escached-tls"
)

// role is whose certificates an authority signs.
type role string

const (
	hosts   role = "hosts"
	clients role = "clients"
)

// certificateKey and privateKey are the authority's keys in the Secret with both.
func (r role) certificateKey() string { return r.name() + ".crt" }
func (r role) privateKey() string     { return r.name() + ".key" }

func (r role) name() string {
	if r == hosts {
		return "servers"
	}
	return string(r)
}

type authorities map[role]*issuer.Authority

func readAuthorities(d *document) (authorities, error) {
	known := authorities{}
	for _, who := range []role{hosts, clients} {
		a, err := issuer.Parse(d.get(who.certificateKey()), d.get(who.privateKey()))
		if err != nil {
			return nil, fmt.Errorf("authority of the %s in %s: %w", who, d, err)
		}
		known[who] = a
	}
	return known, nil
}

// mounted is an object that pods mount.
type mounted struct {
	*document

	// copies are the keys with an authority's certificate.
	copies map[string]role
	// leaf is what tls.crt and tls.key have to be; nil if they are not ours to renew.
	leaf *leaf
}

// leaf is a certificate that an authority signs.
type leaf struct {
	by role
	of issuer.Subject
}

// mounted lists the objects as templates/tls/generated.yaml in the chart makes them.
func (r *Renewal) mounted() []mounted {
	client := &leaf{clients, issuer.Subject{CommonName: r.ClientName, Usage: x509.ExtKeyUsageClientAuth}}
	controller := mounted{r.secret(controllerTLS), map[string]role{"ca.crt": hosts}, client}
	if r.SharedName != "" {
		names := []string{r.SharedName}
		server := &leaf{hosts, issuer.Subject{CommonName: r.SharedName, DNSNames: names, Usage: x509.ExtKeyUsageServerAuth}}
		return []mounted{{r.secret(sharedTLS), map[string]role{"ca.crt": clients}, server}, controller}
	}
	return []mounted{
		{r.authoritiesMap(), map[string]role{"clients.crt": clients, "hosts.crt": hosts}, nil},
		{r.secret(hostsAuthority), map[string]role{corev1.TLSCertKey: hosts}, nil},
		controller,
	}
}

// compare returns an error unless every copy is a certificate of the authority that is kept.
func (m *mounted) compare(kept *document, known authorities) error {
	for _, key := range m.keys() {
		is := known[m.copies[key]].Certificate()
		was, err := parse(m.get(key))
		if err != nil {
			return fmt.Errorf("%s in %s: %w; helm upgrade writes it again", key, m, err)
		}
		if !bytes.Equal(was.RawSubject, is.RawSubject) || !bytes.Equal(was.RawSubjectPublicKeyInfo, is.RawSubjectPublicKeyInfo) {
			return fmt.Errorf("%s in %s is not of the authority in %s; helm upgrade makes them agree", key, m, kept)
		}
	}
	return nil
}

func (m *mounted) keys() []string { return slices.Sorted(maps.Keys(m.copies)) }

// wrong returns why a certificate has to be issued; nil if the one that is there is good.
func (l *leaf) wrong(d *document, known authorities, now time.Time) error {
	pair, err := tls.X509KeyPair(d.get(corev1.TLSCertKey), d.get(corev1.TLSPrivateKeyKey))
	if err != nil {
		return err
	}
	if !now.Before(issuer.RenewAt(pair.Leaf)) {
		return ends(pair.Leaf)
	}
	if pair.Leaf.Subject.CommonName != l.of.CommonName {
		return fmt.Errorf("it is for %q", pair.Leaf.Subject.CommonName)
	}
	roots := x509.NewCertPool()
	roots.AddCert(known[l.by].Certificate())
	want := x509.VerifyOptions{Roots: roots, CurrentTime: now, KeyUsages: []x509.ExtKeyUsage{l.of.Usage}}
	if len(l.of.DNSNames) > 0 {
		want.DNSName = l.of.DNSNames[0]
	}
	_, err = pair.Leaf.Verify(want)
	return err
}

// issue puts a new certificate and its key into a document, and returns when it ends.
func (l *leaf) issue(d *document, known authorities, now time.Time, life time.Duration) (end time.Time, err error) {
	cert, key, err := known[l.by].Issue(l.of, now, life)
	if err != nil {
		return end, err
	}
	made, err := parse(cert)
	if err != nil {
		return end, err
	}
	d.set(corev1.TLSCertKey, cert)
	d.set(corev1.TLSPrivateKeyKey, key)
	if err := l.wrong(d, known, now); err != nil { // or it would be issued again and again
		return end, fmt.Errorf("the authority of the %s in use cannot issue one for %s: %w", l.by, l.of.CommonName, err)
	}
	return made.NotAfter, nil
}

// parse reads the only certificate in a PEM text.
func parse(text []byte) (*x509.Certificate, error) {
	block, rest := pem.Decode(text)
	if block == nil || len(bytes.TrimSpace(rest)) > 0 {
		return nil, errors.New("it is not one certificate in PEM")
	}
	return x509.ParseCertificate(block.Bytes)
}

func ends(c *x509.Certificate) error {
	return fmt.Errorf("it ends %s", c.NotAfter.UTC().Format(time.RFC3339))
}
