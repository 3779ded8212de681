// Package issuer signs certificates with an authority of the driver's own, and renews such an authority.
package issuer

import (
	"crypto"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"fmt"
	"math/big"
	"time"
)

// backdate is how far before now a certificate begins: clocks differ.
const backdate = 5 * time.Minute

// RenewAt is when a certificate is to be renewed: when a third of its life is left.
func RenewAt(c *x509.Certificate) time.Time {
	return c.NotAfter.Add(-c.NotAfter.Sub(c.NotBefore) / 3)
}

// Authority signs certificates.
type Authority struct {
	certificate *x509.Certificate
	key         crypto.Signer
}

// Parse reads an authority's certificate and key, both PEM.
func Parse(cert, private []byte) (*Authority, error) {
	pair, err := tls.X509KeyPair(cert, private)
	if err != nil {
		return nil, err
	}
	certificate := pair.Leaf
	if !certificate.IsCA {
		return nil, fmt.Errorf("the certificate of %q is not an authority's", certificate.Subject)
	}
	key, ok := pair.PrivateKey.(crypto.Signer)
	if !ok {
		return nil, fmt.Errorf("the key of %q does not sign", certificate.Subject)
	}
	return &Authority{certificate, key}, nil
}

// Certificate is the authority's own. It must not be changed.
func (a *Authority) Certificate() *x509.Certificate { return a.certificate }

// PEM is the authority's own certificate.
func (a *Authority) PEM() []byte { return encode(a.certificate.Raw) }

// Subject is what a certificate is for.
type Subject struct {
	CommonName string
	DNSNames   []string
	Usage      x509.ExtKeyUsage
}

// Sign returns a certificate, PEM, for the owner of a key. It ends after life or with the authority.
func (a *Authority) Sign(key *ecdsa.PublicKey, of Subject, now time.Time, life time.Duration) ([]byte, error) {
	serial, err := newSerial()
	if err != nil {
		return nil, err
	}
	template := &x509.Certificate{
		SerialNumber: serial, Subject: pkix.Name{CommonName: of.CommonName}, DNSNames: of.DNSNames,
		NotBefore: now.Add(-backdate), NotAfter: now.Add(life), BasicConstraintsValid: true,
		KeyUsage: x509.KeyUsageDigitalSignature, ExtKeyUsage: []x509.ExtKeyUsage{of.Usage},
	}
	if end := a.certificate.NotAfter; template.NotAfter.After(end) {
		template.NotAfter = end
	}
	if !template.NotAfter.After(now) {
		return nil, fmt.Errorf("the authority %q has expired: replace it", a.certificate.Subject)
	}
	der, err := x509.CreateCertificate(rand.Reader, template, a.certificate, key, a.key)
	if err != nil {
		return nil, fmt.Errorf("sign the certificate of %s: %w", of.CommonName, err)
	}
	return encode(der), nil
}

// Issue makes a key and signs its certificate. Both are PEM.
func (a *Authority) Issue(to Subject, now time.Time, life time.Duration) (cert, key []byte, err error) {
	private, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return nil, nil, fmt.Errorf("key of %s: %w", to.CommonName, err)
	}
	der, err := x509.MarshalPKCS8PrivateKey(private)
	if err != nil {
		return nil, nil, fmt.Errorf("key of %s: %w", to.CommonName, err)
	}
	cert, err = a.Sign(&private.PublicKey, to, now, life)
	return cert, pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: der}), err
}

// Renew returns the authority with a certificate that begins now. Name and key stay, so whoever believes either
// certificate believes all that was signed with either, and nothing else: they need not change at the same time.
func (a *Authority) Renew(now time.Time, life time.Duration) (*Authority, error) {
	serial, err := newSerial()
	if err != nil {
		return nil, err
	}
	template := *a.certificate
	template.SerialNumber, template.NotBefore, template.NotAfter = serial, now.Add(-backdate), now.Add(life)
	template.SignatureAlgorithm = x509.UnknownSignatureAlgorithm // that of the key
	der, err := x509.CreateCertificate(rand.Reader, &template, &template, a.key.Public(), a.key)
	if err != nil {
		return nil, fmt.Errorf("renew the certificate of the authority %q: %w", a.certificate.Subject, err)
	}
	certificate, err := x509.ParseCertificate(der)
	if err != nil {
		return nil, fmt.Errorf("renew the certificate of the authority %q: %w", a.certificate.Subject, err)
	}
	return &Authority{certificate, a.key}, nil
}

func newSerial() (*big.Int, error) {
	serial, err := rand.Int(rand.Reader, new(big.Int).Lsh(big.NewInt(1), 127))
	if err != nil {
		return nil, fmt.Errorf("serial number: %w", err)
	}
	return serial, nil
}

func encode(der []byte) []byte {
	return pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der})
}
