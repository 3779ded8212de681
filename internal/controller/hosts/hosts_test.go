package hosts

import (
	"crypto/tls"
	"encoding/json"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"

	"github.com/escache/escache-csi/api/escache"
	"github.com/escache/escache-csi/internal/cachevolume"
	"github.com/escache/escache-csi/internal/escacheclient"
	"github.com/escache/escache-csi/test/testca"
)

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

func newAuthority(t *testing.T) *testca.Authority {
	t.Helper()
	a, err := testca.NewAuthority("hosts")
	must(t, err)
	return a
}

// answering is the port of a server at 127.0.0.1 that shows a certificate with this name, and says of
// itself that it is n1.
func answering(t *testing.T, by *testca.Authority, name string) int {
	t.Helper()
	pair, err := by.Server(name, "127.0.0.1")
	must(t, err)
	own, err := pair.TLS()
	must(t, err)
	server := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "application/json")
		_, _ = io.WriteString(w, `{"name":"n1","healthy":true}`)
	}))
	server.TLS = &tls.Config{Certificates: []tls.Certificate{own}, ClientAuth: tls.RequireAnyClientCert}
	server.Config.ErrorLog = slog.NewLogLogger(slog.DiscardHandler, slog.LevelError)
	server.StartTLS()
	t.Cleanup(server.Close)
	_, port, err := net.SplitHostPort(server.Listener.Addr().String())
	must(t, err)
	number, err := strconv.Atoi(port)
	must(t, err)
	return number
}

// trusting are the files of a csi-controller that trusts an authority.
func trusting(t *testing.T, a *testca.Authority, name string) escacheclient.TLSFiles {
	t.Helper()
	pair, err := a.Client("csi-controller")
	must(t, err)
	dir := t.TempDir()
	files := escacheclient.TLSFiles{
		CA: filepath.Join(dir, "ca"), Cert: filepath.Join(dir, "cert"), Key: filepath.Join(dir, "key"), ServerName: name,
	}
	must(t, os.WriteFile(files.CA, a.Certificate(), 0o600))
	must(t, os.WriteFile(files.Cert, pair.Certificate, 0o600))
	must(t, os.WriteFile(files.Key, pair.Key, 0o600))
	return files
}

func of(t *testing.T, port int, options Options) *Hosts {
	t.Helper()
	nodes := fake.NewClientBuilder().WithObjects(&corev1.Node{
		ObjectMeta: metav1.ObjectMeta{Name: "n1"},
		Status:     corev1.NodeStatus{Addresses: []corev1.NodeAddress{{Type: corev1.NodeInternalIP, Address: "127.0.0.1"}}},
	}).Build()
	options.Port = port
	return New(nodes, nodes, options)
}

// TestAHostHasToShowItsOwnCertificate: all hosts' certificates are of one authority, and root of each
// host has the key of its own.
func TestAHostHasToShowItsOwnCertificate(t *testing.T) {
	a := newAuthority(t)
	for _, c := range []struct {
		pattern, shown string
		believed       bool
	}{
		{"{node}", "n1", true},
		{"{node}", "n2", false},
		{"{node}.escached.example", "n1.escached.example", true},
		{"{node}.escached.example", "n2.escached.example", false},
		{"{node}.escached.example", "n1", false},
		{"{node}.escached.example", "escached.example", false},
		{"escached.example", "escached.example", true},
		{"", "whatever", true}, // the address counts
	} {
		t.Run(fmt.Sprintf("%q shown %q", c.pattern, c.shown), func(t *testing.T) {
			h := of(t, answering(t, a, c.shown), Options{TLS: trusting(t, a, c.pattern)})
			if _, err := h.Node(t.Context(), "n1"); c.believed != (err == nil) {
				t.Errorf("believed %v: %v", err == nil, err)
			}
		})
	}
}

// TestCallsAboutAnAttachmentNameItAndTheMachine on record. Without one on record they name none.
func TestCallsAboutAnAttachmentNameItAndTheMachine(t *testing.T) {
	var epoch int64
	var meant []string
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		var body escache.AbandonRequest // every other body has an epoch, too
		_ = json.NewDecoder(r.Body).Decode(&body)
		epoch, meant = body.Epoch, r.Header.Values(escache.HeaderHostID)
		w.Header().Set("Content-Type", "application/json")
		_, _ = io.WriteString(w, `{}`)
	}))
	t.Cleanup(server.Close)
	port := server.Listener.Addr().(*net.TCPAddr).Port
	h := of(t, port, Options{})
	ref := escache.VolumeRef{Pool: "rbd", Image: "v"}
	for name, call := range map[string]func(at cachevolume.Attachment){
		"stop":    func(at cachevolume.Attachment) { _ = h.Stop(t.Context(), at) },
		"abandon": func(at cachevolume.Attachment) { _ = h.Abandon(t.Context(), at) },
		"flush":   func(at cachevolume.Attachment) { _, _ = h.Flush(t.Context(), at, time.Second) },
		"hold":    func(at cachevolume.Attachment) { _, _ = h.Hold(t.Context(), at, time.Second, false) },
		"release": func(at cachevolume.Attachment) { _ = h.Release(t.Context(), at) },
		"mode":    func(at cachevolume.Attachment) { _ = h.SetMode(t.Context(), at, escache.ModeWriteback) },
		"options": func(at cachevolume.Attachment) { _ = h.SetOptions(t.Context(), at, escache.CacheOptions{}) },
		"dev_connect": func(at cachevolume.Attachment) {
			_ = h.DevConnect(t.Context(), at.Node, at.HostID, escache.ConnectRequest{VolumeRef: ref, Epoch: at.Epoch})
		},
		"put_replica": func(at cachevolume.Attachment) {
			_, _ = h.PutReplica(t.Context(), at.Node, at.HostID, escache.ReplicaRequest{VolumeRef: ref, Epoch: at.Epoch})
		},
	} {
		for id, want := range map[string][]string{"disks-of-n1": {"disks-of-n1"}, "": nil} {
			epoch, meant = 0, nil
			call(cachevolume.Attachment{VolumeRef: ref, Node: "n1", HostID: id, Epoch: 7})
			if epoch != 7 || !slices.Equal(meant, want) {
				t.Errorf("%s for %q: epoch %d, meant for %q", name, id, epoch, meant)
			}
		}
	}
}
