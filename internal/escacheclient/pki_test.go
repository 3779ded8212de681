package escacheclient

import (
	"crypto/tls"
	"crypto/x509"
	"os"
	"path/filepath"
	"testing"

	"github.com/escache/escache-csi/test/testca"
)

func newAuthority(t *testing.T) *testca.Authority {
	t.Helper()
	a, err := testca.NewAuthority("test authority")
	if err != nil {
		t.Fatal(err)
	}
	return a
}

func issue(t *testing.T, by *testca.Authority, name string, change ...func(*x509.Certificate)) testca.Pair {
	t.Helper()
	pair, err := by.Issue(name, change...)
	if err != nil {
		t.Fatal(err)
	}
	return pair
}

func loaded(t *testing.T, pair testca.Pair) tls.Certificate {
	t.Helper()
	certificate, err := pair.TLS()
	if err != nil {
		t.Fatal(err)
	}
	return certificate
}

// write puts authority and certificate into files, as a deployment does.
func write(t *testing.T, files TLSFiles, trusted *testca.Authority, own testca.Pair) {
	t.Helper()
	for path, content := range map[string][]byte{files.CA: trusted.Certificate(), files.Cert: own.Certificate, files.Key: own.Key} {
		if err := os.WriteFile(path+".new", content, 0o600); err != nil {
			t.Fatal(err)
		}
		if err := os.Rename(path+".new", path); err != nil {
			t.Fatal(err)
		}
	}
}

func tlsFiles(t *testing.T) TLSFiles {
	dir := t.TempDir()
	return TLSFiles{CA: filepath.Join(dir, "ca.pem"), Cert: filepath.Join(dir, "cert.pem"), Key: filepath.Join(dir, "key.pem")}
}
