package kubernetes

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"encoding/pem"
	"os"
	"path/filepath"

	"github.com/escache/escache-csi/test/testca"
)

// serviceAccountKey makes the key pair that service accounts' tokens are signed with.
func serviceAccountKey() (private, public []byte, err error) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return nil, nil, err
	}
	der, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		return nil, nil, err
	}
	private = pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: der})
	if der, err = x509.MarshalPKIXPublicKey(&key.PublicKey); err != nil {
		return nil, nil, err
	}
	return private, pem.EncodeToMemory(&pem.Block{Type: "PUBLIC KEY", Bytes: der}), nil
}

// writePair puts a certificate and its key beside each other as NAME.crt and NAME.key.
func writePair(dir, name string, pair testca.Pair) error {
	if err := os.WriteFile(filepath.Join(dir, name+".crt"), pair.Certificate, 0o644); err != nil {
		return err
	}
	return os.WriteFile(filepath.Join(dir, name+".key"), pair.Key, 0o600)
}
