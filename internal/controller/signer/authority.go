package signer

import (
	"crypto"
	"crypto/ecdsa"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"errors"
	"fmt"
	"math/big"
	"time"
)

// backdate is how far before now a certificate begins: clocks differ.
const backdate = 5 * time.Minute

// authority signs the certificates of hosts.
type authority struct {
	certificate *x509.Certificate
	key         crypto.PrivateKey
}

// readAuthority reads PEM files.
func readAuthority(cert, key string) (*authority, error) {
	pair, err := tls.LoadX509KeyPair(cert, key)
	if err != nil {
		return nil, fmt.Errorf("authority of the hosts' certificates: %w", err)
	}
	certificate, err := x509.ParseCertificate(pair.Certificate[0])
	if err != nil {
		return nil, fmt.Errorf("authority of the hosts' certificates: %w", err)
	}
	if !certificate.IsCA {
		return nil, fmt.Errorf("authority of the hosts' certificates: %s is not an authority's certificate", cert)
	}
	return &authority{certificate, pair.PrivateKey}, nil
}

// sign returns a server's certificate, PEM, that ends after life or with the authority.
func (a *authority) sign(key *ecdsa.PublicKey, node, name string, now time.Time, life time.Duration) ([]byte, error) {
	serial, err := rand.Int(rand.Reader, new(big.Int).Lsh(big.NewInt(1), 127))
	if err != nil {
		return nil, fmt.Errorf("serial number: %w", err)
	}
	template := &x509.Certificate{
		SerialNumber: serial, Subject: pkix.Name{CommonName: node}, DNSNames: []string{name},
		NotBefore: now.Add(-backdate), NotAfter: now.Add(life), BasicConstraintsValid: true,
		KeyUsage: x509.KeyUsageDigitalSignature, ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth},
	}
	if end := a.certificate.NotAfter; template.NotAfter.After(end) {
		template.NotAfter = end
	}
	if !template.NotAfter.After(now) {
		return nil, errors.New("the authority of the hosts' certificates has expired: replace it")
	}
	der, err := x509.CreateCertificate(rand.Reader, template, a.certificate, key, a.key)
	if err != nil {
		return nil, fmt.Errorf("sign the certificate of %s: %w", node, err)
	}
	return pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der}), nil
}
