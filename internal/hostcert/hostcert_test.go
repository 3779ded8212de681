package hostcert

import (
	"crypto/ecdsa"
	"crypto/ed25519"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"net"
	"net/url"
	"testing"
)

func TestTheNameIsTheNodes(t *testing.T) {
	for pattern, want := range map[string]string{"{node}": "n1", "{node}.a.b": "n1.a.b", "shared": "shared", "": ""} {
		if got := Name(pattern, "n1"); got != want {
			t.Errorf("%q: %q, want %q", pattern, got, want)
		}
	}
}

func TestARequestAsksForWhatIsChecked(t *testing.T) {
	key, request, err := NewRequest("n1", "n1.example")
	if err != nil {
		t.Fatal(err)
	}
	public, err := Check(request, "n1", "n1.example")
	if err != nil {
		t.Fatal(err)
	}
	block, _ := pem.Decode(key)
	private, err := x509.ParsePKCS8PrivateKey(block.Bytes)
	if err != nil || !public.Equal(private.(*ecdsa.PrivateKey).Public()) {
		t.Errorf("the request is for another key: %v", err)
	}
}

func TestOtherRequestsAreRefused(t *testing.T) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	asked := func(signer any, change func(*x509.CertificateRequest)) []byte {
		template := &x509.CertificateRequest{Subject: pkix.Name{CommonName: "n1"}, DNSNames: []string{"n1.example"}}
		change(template)
		der, err := x509.CreateCertificateRequest(rand.Reader, template, signer)
		if err != nil {
			t.Fatal(err)
		}
		return pem.EncodeToMemory(&pem.Block{Type: typeRequest, Bytes: der})
	}
	good := asked(key, func(*x509.CertificateRequest) {})
	if _, err := Check(good, "n1", "n1.example"); err != nil {
		t.Fatalf("what the others differ from is refused: %v", err)
	}
	_, edwards, err := ed25519.GenerateKey(rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	forged := append([]byte(nil), good...)
	block, _ := pem.Decode(forged)
	block.Bytes[len(block.Bytes)-1] ^= 1
	for what, request := range map[string][]byte{
		"nothing":           nil,
		"not PEM":           []byte("hello"),
		"two requests":      append(append([]byte(nil), good...), good...),
		"a certificate":     pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: []byte("x")}),
		"a wrong signature": pem.EncodeToMemory(block),
		"another subject":   asked(key, func(r *x509.CertificateRequest) { r.Subject.CommonName = "n2" }),
		"an organization":   asked(key, func(r *x509.CertificateRequest) { r.Subject.Organization = []string{"system:masters"} }),
		"another name":      asked(key, func(r *x509.CertificateRequest) { r.DNSNames = []string{"n2.example"} }),
		"no name":           asked(key, func(r *x509.CertificateRequest) { r.DNSNames = nil }),
		"one name more":     asked(key, func(r *x509.CertificateRequest) { r.DNSNames = []string{"n1.example", "n2.example"} }),
		"an address":        asked(key, func(r *x509.CertificateRequest) { r.IPAddresses = []net.IP{net.IPv4(10, 0, 0, 1)} }),
		"a URI":             asked(key, func(r *x509.CertificateRequest) { r.URIs = []*url.URL{{Scheme: "spiffe", Host: "x"}} }),
		"a mail address":    asked(key, func(r *x509.CertificateRequest) { r.EmailAddresses = []string{"a@b"} }),
		"another algorithm": asked(edwards, func(*x509.CertificateRequest) {}),
	} {
		if _, err := Check(request, "n1", "n1.example"); err == nil {
			t.Errorf("%s is accepted", what)
		}
	}
}
