package tlsfiles

import (
	"crypto/tls"
	"crypto/x509"
	"errors"
	"net"
	"os"
	"path/filepath"
	"slices"
	"testing"
	"time"

	"github.com/escache/escache-csi/test/testca"
)

func authority(t *testing.T, name string) *testca.Authority {
	t.Helper()
	a, err := testca.NewAuthority(name)
	if err != nil {
		t.Fatal(err)
	}
	return a
}

func write(t *testing.T, path string, content []byte) {
	t.Helper()
	if err := os.WriteFile(path, content, 0o600); err != nil {
		t.Fatal(err)
	}
}

// side is a server or a client with files of its own.
type side struct {
	*Reloader

	files    Files
	unusable error
}

func newSide(t *testing.T, trusts, signed *testca.Authority) *side {
	t.Helper()
	dir := t.TempDir()
	s := &side{files: Files{CA: filepath.Join(dir, "ca"), Cert: filepath.Join(dir, "cert"), Key: filepath.Join(dir, "key")}}
	if _, err := New(s.files, nil); !errors.As(err, new(*Error)) {
		t.Fatalf("missing files: %v", err)
	}
	s.install(t, trusts, signed)
	var err error
	if s.Reloader, err = New(s.files, func(err error) { s.unusable = err }); err != nil {
		t.Fatal(err)
	}
	return s
}

func (s *side) install(t *testing.T, trusts, signed *testca.Authority) {
	t.Helper()
	pair, err := signed.Issue("n1")
	if err != nil {
		t.Fatal(err)
	}
	write(t, s.files.CA, trusts.Certificate())
	write(t, s.files.Cert, pair.Certificate)
	write(t, s.files.Key, pair.Key)
}

// serve answers each connection whose handshake succeeds with one byte.
func (s *side) serve(t *testing.T) string {
	t.Helper()
	l, err := tls.Listen("tcp", "127.0.0.1:0", s.Server())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { l.Close() })
	go func() {
		for {
			conn, err := l.Accept()
			if err != nil {
				return
			}
			go func() { // the handshake happens at the first write
				defer conn.Close()
				conn.Write([]byte("x"))
			}()
		}
	}()
	return l.Addr().String()
}

// reaches reports whether both sides accept each other, after the client has refreshed.
func (s *side) reaches(t *testing.T, address, name string) bool {
	t.Helper()
	if _, err := s.Refresh(); err != nil {
		t.Fatal(err)
	}
	config, err := s.Client(name)
	if err != nil {
		t.Fatal(err)
	}
	conn, err := tls.Dial("tcp", address, config)
	if err != nil {
		return false
	}
	defer conn.Close()
	n, _ := conn.Read(make([]byte, 1)) // TLS 1.3: the server's refusal comes with the first read
	return n == 1
}

func TestEachSideAcceptsOnlyItsAuthorityAlsoAfterARenewal(t *testing.T) {
	first, second := authority(t, "first"), authority(t, "second")
	server, client := newSide(t, first, first), newSide(t, first, first)
	stranger, trusting := newSide(t, first, second), newSide(t, second, first)
	address := server.serve(t)
	host, _, err := net.SplitHostPort(address)
	if err != nil {
		t.Fatal(err)
	}
	if !client.reaches(t, address, host) || stranger.reaches(t, address, host) || trusting.reaches(t, address, host) ||
		client.reaches(t, address, "another.example") {
		t.Fatal("before: exactly clients of the first authority must get in, and only if they trust it")
	}
	for _, s := range []*side{server, client} {
		write(t, s.files.Cert, []byte("half a renewal"))
	}
	if !client.reaches(t, address, host) || server.unusable == nil || client.unusable == nil {
		t.Fatalf("half a renewal must leave the old files in force, and be reported: %v, %v", server.unusable, client.unusable)
	}
	server.install(t, second, second)
	if client.reaches(t, address, host) {
		t.Fatal("the server still accepts the first authority")
	}
	client.install(t, second, second)
	if !client.reaches(t, address, host) {
		t.Fatal("after the renewal clients of the second authority must get in")
	}
}

func TestRefreshSaysWhetherSomethingChanged(t *testing.T) {
	a := authority(t, "a")
	s := newSide(t, a, a)
	if changed, err := s.Refresh(); changed || err != nil {
		t.Errorf("nothing changed: %v, %v", changed, err)
	}
	write(t, s.files.CA, append(a.Certificate(), '\n'))
	if changed, err := s.Refresh(); !changed || err != nil {
		t.Errorf("the authority changed: %v, %v", changed, err)
	}
	write(t, s.files.CA, nil)
	if changed, err := s.Refresh(); changed || err != nil || s.unusable == nil {
		t.Errorf("there is no authority any more: %v, %v, reported %v", changed, err, s.unusable)
	}
}

func TestTheEndIsThatOfTheLastAuthority(t *testing.T) {
	begin := time.Now().Truncate(time.Second)
	ending := func(days int) *testca.Authority {
		a, err := testca.NewAuthority("a", func(c *x509.Certificate) { c.NotAfter = begin.AddDate(0, 0, days) })
		if err != nil {
			t.Fatal(err)
		}
		return a
	}
	if end := Later(Files{}).AuthoritiesEnd(); !end.IsZero() {
		t.Errorf("without files it is %s", end)
	}
	s := newSide(t, ending(3), ending(3))
	for _, days := range [][]int{{3}, {5, 7, 6}, {2}} {
		var all []byte
		for _, n := range days {
			all = append(all, ending(n).Certificate()...)
		}
		write(t, s.files.CA, all)
		if _, err := s.Refresh(); err != nil {
			t.Fatal(err)
		}
		if end := s.AuthoritiesEnd(); !end.Equal(begin.AddDate(0, 0, slices.Max(days))) {
			t.Errorf("of authorities that end in %v days it is %s", days, end)
		}
	}
}

func TestAuthoritiesAreAllOfTheFile(t *testing.T) {
	path := filepath.Join(t.TempDir(), "ca.crt")
	first, second := authority(t, "first"), authority(t, "second")
	write(t, path, slices.Concat([]byte("# two\n"), first.Certificate(), second.Certificate()))
	all, err := Files{CA: path}.Authorities()
	if err != nil || len(all) != 2 || all[0].Subject.CommonName != "first" || all[1].Subject.CommonName != "second" {
		t.Errorf("%d certificates, %v", len(all), err)
	}
	for _, text := range []string{"", "no certificate", "-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n"} {
		write(t, path, []byte(text))
		if all, err := (Files{CA: path}).Authorities(); err == nil {
			t.Errorf("%q: %d certificates", text, len(all))
		}
	}
}

func TestAnotherCertificatesKeyIsRefused(t *testing.T) {
	dir, a := t.TempDir(), authority(t, "a")
	files := Files{Cert: filepath.Join(dir, "cert"), Key: filepath.Join(dir, "key")}
	one, err := a.Issue("n1")
	if err != nil {
		t.Fatal(err)
	}
	other, err := a.Issue("n2")
	if err != nil {
		t.Fatal(err)
	}
	write(t, files.Cert, one.Certificate)
	write(t, files.Key, one.Key)
	if own, err := files.Own(); err != nil || own.Leaf == nil || own.Leaf.Subject.CommonName != "n1" {
		t.Errorf("%v", err)
	}
	write(t, files.Key, other.Key)
	if _, err := files.Own(); err == nil {
		t.Error("the key of another certificate is taken")
	}
}
