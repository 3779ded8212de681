package conformance

import (
	"bufio"
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"fmt"
	"math/big"
	"net"
	"net/http"
	"net/url"
	"time"

	"github.com/escache/escache-csi/api/escache"
)

func hostChecks() []Check {
	return []Check{
		{"node counts what is created", nodeCounts, alone},
		{"status of a volume that is not here", statusOfAbsent, alone},
		{"every answer says which host it is of", identified, beside},
		{"TCP needs a client certificate", certificateNeeded, alone},
		{"a client of another name is refused", nameNeeded, beside},
	}
}

func nodeCounts(s *suite) {
	var before escache.Node
	s.eventually("the host is healthy", func() (bool, any) { // one that has just started still looks at its disks
		before = s.first.node()
		return before.Healthy, before.Reasons
	})
	if before.Name != s.first.Name {
		s.Errorf("the host calls itself %q, replica requests call it %q", before.Name, s.first.Name)
	}
	if sum := before.CacheAllocatedBytes + before.CacheFreeBytes; sum > before.CacheCapacityBytes {
		s.Errorf("allocated and free are %d bytes, more than the capacity of %d", sum, before.CacheCapacityBytes)
	}
	v := s.connected()
	v.makeDirty(s.first)
	during := s.first.node()
	if grown := during.CacheAllocatedBytes - before.CacheAllocatedBytes; grown < s.target.CacheBytes {
		s.Errorf("a replica of %d bytes raised cacheAllocatedBytes by %d", s.target.CacheBytes, grown)
	}
	if shrunk := before.CacheFreeBytes - during.CacheFreeBytes; shrunk < s.target.CacheBytes {
		s.Errorf("a replica of %d bytes lowered cacheFreeBytes by %d", s.target.CacheBytes, shrunk)
	}
	if during.Volumes != before.Volumes+1 || during.Primaries != before.Primaries+1 || during.DirtyBytes <= before.DirtyBytes {
		s.Errorf("a connected, dirty volume more changed the host from %+v to %+v", before, during)
	}
	memoryCounts(s, before, during)
	v.detach(s.first)
	done(s, "delete", s.first.delete(v))
	after := s.first.node()
	if after.ConnectedBytes != before.ConnectedBytes || after.CacheMemoryBytes != before.CacheMemoryBytes {
		s.Errorf("after the volume was deleted the host has %+v, before it had %+v", after, before)
	}
	if after.CacheAllocatedBytes != before.CacheAllocatedBytes || after.Volumes != before.Volumes || after.Primaries != before.Primaries {
		s.Errorf("after the volume was deleted the host has %+v, before it had %+v", after, before)
	}
}

// memoryCounts compares what a host says of its memory before and after a volume was connected.
func memoryCounts(s *suite, before, during escache.Node) {
	if grown := during.ConnectedBytes - before.ConnectedBytes; grown < s.target.CacheBytes {
		s.Errorf("a connected cache of %d bytes raised connectedBytes by %d", s.target.CacheBytes, grown)
	}
	if during.ConnectableBytes == nil {
		return // the host sets no limit
	}
	if during.CacheMemoryBytes <= before.CacheMemoryBytes {
		s.Errorf("a connected cache changed cacheMemoryBytes from %d to %d", before.CacheMemoryBytes, during.CacheMemoryBytes)
	}
	if *during.ConnectableBytes < during.ConnectedBytes {
		s.Errorf("%d bytes are connected, and only %d are connectable", during.ConnectedBytes, *during.ConnectableBytes)
	}
}

func statusOfAbsent(s *suite) {
	v := s.nameVolume()
	if status := s.first.status(v.VolumeRef); status.State != escache.StateAbsent {
		s.Errorf("the state of a volume nobody knows is %q, want %q", status.State, escache.StateAbsent)
	}
	for _, query := range []url.Values{
		{"pool": {v.Pool}}, {"image": {v.Image}}, {"pool": {v.Pool}, "image": {"a/b"}}, {"pool": {v.Pool}, "image": {""}},
		{"pool": {v.Pool}, "image": {v.Image}, "force": {"true"}}, {"pool": {v.Pool, v.Pool}, "image": {v.Image}},
	} {
		a := s.first.send(request{method: http.MethodGet, path: escache.PathStatus, query: query, broken: true})
		refused(s, "status?"+query.Encode(), a, escache.CodeInvalidRequest)
	}
}

// identified: a caller that has laid a replica believes no other machine about it, also of the same
// name or at the same address.
func identified(s *suite) {
	ids := map[string]string{}
	for _, h := range []*host{s.first, s.second} {
		id := h.node().HostID
		if id == "" || ids[id] != "" {
			s.Fatalf("%s gives the host id %q; it needs one of its own", h.Name, id)
		}
		ids[id] = h.Name
		v := s.newVolume()
		says := func(what string, a *answer) {
			if got := a.header.Get(escache.HeaderHostID); got != id {
				s.Errorf("%s on %s: the header %s is %q, want %q", what, h.Name, escache.HeaderHostID, got, id)
			}
		}
		for _, state := range []escache.State{escache.StateAbsent, escache.StateStandby} {
			if status := h.status(v.VolumeRef); status.State != state || status.Node != h.Name || status.HostID != id {
				s.Errorf("status on %s is %+v, want %s of node %s with host id %q", h.Name, shown(status), state, h.Name, id)
			}
			laid := h.put(v.request())
			done(s, "create a replica on "+h.Name, laid)
			says("create", laid)
		}
		stopped := h.stop(v)
		done(s, "stop a standby on "+h.Name, stopped)
		says("stop", stopped)
		says("connect with another image's id", h.connect(v, 1, "another"))
	}
}

