package server

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"encoding/pem"
	"math/big"
	"net"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/escache/escache-csi/internal/escached"
)

// authority signs certificates for one test.
type authority struct {
	t    *testing.T
	key  *ecdsa.PrivateKey
	cert *x509.Certificate
	n    int64
}

func newAuthority(t *testing.T) *authority {
	a := &authority{t: t}
	a.key, _ = a.newKey()
	a.cert = a.sign(&x509.Certificate{IsCA: true, BasicConstraintsValid: true, KeyUsage: x509.KeyUsageCertSign}, a.key, nil)
	return a
}

func (a *authority) newKey() (*ecdsa.PrivateKey, []byte) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		a.t.Fatal(err)
	}
	der, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		a.t.Fatal(err)
	}
	return key, pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: der})
}

func (a *authority) sign(c *x509.Certificate, key *ecdsa.PrivateKey, parent *x509.Certificate) *x509.Certificate {
	a.n++
	c.SerialNumber, c.NotBefore, c.NotAfter = big.NewInt(a.n), time.Now().Add(-time.Hour), time.Now().Add(time.Hour)
	c.IPAddresses = []net.IP{net.IPv4(127, 0, 0, 1)}
	if parent == nil {
		parent = c
	}
	der, err := x509.CreateCertificate(rand.Reader, c, parent, &key.PublicKey, a.key)
	if err != nil {
		a.t.Fatal(err)
	}
	cert, err := x509.ParseCertificate(der)
	if err != nil {
		a.t.Fatal(err)
	}
	return cert
}

func (a *authority) pair() (certPEM, keyPEM []byte) {
	key, keyPEM := a.newKey()
	return pemOf(a.sign(&x509.Certificate{}, key, a.cert)), keyPEM
}

func pemOf(c *x509.Certificate) []byte {
	return pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: c.Raw})
}

func TestOnlyClientsOfTheAuthorityGetInAlsoAfterItChanged(t *testing.T) {
	dir := t.TempDir()
	files := escached.TLSFiles{Cert: filepath.Join(dir, "c"), Key: filepath.Join(dir, "k"), ClientCA: filepath.Join(dir, "ca")}
	write := func(path string, data []byte) {
		if err := os.WriteFile(path, data, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	first, second := newAuthority(t), newAuthority(t)
	install := func(a *authority) {
		cert, key := a.pair()
		write(files.Cert, cert)
		write(files.Key, key)
		write(files.ClientCA, pemOf(a.cert))
	}
	if _, err := newCertificates(files); err == nil {
		t.Fatal("missing files must be told at the start")
	}
	install(first)
	certs, err := newCertificates(files)
	if err != nil {
		t.Fatal(err)
	}
	l, err := tls.Listen("tcp", "127.0.0.1:0", certs.server())
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	go func() {
		for {
			conn, err := l.Accept()
			if err != nil {
				return
			}
			go func() { // a handshake happens at the first write
				defer conn.Close()
				conn.Write([]byte("x"))
			}()
		}
	}()
	gets := func(server, client *authority) bool {
		roots := x509.NewCertPool()
		roots.AddCert(server.cert)
		cfg := &tls.Config{RootCAs: roots, MinVersion: tls.VersionTLS13}
		if client != nil {
			cert, key := client.pair()
			pair, err := tls.X509KeyPair(cert, key)
			if err != nil {
				t.Fatal(err)
			}
			cfg.Certificates = []tls.Certificate{pair}
		}
		conn, err := tls.Dial("tcp", l.Addr().String(), cfg)
		if err != nil {
			return false
		}
		defer conn.Close()
		n, _ := conn.Read(make([]byte, 1))
		return n == 1
	}
	if !gets(first, first) || gets(first, nil) || gets(first, second) {
		t.Fatal("exactly clients of the first authority must get in")
	}
	write(files.Cert, []byte("half a renewal"))
	if !gets(first, first) {
		t.Fatal("files that cannot be used must not stop the service")
	}
	install(second)
	if !gets(second, second) || gets(second, first) {
		t.Fatal("after the renewal exactly clients of the second authority must get in")
	}
}
