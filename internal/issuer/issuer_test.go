package issuer

import (
	"bytes"
	"crypto/tls"
	"crypto/x509"
	"slices"
	"testing"
	"time"

	"github.com/escache/escache-csi/test/testca"
)

const day = 24 * time.Hour

var noon = time.Date(2027, 3, 1, 12, 0, 0, 0, time.UTC)

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// authority is one that began 70 days before noon and lasts 100 days.
func authority(t *testing.T, name string) *Authority {
	t.Helper()
	made, err := testca.NewAuthority(name, func(c *x509.Certificate) {
		c.NotBefore, c.NotAfter = noon.Add(-70*day), noon.Add(30*day)
	})
	must(t, err)
	pair, err := made.Own()
	must(t, err)
	a, err := Parse(pair.Certificate, pair.Key)
	must(t, err)
	return a
}

// issue returns a client's certificate.
func issue(t *testing.T, a *Authority, now time.Time, life time.Duration) *x509.Certificate {
	t.Helper()
	cert, key, err := a.Issue(Subject{CommonName: "c", Usage: x509.ExtKeyUsageClientAuth}, now, life)
	must(t, err)
	pair, err := tls.X509KeyPair(cert, key)
	must(t, err)
	return pair.Leaf
}

// believes reports whether somebody who has only this certificate of an authority believes a client.
func believes(a *Authority, client *x509.Certificate, now time.Time) bool {
	roots := x509.NewCertPool()
	roots.AppendCertsFromPEM(a.PEM())
	_, err := client.Verify(x509.VerifyOptions{Roots: roots, CurrentTime: now, KeyUsages: []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth}})
	return err == nil
}

func TestARenewedAuthorityAndTheOldOneBelieveTheSameCertificates(t *testing.T) {
	old := authority(t, "a")
	renewed, err := old.Renew(noon, 100*day)
	must(t, err)
	sameName := authority(t, "a")
	for what, c := range map[string]struct {
		by       *Authority
		believed bool
	}{"the old one": {old, true}, "the renewed one": {renewed, true}, "one of the same name": {sameName, false}} {
		client := issue(t, c.by, noon, 10*day)
		for who, a := range map[string]*Authority{"the old one": old, "the renewed one": renewed} {
			if believes(a, client, noon) != c.believed {
				t.Errorf("what %s has signed is believed by %s: %t, want %t", what, who, !c.believed, c.believed)
			}
		}
		if believes(renewed, client, noon.Add(11*day)) {
			t.Errorf("what %s has signed is believed after its end", what)
		}
	}
	later := noon.Add(31 * day)
	client := issue(t, renewed, later, day)
	if believes(old, client, later) || !believes(renewed, client, later) {
		t.Error("after the end of the old certificate only the renewed one has to count")
	}
}

func TestARenewedAuthorityDiffersInItsDatesOnly(t *testing.T) {
	old := authority(t, "a")
	renewed, err := old.Renew(noon, 100*day)
	must(t, err)
	was, is := old.Certificate(), renewed.Certificate()
	if !is.NotAfter.Equal(noon.Add(100*day)) || !is.NotBefore.Equal(noon.Add(-backdate)) || is.SerialNumber.Cmp(was.SerialNumber) == 0 {
		t.Errorf("from %s to %s, serial %s after %s", is.NotBefore, is.NotAfter, is.SerialNumber, was.SerialNumber)
	}
	if !bytes.Equal(is.RawSubject, was.RawSubject) || !bytes.Equal(is.RawSubjectPublicKeyInfo, was.RawSubjectPublicKeyInfo) ||
		!bytes.Equal(is.SubjectKeyId, was.SubjectKeyId) || is.KeyUsage != was.KeyUsage || !is.IsCA ||
		!slices.Equal(is.ExtKeyUsage, was.ExtKeyUsage) {
		t.Errorf("%v %v, was %v %v", is.Subject, is.KeyUsage, was.Subject, was.KeyUsage)
	}
}

func TestACertificateIsForNothingElse(t *testing.T) {
	client := issue(t, authority(t, "a"), noon, 10*day)
	if client.IsCA || client.Subject.String() != "CN=c" || len(client.DNSNames) > 0 ||
		!slices.Equal(client.ExtKeyUsage, []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth}) || client.KeyUsage != x509.KeyUsageDigitalSignature {
		t.Errorf("%v %v %v %v", client.Subject, client.DNSNames, client.ExtKeyUsage, client.KeyUsage)
	}
}

func TestACertificateEndsWithItsAuthority(t *testing.T) {
	a := authority(t, "a")
	end := a.Certificate().NotAfter
	if got := issue(t, a, noon, 365*day).NotAfter; !got.Equal(end) {
		t.Errorf("ends %s, its authority %s", got, end)
	}
	if _, _, err := a.Issue(Subject{CommonName: "c"}, end, day); err == nil {
		t.Error("an authority signs after its end")
	}
}

func TestARenewalIsDueWhenAThirdIsLeft(t *testing.T) {
	c := &x509.Certificate{NotBefore: noon, NotAfter: noon.Add(90 * day)}
	if at := RenewAt(c); !at.Equal(noon.Add(60 * day)) {
		t.Error(at)
	}
}

func TestOnlyAnAuthorityAndItsKeyAreParsed(t *testing.T) {
	a, err := testca.NewAuthority("a")
	must(t, err)
	own, err := a.Own()
	must(t, err)
	client, err := a.Client("c")
	must(t, err)
	for what, pair := range map[string]testca.Pair{
		"a client's":    client,
		"another's key": {Certificate: own.Certificate, Key: client.Key},
		"no PEM":        {Certificate: []byte("x"), Key: own.Key},
		"nothing":       {},
	} {
		if _, err := Parse(pair.Certificate, pair.Key); err == nil {
			t.Errorf("%s is taken for an authority", what)
		}
	}
}
