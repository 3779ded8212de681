package conformance

import (
	"bytes"
	"context"
	"crypto/tls"
	"crypto/x509"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"os"
	"time"

	"github.com/escache/escache-csi/api/escache"
	"github.com/escache/escache-csi/api/escache/internal/contract"
)

// maxAnswer bounds what is read of an answer.
const maxAnswer = 8 << 20

// caller speaks plain HTTP to one host: no repeats, no conveniences, and each answer is held
// against the contract.
type caller struct {
	base     string
	http     *http.Client
	contract *contract.Contract
}

func newCaller(h Host, c *contract.Contract) (*caller, error) {
	// A server may close a connection that has had no request for some seconds. The transport must give it up before, for a
	// PUT that is sent at that moment ends with EOF. escached waits ten seconds for the first request.
	transport := &http.Transport{Proxy: nil, MaxIdleConnsPerHost: 8, IdleConnTimeout: 3 * time.Second}
	base := h.URL
	if h.Socket != "" {
		base = "http://escache"
		transport.DialContext = func(ctx context.Context, _, _ string) (net.Conn, error) {
			return (&net.Dialer{}).DialContext(ctx, "unix", h.Socket)
		}
	} else {
		config, err := clientTLS(h.TLS)
		if err != nil {
			return nil, fmt.Errorf("host %s: %w", h.Name, err)
		}
		transport.TLSClientConfig = config
	}
	return &caller{base: base, contract: c, http: &http.Client{
		Transport:     transport,
		CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
	}}, nil
}

func clientTLS(files TLSFiles) (*tls.Config, error) {
	pem, err := os.ReadFile(files.CA)
	if err != nil {
		return nil, err
	}
	roots := x509.NewCertPool()
	if !roots.AppendCertsFromPEM(pem) {
		return nil, fmt.Errorf("%s holds no certificate", files.CA)
	}
	own, err := tls.LoadX509KeyPair(files.Cert, files.Key)
	if err != nil {
		return nil, err
	}
	return &tls.Config{RootCAs: roots, Certificates: []tls.Certificate{own}, MinVersion: tls.VersionTLS12}, nil
}

// request is one HTTP request as it goes over the wire.
type request struct {
	method, path string
	query        url.Values
	body         []byte
	meant        string // the identity of the host that is meant; "" names none
	chunked      bool
	// broken says that the request is meant to break the contract, so only the answer is checked.
	broken bool
}

// answer is one HTTP answer. problem is nil unless the status is an error.
type answer struct {
	status  int
	header  http.Header
	body    []byte
	problem *escache.Problem
}

// code is the answer's code, "" for a success.
func (a *answer) code() escache.Code {
	if a.problem == nil {
		return ""
	}
	return a.problem.Code
}

func (a *answer) String() string {
	return fmt.Sprintf("%d %s", a.status, bytes.TrimSpace(a.body))
}

// contractError is an answer or a request that breaks the contract.
type contractError struct{ err error }

func (e *contractError) Error() string { return "against openapi.yaml: " + e.err.Error() }
func (e *contractError) Unwrap() error { return e.err }

// do sends a request. An error is a *contractError, or says that no complete answer came.
func (c *caller) do(ctx context.Context, req request) (*answer, error) {
	target := c.base + req.path
	if len(req.query) > 0 {
		target += "?" + req.query.Encode()
	}
	var body io.Reader
	if req.body != nil {
		body = bytes.NewReader(req.body)
	}
	if req.chunked { // hides the length
		body = io.MultiReader(body)
	}
	r, err := http.NewRequestWithContext(ctx, req.method, target, body)
	if err != nil {
		return nil, err
	}
	if req.body != nil {
		r.Header.Set("Content-Type", "application/json")
	}
	if req.meant != "" {
		r.Header.Set(escache.HeaderHostID, req.meant)
	}
	if !req.broken {
		check := r.Clone(ctx)
		check.Body = io.NopCloser(bytes.NewReader(req.body))
		if err := c.contract.CheckRequest(check); err != nil {
			return nil, &contractError{fmt.Errorf("the suite's own request: %w", err)}
		}
	}
	resp, err := c.http.Do(r)
	if err != nil {
		return nil, err
	}
	defer func() { _ = resp.Body.Close() }()
	data, err := io.ReadAll(io.LimitReader(resp.Body, maxAnswer))
	if err != nil {
		return nil, err
	}
	if err := c.contract.CheckAnswer(r, resp.StatusCode, resp.Header, data); err != nil {
		return nil, &contractError{fmt.Errorf("%s %s: %d %s: %w", req.method, target, resp.StatusCode, bytes.TrimSpace(data), err)}
	}
	a := &answer{status: resp.StatusCode, header: resp.Header, body: data}
	if resp.StatusCode >= http.StatusBadRequest {
		if a.problem, err = contract.ProblemOf(resp.Header, data); err != nil {
			return nil, &contractError{err}
		}
	}
	return a, nil
}
