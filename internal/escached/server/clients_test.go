package server

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/escache/escache-csi/api/escache"
	"github.com/escache/escache-csi/internal/escached"
	"github.com/escache/escache-csi/test/testca"
)

// quiet is an engine that answers for its host.
type quiet struct{ untouched }

func (quiet) Node(context.Context) (escache.Node, error) {
	return escache.Node{Name: "n1", Healthy: true}, nil
}

func (quiet) Recover(context.Context) error { return nil }

func (quiet) Watch(ctx context.Context) { <-ctx.Done() }

// service is an escached that serves TCP and its socket.
type service struct {
	authority *testca.Authority
	url       string
	socket    string
	config    escached.Config
}

// newService returns a service that does not run yet and has no TLS files.
func newService(t *testing.T) *service {
	t.Helper()
	authority, err := testca.NewAuthority("clients and hosts")
	must(t, err)
	free, err := net.Listen("tcp", "127.0.0.1:0")
	must(t, err)
	must(t, free.Close())
	dir := t.TempDir()
	s := &service{authority: authority, url: "https://" + free.Addr().String(), socket: filepath.Join(dir, "run", "s"), config: escached.DefaultConfig()}
	s.config.Listen, s.config.Socket = free.Addr().String(), s.socket
	s.config.TLS.Cert, s.config.TLS.Key, s.config.TLS.ClientCA = filepath.Join(dir, "cert"), filepath.Join(dir, "key"), filepath.Join(dir, "ca")
	return s
}

func (s *service) writeFiles(t *testing.T) {
	t.Helper()
	pair, err := s.authority.Server("n1", "127.0.0.1")
	must(t, err)
	must(t, os.WriteFile(s.config.TLS.ClientCA, s.authority.Certificate(), 0o600))
	must(t, os.WriteFile(s.config.TLS.Cert, pair.Certificate, 0o600))
	must(t, os.WriteFile(s.config.TLS.Key, pair.Key, 0o600))
}

func (s *service) run(t *testing.T, log io.Writer) {
	t.Helper()
	ctx, stop := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- New(s.config, quiet{}, Seen{Log: slog.New(slog.NewTextHandler(log, nil))}).Run(ctx) }()
	t.Cleanup(func() {
		stop()
		must(t, <-ended)
	})
	for until := time.Now().Add(30 * time.Second); ; time.Sleep(10 * time.Millisecond) {
		conn, err := net.Dial("tcp", s.config.Listen)
		if err == nil {
			must(t, conn.Close())
			return
		}
		select {
		case err := <-ended:
			ended <- err
			t.Fatalf("it ended: %v", err)
		default:
		}
		if time.Now().After(until) {
			t.Fatal(err)
		}
	}
}

// get asks as a client with the names that change gives its certificate, over TCP.
func (s *service) get(t *testing.T, path string, change func(*x509.Certificate)) (int, []byte, error) {
	t.Helper()
	pair, err := s.authority.Issue("nobody", func(c *x509.Certificate) {
		c.ExtKeyUsage = []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth}
		change(c)
	})
	must(t, err)
	own, err := pair.TLS()
	must(t, err)
	return ask(t, &http.Transport{TLSClientConfig: &tls.Config{
		RootCAs: s.authority.Pool(), Certificates: []tls.Certificate{own}, MinVersion: tls.VersionTLS13,
	}}, s.url+path)
}

func (s *service) answersOnItsSocket(t *testing.T) {
	t.Helper()
	status, body, err := ask(t, &http.Transport{DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
		return (&net.Dialer{}).DialContext(ctx, "unix", s.socket)
	}}, "http://escached"+escache.PathNode)
	if err != nil || status != http.StatusOK {
		t.Errorf("over the socket: %d %s %v", status, body, err)
	}
}

func ask(t *testing.T, way *http.Transport, url string) (int, []byte, error) {
	t.Helper()
	defer way.CloseIdleConnections()
	client := &http.Client{Transport: way, Timeout: 30 * time.Second}
	answer, err := client.Get(url)
	if err != nil {
		return 0, nil, err
	}
	defer answer.Body.Close()
	body, err := io.ReadAll(answer.Body)
	must(t, err)
	return answer.StatusCode, body, nil
}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

