package escacheclient

import (
	"bytes"
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/escache/escache-csi/api/escache"
	"github.com/escache/escache-csi/test/testca"
)

// tlsServer answers every call with 204 and records the name in the caller's certificate.
func tlsServer(t *testing.T, clients *testca.Authority, own testca.Pair) (*httptest.Server, *string) {
	t.Helper()
	var caller string
	server := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		caller = r.TLS.PeerCertificates[0].Subject.CommonName
		w.WriteHeader(http.StatusNoContent)
	}))
	server.Config.ErrorLog = slog.NewLogLogger(slog.DiscardHandler, slog.LevelError)
	server.TLS = &tls.Config{Certificates: []tls.Certificate{loaded(t, own)}, ClientAuth: tls.RequireAndVerifyClientCert, ClientCAs: clients.Pool()}
	server.StartTLS()
	t.Cleanup(server.Close)
	return server, &caller
}

func TestCertificatesRotateWithoutRestart(t *testing.T) {
	ca, files := newAuthority(t), tlsFiles(t)
	server, caller := tlsServer(t, ca, issue(t, ca, "service"))
	write(t, files, ca, issue(t, ca, "before"))
	client := newClient(t, Options{BaseURL: server.URL, TLS: files})
	for _, want := range []string{"before", "after"} {
		if want == "after" {
			write(t, files, ca, issue(t, ca, "after"))
		}
		if err := client.Stop(context.Background(), escache.StopRequest{VolumeRef: ref}); err != nil {
			t.Fatal(err)
		}
		if *caller != want {
			t.Errorf("the service saw the certificate %q, want %q", *caller, want)
		}
	}
}

func TestAuthorityRotatesWithoutRestart(t *testing.T) {
	first, second, files := newAuthority(t), newAuthority(t), tlsFiles(t)
	server, _ := tlsServer(t, first, issue(t, second, "service"))
	own := issue(t, first, "client")
	write(t, files, first, own)
	client := newClient(t, Options{BaseURL: server.URL, TLS: files})
	if err := client.Stop(context.Background(), escache.StopRequest{VolumeRef: ref}); !errors.Is(err, ErrTLS) {
		t.Fatalf("a service of an unknown authority was accepted: %v", err)
	}
	write(t, files, second, own)
	if err := client.Stop(context.Background(), escache.StopRequest{VolumeRef: ref}); err != nil {
		t.Error(err)
	}
}

func TestHalfRotatedFilesLeaveTheLastGoodOnesInForce(t *testing.T) {
	ca, files := newAuthority(t), tlsFiles(t)
	server, caller := tlsServer(t, ca, issue(t, ca, "service"))
	write(t, files, ca, issue(t, ca, "before"))
	var log bytes.Buffer
	client := newClient(t, Options{BaseURL: server.URL, TLS: files, Logger: slog.New(slog.NewTextHandler(&log, nil))})
	key, err := os.ReadFile(files.Key)
	if err != nil {
		t.Fatal(err)
	}
	write(t, files, ca, issue(t, ca, "after"))
	if err := os.WriteFile(files.Key, append(key, '\n'), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := client.Stop(context.Background(), escache.StopRequest{VolumeRef: ref}); err != nil || *caller != "before" {
		t.Errorf("caller %q, error %v", *caller, err)
	}
	if !strings.Contains(log.String(), "last good") || strings.Contains(log.String(), "PRIVATE") {
		t.Errorf("log: %s", log.String())
	}
	write(t, files, ca, issue(t, ca, "after"))
	if err := client.Stop(context.Background(), escache.StopRequest{VolumeRef: ref}); err != nil || *caller != "after" {
		t.Errorf("after the rotation: caller %q, error %v", *caller, err)
	}
}

func TestTLSErrorsSayWhatToDo(t *testing.T) {
	ca, other := newAuthority(t), newAuthority(t)
	expired := func(c *x509.Certificate) { c.NotAfter = time.Now().Add(-time.Hour) }
	elsewhere := func(c *x509.Certificate) { c.IPAddresses = []net.IP{net.IPv4(10, 0, 0, 1)} }
	for _, tc := range []struct {
		name          string
		trusted       *testca.Authority
		service, mine testca.Pair
		advice        string
	}{
		{"service of another authority", other, issue(t, ca, "s"), issue(t, ca, "c"), "the authority that signed it"},
		{"service's certificate expired", ca, issue(t, ca, "s", expired), issue(t, ca, "c"), "check both clocks"},
		{"service's certificate for another address", ca, issue(t, ca, "s", elsewhere), issue(t, ca, "c"), "another name or address"},
		{"client of another authority", ca, issue(t, ca, "s"), issue(t, other, "c"), "refused this client's certificate"},
		{"client's certificate expired", ca, issue(t, ca, "s"), issue(t, ca, "c", expired), "refused this client's certificate"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			server, _ := tlsServer(t, ca, tc.service)
			files := tlsFiles(t)
			write(t, files, tc.trusted, tc.mine)
			client := newClient(t, Options{BaseURL: server.URL, TLS: files})
			_, laid := client.PutReplica(context.Background(), escache.ReplicaRequest{VolumeRef: ref})
			for call, err := range map[string]error{
				"stop":    client.Stop(context.Background(), escache.StopRequest{VolumeRef: ref}),
				"replica": laid,
			} {
				if !errors.Is(err, ErrTLS) || !strings.Contains(err.Error(), tc.advice) {
					t.Errorf("%s: %v, want advice %q", call, err, tc.advice)
				}
			}
		})
	}
}

