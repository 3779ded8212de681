// Package hostcert is about the certificate that one host's escached shows: the name in it, and the
// request with which csi-node gets it signed by csi-controller through the Kubernetes API.
package hostcert

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"errors"
	"fmt"
	"slices"
	"strings"
)

// Signer is the signerName of the requests.
const Signer = "escache.io/escached"

// Placeholder stands for the node's name in a pattern of names.
const Placeholder = "{node}"

const (
	typeRequest = "CERTIFICATE REQUEST"
	typeKey     = "PRIVATE KEY"
)

// Usages are those of every request, as Kubernetes writes them.
func Usages() []string { return []string{"digital signature", "server auth"} }

// Name is the DNS name that a node's certificate has to have, by a pattern such as
// "{node}.escached.escache.io". A pattern without the placeholder is one name for all nodes.
func Name(pattern, node string) string { return strings.ReplaceAll(pattern, Placeholder, node) }

// NewRequest makes a key, and a request for a certificate of a node with a DNS name. Both are PEM.
func NewRequest(node, name string) (key, request []byte, err error) {
	private, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return nil, nil, fmt.Errorf("key for %s: %w", name, err)
	}
	der, err := x509.MarshalPKCS8PrivateKey(private)
	if err != nil {
		return nil, nil, fmt.Errorf("key for %s: %w", name, err)
	}
	template := &x509.CertificateRequest{Subject: pkix.Name{CommonName: node}, DNSNames: []string{name}}
	asked, err := x509.CreateCertificateRequest(rand.Reader, template, private)
	if err != nil {
		return nil, nil, fmt.Errorf("request for %s: %w", name, err)
	}
	return pem.EncodeToMemory(&pem.Block{Type: typeKey, Bytes: der}), pem.EncodeToMemory(&pem.Block{Type: typeRequest, Bytes: asked}), nil
}

// Check returns the key that a request is for. It fails unless the request asks for exactly what
// NewRequest asks for: one name, of this node, and nothing else.
func Check(request []byte, node, name string) (*ecdsa.PublicKey, error) {
	block, rest := pem.Decode(request)
	if block == nil || block.Type != typeRequest || len(strings.TrimSpace(string(rest))) > 0 {
		return nil, errors.New("it is not one certificate request in PEM")
	}
	asked, err := x509.ParseCertificateRequest(block.Bytes)
	if err != nil {
		return nil, fmt.Errorf("it cannot be read: %w", err)
	}
	if err := asked.CheckSignature(); err != nil {
		return nil, fmt.Errorf("it is not signed with its own key: %w", err)
	}
	key, ok := asked.PublicKey.(*ecdsa.PublicKey)
	if !ok || key.Curve != elliptic.P256() {
		return nil, errors.New("its key is not an ECDSA key on P-256")
	}
	subject := pkix.Name{CommonName: node}
	switch {
	case asked.Subject.String() != subject.String():
		return nil, fmt.Errorf("its subject is %q, not %q", asked.Subject.String(), subject.String())
	case !slices.Equal(asked.DNSNames, []string{name}):
		return nil, fmt.Errorf("its DNS names are %q, not %q alone", asked.DNSNames, name)
	case len(asked.IPAddresses)+len(asked.URIs)+len(asked.EmailAddresses) > 0:
		return nil, errors.New("it asks for addresses beside the DNS name")
	}
	return key, nil
}
