// Package hosttest gives tests a fleet of hosts that serve the escache HTTP API, without disks and
// kernels. Each listens on a loopback address of its own, all on one port. The hosts are those of
// escachetest.
package hosttest

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"strconv"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/escache/escache-csi/api/escache"
)

// Fleet is a number of hosts.
type Fleet struct {
	Port  int
	Hosts map[string]*Host
}

// Start starts a host for each name, each with that much cache. They end with the test.
func Start(t testing.TB, cacheBytes int64, names ...string) *Fleet {
	t.Helper()
	f, err := New(cacheBytes, names...)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(f.Stop)
	return f
}

// New is Start for programs that are no tests. They stop the fleet themselves.
func New(cacheBytes int64, names ...string) (*Fleet, error) {
	for range 50 {
		f, err := try(cacheBytes, names)
		if f != nil || err != nil {
			return f, err
		}
	}
	return nil, errors.New("no port is free on all loopback addresses")
}

// Stop ends all hosts.
func (f *Fleet) Stop() {
	for _, h := range f.Hosts {
		h.Stop()
	}
}

// try returns nil if the port that the first host has chosen is taken on another's address.
func try(cacheBytes int64, names []string) (*Fleet, error) {
	f := &Fleet{Hosts: map[string]*Host{}}
	for i, name := range names {
		h, err := newHost(name, fmt.Sprintf("127.0.%d.%d", 1+i/200, 11+i%200), cacheBytes)
		if err != nil {
			return nil, err
		}
		if err := h.listen(f.Port); err != nil {
			f.Stop()
			return nil, nil //nolint:nilnil,nilerr // as said above
		}
		f.Port = h.port
		f.Hosts[name], h.peers = h, f.Hosts
	}
	return f, nil
}

// Node is the Kubernetes Node of a host, Ready and with its address.
func (f *Fleet) Node(name string) *corev1.Node {
	n := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: name}}
	n.Status.Conditions = []corev1.NodeCondition{{Type: corev1.NodeReady, Status: corev1.ConditionTrue}}
	if h := f.Hosts[name]; h != nil {
		n.Status.Addresses = []corev1.NodeAddress{{Type: corev1.NodeInternalIP, Address: h.address}}
	}
	return n
}

func (h *Host) listen(port int) error {
	listener, err := (&net.ListenConfig{}).Listen(context.Background(), "tcp", net.JoinHostPort(h.address, fmt.Sprint(port)))
	if err != nil {
		return err
	}
	if h.port = port; port == 0 {
		_, chosen, _ := net.SplitHostPort(listener.Addr().String())
		if h.port, err = strconv.Atoi(chosen); err != nil {
			return err
		}
	}
	answer := func(w http.ResponseWriter, r *http.Request) { h.answers.Load().handler.ServeHTTP(w, r) }
	h.server = &http.Server{Handler: http.HandlerFunc(answer), ReadHeaderTimeout: 5 * time.Second}
	go func(s *http.Server) { _ = s.Serve(listener) }(h.server)
	return nil
}

// Stop ends the host's service at once, as a crash would. What it has stays.
func (h *Host) Stop() {
	if h.server != nil {
		_ = h.server.Close()
		h.server = nil
	}
}

// Restart starts it again.
func (h *Host) Restart(t testing.TB) {
	t.Helper()
	if err := h.listen(h.port); err != nil {
		t.Fatal(err)
	}
}

// Replicas is how many replicas all hosts have together.
func (f *Fleet) Replicas() int {
	n := 0
	for _, h := range f.Hosts {
		n += h.Replicas()
	}
	return n
}

// On returns the names of the hosts that have a replica of the volume.
func (f *Fleet) On(volume escache.VolumeRef) map[string]bool {
	out := map[string]bool{}
	for name, h := range f.Hosts {
		if h.Has(volume) {
			out[name] = true
		}
	}
	return out
}