func TestOnlyClientsWithAKnownNameAreServed(t *testing.T) {
	s := newService(t)
	s.writeFiles(t)
	s.run(t, io.Discard)
	for what, c := range map[string]struct {
		change func(*x509.Certificate)
		told   string // the name that a refusal tells; none: the client is served
	}{
		"the name is the subject":     {func(c *x509.Certificate) { c.Subject.CommonName = "csi-controller" }, ""},
		"the name is a DNS name":      {func(c *x509.Certificate) { c.DNSNames = []string{"other", "csi-controller"} }, ""},
		"another name":                {func(c *x509.Certificate) { c.Subject.CommonName = "webshop" }, "webshop"},
		"a name that only begins so":  {func(c *x509.Certificate) { c.Subject.CommonName = "csi-controller.x" }, "csi-controller.x"},
		"the name is an organization": {func(c *x509.Certificate) { c.Subject.Organization = []string{"csi-controller"} }, "nobody"},
		"a host's name":               {func(c *x509.Certificate) { c.DNSNames = []string{"n1"} }, "n1"},
	} {
		for _, path := range []string{escache.PathNode, "/metrics", "/v1/nowhere"} {
			status, body, err := s.get(t, path, c.change)
			must(t, err)
			if c.told == "" {
				if status == http.StatusForbidden {
					t.Errorf("%s: %s is refused: %s", what, path, body)
				}
				continue
			}
			var p escache.Problem
			if err := json.Unmarshal(body, &p); err != nil || status != http.StatusForbidden || p.Code != "forbidden" ||
				!strings.Contains(p.Detail, `"`+c.told+`"`) || !strings.Contains(p.Detail, `"csi-controller"`) {
				t.Errorf("%s: %s: got %d %.200s, want 403 forbidden with both names", what, path, status, body)
			}
		}
	}
	s.answersOnItsSocket(t)
}

// TestTCPIsServedOnceTheFilesAreThere: csi-node, which brings them, may come after escached, and needs
// its socket.
func TestTCPIsServedOnceTheFilesAreThere(t *testing.T) {
	s := newService(t)
	var log lockedBuffer
	s.run(t, &log)
	s.answersOnItsSocket(t)
	known := func(c *x509.Certificate) { c.Subject.CommonName = "csi-controller" }
	for range 2 {
		if status, _, err := s.get(t, escache.PathNode, known); err == nil {
			t.Fatalf("without a certificate of its own it answers %d", status)
		}
	}
	s.writeFiles(t)
	status, body, err := s.get(t, escache.PathNode, known)
	if err != nil || status != http.StatusOK {
		t.Errorf("with the files: %d %s %v", status, body, err)
	}
	var node escache.Node
	if err := json.Unmarshal(body, &node); err != nil || node.CertificateEnd == nil || node.CertificateEnd.Before(time.Now().Add(24*time.Hour)) {
		t.Errorf("the host says that its certificate ends %v: %v", node.CertificateEnd, err)
	}
	_, metrics, err := s.get(t, "/metrics", known)
	must(t, err)
	for _, what := range []string{"certificate", "authority"} {
		var end float64
		_, rest, _ := strings.Cut(string(metrics), "\nescached_"+what+"_end_seconds ")
		if _, err := fmt.Sscan(rest, &end); err != nil || int64(end) < time.Now().Add(24*time.Hour).Unix() {
			t.Errorf("the end of the %s is told as %v: %v", what, end, err)
		}
	}
	for until := time.Now().Add(time.Minute); !strings.Contains(log.String(), "TCP is served"); time.Sleep(50 * time.Millisecond) {
		if time.Now().After(until) {
			t.Fatalf("the log does not say that TCP is served now:\n%s", log.String())
		}
	}
	if n := strings.Count(log.String(), s.config.TLS.ClientCA); n != 1 {
		t.Errorf("the log names the missing file %d times, not once:\n%s", n, log.String())
	}
}

// lockedBuffer is a log that is read while it is written.
type lockedBuffer struct {
	mu   sync.Mutex
	text strings.Builder
}

func (b *lockedBuffer) Write(p []byte) (int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.text.Write(p)
}

func (b *lockedBuffer) String() string {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.text.String()
}