func TestServiceWithoutTLSIsNamed(t *testing.T) {
	server := httptest.NewServer(http.NotFoundHandler())
	t.Cleanup(server.Close)
	ca, files := newAuthority(t), tlsFiles(t)
	write(t, files, ca, issue(t, ca, "client"))
	client := newClient(t, Options{BaseURL: strings.Replace(server.URL, "http://", "https://", 1), TLS: files})
	if err := client.Stop(context.Background(), escache.StopRequest{VolumeRef: ref}); !errors.Is(err, ErrTLS) || !strings.Contains(err.Error(), "check the port") {
		t.Error(err)
	}
}

func TestMissingTLSFilesAreNamed(t *testing.T) {
	_, err := New(Options{BaseURL: "https://127.0.0.1:1", TLS: TLSFiles{CA: "/nowhere/ca", Cert: "/nowhere/cert", Key: "/nowhere/key"}})
	if !errors.Is(err, ErrTLS) || !strings.Contains(err.Error(), "/nowhere/ca") {
		t.Error(err)
	}
}

func TestServerNameStandsForTheHost(t *testing.T) {
	ca, files := newAuthority(t), tlsFiles(t)
	server, _ := tlsServer(t, ca, issue(t, ca, "service", func(c *x509.Certificate) {
		c.IPAddresses, c.DNSNames = nil, []string{"escached.example"}
	}))
	write(t, files, ca, issue(t, ca, "client"))
	for name, good := range map[string]bool{"": false, "escached.example": true, "another.example": false} {
		files.ServerName = name
		err := newClient(t, Options{BaseURL: server.URL, TLS: files}).Stop(context.Background(), escache.StopRequest{VolumeRef: ref})
		if good != (err == nil) || (!good && !errors.Is(err, ErrTLS)) {
			t.Errorf("server name %q: %v", name, err)
		}
	}
}

// TestAFormerNameIsAcceptedForAWhile: during an upgrade some hosts still have the certificate that
// served all of them.
func TestAFormerNameIsAcceptedForAWhile(t *testing.T) {
	hosts, before, files := newAuthority(t), newAuthority(t), tlsFiles(t)
	named := func(by *testca.Authority, name string) string {
		server, _ := tlsServer(t, hosts, issue(t, by, "service", func(c *x509.Certificate) { c.IPAddresses, c.DNSNames = nil, []string{name} }))
		return server.URL
	}
	write(t, files, hosts, issue(t, hosts, "client"))
	files.ServerName = "n1.example"
	formerCA := filepath.Join(t.TempDir(), "ca")
	if err := os.WriteFile(formerCA, before.Certificate(), 0o600); err != nil {
		t.Fatal(err)
	}
	former := FormerName{Name: "all.example", CA: formerCA, Until: time.Now().Add(time.Hour)}
	over := former
	over.Until = time.Now().Add(-time.Second)
	for _, tc := range []struct {
		name   string
		by     *testca.Authority
		shown  string
		former FormerName
		good   bool
	}{
		{"its own name", hosts, "n1.example", former, true},
		{"the former name", before, "all.example", former, true},
		{"the former name, too late", before, "all.example", over, false},
		{"the former name, which is not accepted", before, "all.example", FormerName{}, false},
		{"the former name, of the hosts' authority", hosts, "all.example", former, false},
		{"another host's name, of the former authority", before, "n2.example", former, false},
		{"another host's name", hosts, "n2.example", former, false},
	} {
		err := newClient(t, Options{BaseURL: named(tc.by, tc.shown), TLS: files, Former: tc.former}).Stop(context.Background(), escache.StopRequest{VolumeRef: ref})
		if tc.good != (err == nil) || (!tc.good && !errors.Is(err, ErrTLS)) {
			t.Errorf("%s: %v", tc.name, err)
		}
	}
}

func TestConnectionsEndWithTheFormerName(t *testing.T) {
	ca, files := newAuthority(t), tlsFiles(t)
	server, _ := tlsServer(t, ca, issue(t, ca, "service", func(c *x509.Certificate) { c.IPAddresses, c.DNSNames = nil, []string{"all.example"} }))
	write(t, files, ca, issue(t, ca, "client"))
	files.ServerName = "n1.example"
	client := newClient(t, Options{BaseURL: server.URL, TLS: files, Former: FormerName{"all.example", files.CA, time.Now().Add(time.Hour)}})
	if err := client.Stop(context.Background(), escache.StopRequest{VolumeRef: ref}); err != nil {
		t.Fatal(err)
	}
	client.opts.Former.Until = time.Now()
	if err := client.Stop(context.Background(), escache.StopRequest{VolumeRef: ref}); !errors.Is(err, ErrTLS) {
		t.Errorf("the connection is still used: %v", err)
	}
}

func TestEveryConnectionIsOpenedByDial(t *testing.T) {
	ca, files := newAuthority(t), tlsFiles(t)
	write(t, files, ca, issue(t, ca, "client"))
	refused := errors.New("not now")
	dial := func(context.Context, string, string) (net.Conn, error) { return nil, refused }
	for name, opts := range map[string]Options{
		"TLS":    {BaseURL: "https://127.0.0.1:1", TLS: files},
		"plain":  {BaseURL: "http://127.0.0.1:1"},
		"socket": {UnixSocket: "/no/such/socket"},
	} {
		opts.Dial, opts.RepeatAfter = dial, time.Hour // one try
		if err := newClient(t, opts).Stop(context.Background(), escache.StopRequest{VolumeRef: ref}); !errors.Is(err, refused) {
			t.Errorf("%s: %v", name, err)
		}
	}
}
