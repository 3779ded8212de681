package renewal

import (
	"crypto/tls"
	"crypto/x509"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/escache/escache-csi/internal/issuer"
	"github.com/escache/escache-csi/internal/tlsfiles"
	"github.com/escache/escache-csi/test/testca"
)

// side is a host or csi-controller, with files as the kubelet mounts them.
type side struct {
	*tlsfiles.Reloader

	dir     string
	version int
}

type content struct{ ca, cert, key []byte }

// mount replaces all files in one moment, as the kubelet does: ..data is a link to a directory.
func (s *side) mount(t *testing.T, c content) {
	t.Helper()
	s.version++
	version := fmt.Sprint("..", s.version)
	must(t, os.Mkdir(filepath.Join(s.dir, version), 0o700))
	for name, text := range map[string][]byte{"ca.crt": c.ca, "tls.crt": c.cert, "tls.key": c.key} {
		must(t, os.WriteFile(filepath.Join(s.dir, version, name), text, 0o600))
		if s.version == 1 {
			must(t, os.Symlink(filepath.Join("..data", name), filepath.Join(s.dir, name)))
		}
	}
	must(t, os.Symlink(version, filepath.Join(s.dir, "..new")))
	must(t, os.Rename(filepath.Join(s.dir, "..new"), filepath.Join(s.dir, "..data")))
}

func newSide(t *testing.T, c content) *side {
	t.Helper()
	s := &side{dir: t.TempDir()}
	s.mount(t, c)
	var err error
	s.Reloader, err = tlsfiles.New(tlsfiles.Files{
		CA: filepath.Join(s.dir, "ca.crt"), Cert: filepath.Join(s.dir, "tls.crt"), Key: filepath.Join(s.dir, "tls.key"),
	}, func(err error) { t.Errorf("files that changed in one moment cannot be used: %v", err) })
	must(t, err)
	return s
}

// serve answers each connection whose handshake succeeds with one byte.
func (s *side) serve(t *testing.T) (address string) {
	t.Helper()
	l, err := tls.Listen("tcp", "127.0.0.1:0", s.Server())
	must(t, err)
	t.Cleanup(func() { _ = l.Close() })
	go func() {
		for {
			conn, err := l.Accept()
			if err != nil {
				return
			}
			go func() {
				defer conn.Close()
				_, _ = conn.Write([]byte("x"))
			}()
		}
	}()
	return l.Addr().String()
}

// reach connects as escacheclient does.
func (s *side) reach(t *testing.T, address string) error {
	t.Helper()
	_, err := s.Refresh()
	must(t, err)
	config, err := s.Client("n1.example")
	must(t, err)
	conn, err := tls.DialWithDialer(&net.Dialer{Timeout: time.Minute}, "tcp", address, config)
	if err != nil {
		return err
	}
	defer conn.Close()
	_, err = conn.Read(make([]byte, 1)) // TLS 1.3: the server's refusal comes with the first read
	return err
}

// issued is a new certificate of a host, with its key.
func issued(t *testing.T, by *issuer.Authority) content {
	t.Helper()
	cert, key, err := by.Issue(issuer.Subject{CommonName: "n1", DNSNames: []string{"n1.example"}, Usage: x509.ExtKeyUsageServerAuth},
		time.Now(), 90*day)
	must(t, err)
	return content{cert: cert, key: key}
}

// TestHostsAndControllerGoOnWhateverTheyHaveGotYet lets each side have the old and the renewed files, without a
// restart. A stranger has certificates of authorities with the same names.
func TestHostsAndControllerGoOnWhateverTheyHaveGotYet(t *testing.T) {
	w := start(t, time.Now().Add(-10*year*2/3-day), "")
	w.looks(10*year*2/3-day, 50*day, func() {})
	w.now = time.Now()
	kept := w.secret(bothAuthorities)
	must(t, kept.read(t.Context(), w.api))
	known, err := readAuthorities(kept)
	must(t, err)
	own, ownKey, err := known[clients].Issue(issuer.Subject{CommonName: w.ClientName, Usage: x509.ExtKeyUsageClientAuth}, w.now.Add(-300*day), year)
	must(t, err)
	w.change(w.secret(controllerTLS), "tls.crt", own)
	w.change(w.secret(controllerTLS), "tls.key", ownKey)

	host, strange := issued(t, known[hosts]), newAuthority(t, "escached", w.now)
	strangeHost, err := strange.Server("n1.example")
	must(t, err)
	strangeClient, err := newAuthority(t, "clients", w.now).Client(w.ClientName)
	must(t, err)
	files := func() (atHost, atController content) {
		controller := w.secret(controllerTLS)
		atHost = content{w.is(w.authoritiesMap(), "clients.crt"), host.cert, host.key}
		return atHost, content{w.is(w.secret(hostsAuthority), "tls.crt"), w.is(controller, "tls.crt"), w.is(controller, "tls.key")}
	}
	var atHost, atController [2]content
	atHost[0], atController[0] = files()
	must(t, w.Look(t.Context()))
	atHost[1], atController[1] = files()
	if string(atHost[0].ca) == string(atHost[1].ca) || string(atController[0].ca) == string(atController[1].ca) ||
		string(atController[0].cert) == string(atController[1].cert) {
		t.Fatal("not everything was due")
	}

	with := func(c content, p testca.Pair) content { return content{c.ca, p.Certificate, p.Key} }
	escached, controller := newSide(t, atHost[0]), newSide(t, atController[0])
	impostor, intruder := newSide(t, with(atHost[0], strangeHost)), newSide(t, with(atController[0], strangeClient))
	address, impostors := escached.serve(t), impostor.serve(t)
	for _, step := range [][2]int{{0, 0}, {1, 0}, {1, 1}, {0, 1}, {0, 0}} {
		escached.mount(t, atHost[step[0]])
		impostor.mount(t, with(atHost[step[0]], strangeHost))
		controller.mount(t, atController[step[1]])
		intruder.mount(t, with(atController[step[1]], strangeClient))
		if err := controller.reach(t, address); err != nil {
			t.Errorf("%v: csi-controller does not reach its host: %v", step, err)
		}
		if controller.reach(t, impostors) == nil {
			t.Errorf("%v: csi-controller believes another host", step)
		}
		if intruder.reach(t, address) == nil {
			t.Errorf("%v: the host serves another client", step)
		}
		if end := controller.End(); end != mustParse(t, atController[step[1]].cert).NotAfter {
			t.Errorf("%v: the certificate in use ends %s", step, end)
		}
	}
}

func mustParse(t *testing.T, text []byte) *x509.Certificate {
	t.Helper()
	c, err := parse(text)
	must(t, err)
	return c
}