// certificateNeeded calls without a certificate, and with one that nobody trusts: the handshake
// fails, or the answer says so.
func certificateNeeded(s *suite) {
	called := 0
	for _, h := range []*host{s.first, s.second} {
		if h.URL == "" {
			continue
		}
		called++
		stranger, err := selfSigned("stranger")
		if err != nil {
			s.Fatalf("%v", err)
		}
		for what, certificates := range map[string][]tls.Certificate{"no certificate": nil, "a stranger's certificate": {stranger}} {
			config, err := clientTLS(h.TLS)
			if err != nil {
				s.Fatalf("%v", err)
			}
			config.Certificates = nil
			config.GetClientCertificate = func(*tls.CertificateRequestInfo) (*tls.Certificate, error) {
				if len(certificates) == 0 {
					return &tls.Certificate{}, nil
				}
				return &certificates[0], nil
			}
			bare := *h.call
			transport := &http.Transport{TLSClientConfig: config}
			bare.http = &http.Client{Transport: transport}
			ctx, cancel := context.WithTimeout(s.Context(), s.target.CallTimeout)
			a, err := bare.do(ctx, request{method: http.MethodGet, path: escache.PathNode})
			cancel()
			transport.CloseIdleConnections()
			if err == nil && a.code() != escache.CodeUnauthorized {
				s.Errorf("%s: a caller with %s got %s", h.Name, what, a)
			}
		}
		if status, err := plaintext(s.Context(), h.URL); err == nil && status < http.StatusBadRequest {
			s.Errorf("%s: a caller without TLS got %d", h.Name, status)
		}
	}
	if called == 0 {
		s.Skipf("both hosts are called over a unix socket")
	}
}

// nameNeeded calls with a certificate that is as good as the caller's own, but somebody else's.
func nameNeeded(s *suite) {
	if s.target.Other.Cert == "" {
		s.Skipf("no certificate of another client is given")
	}
	called := 0
	for _, h := range []*host{s.first, s.second} {
		if h.URL == "" {
			continue
		}
		called++
		other := h.Host
		other.TLS.Cert, other.TLS.Key = s.target.Other.Cert, s.target.Other.Key
		call, err := newCaller(other, h.call.contract)
		if err != nil {
			s.Fatalf("%v", err)
		}
		v := s.nameVolume()
		stranger := &host{Host: other, s: s, call: call}
		for what, req := range map[string]request{
			"reads":             {method: http.MethodGet, path: escache.PathNode},
			"creates a replica": {method: http.MethodPut, path: escache.PathReplica, body: encode(s, v.request())},
			"knows no path":     {method: http.MethodGet, path: "/v1/nowhere", broken: true},
			"breaks the rules":  {method: http.MethodPost, path: escache.PathStop, body: []byte("{"), broken: true},
		} {
			refused(s, "a client of another name that "+what, stranger.send(req), escache.CodeForbidden)
		}
		call.http.CloseIdleConnections()
		if status := h.status(v.VolumeRef); status.State != escache.StateAbsent {
			s.Errorf("after the refusal the volume is %q", status.State)
		}
	}
	if called == 0 {
		s.Skipf("both hosts are called over a unix socket")
	}
}

// plaintext speaks HTTP to the TLS port.
func plaintext(ctx context.Context, address string) (int, error) {
	u, err := url.Parse(address)
	if err != nil {
		return 0, err
	}
	conn, err := (&net.Dialer{Timeout: 10 * time.Second}).DialContext(ctx, "tcp", u.Host)
	if err != nil {
		return 0, err
	}
	defer func() { _ = conn.Close() }()
	if err := conn.SetDeadline(time.Now().Add(10 * time.Second)); err != nil {
		return 0, err
	}
	if _, err := fmt.Fprintf(conn, "GET %s HTTP/1.1\r\nHost: %s\r\n\r\n", escache.PathNode, u.Host); err != nil {
		return 0, err
	}
	resp, err := http.ReadResponse(bufio.NewReader(conn), nil)
	if err != nil {
		return 0, err
	}
	defer func() { _ = resp.Body.Close() }()
	return resp.StatusCode, nil
}

func selfSigned(name string) (tls.Certificate, error) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return tls.Certificate{}, err
	}
	template := &x509.Certificate{
		SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: name}, NotBefore: time.Now().Add(-time.Hour),
		NotAfter: time.Now().Add(time.Hour), ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth},
	}
	der, err := x509.CreateCertificate(rand.Reader, template, template, &key.PublicKey, key)
	return tls.Certificate{Certificate: [][]byte{der}, PrivateKey: key}, err
}
