// Package escacheclient is the client of the escache HTTP API, over TCP with mutual TLS or over the
// local service's unix socket.
//
// Every call has a deadline of its own in addition to its context's. A call is repeated only if
// that is safe: if nothing was sent, or if it is a GET or PUT that got no answer.
package escacheclient

import (
	"context"
	"crypto/tls"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/http/httptrace"
	"net/url"
	"sync/atomic"
	"time"

	"github.com/go-resty/resty/v2"

	"github.com/escache/escache-csi/api/escache"
	"github.com/escache/escache-csi/internal/tlsfiles"
	"github.com/escache/escache-csi/internal/traces"
)

const (
	dialTimeout = 3 * time.Second
	// maxAnswerBytes is more than the status of a host full of volumes takes, and less than would
	// hurt the caller.
	maxAnswerBytes = 8 << 20
	maxRepeats     = 3
	firstWait      = 100 * time.Millisecond
	longestWait    = 2 * time.Second
)

// Client calls one escached. It is safe for use by several goroutines.
type Client struct {
	opts  Options
	meant string // the identity of the host that is meant; "": whoever answers
	http  *resty.Client
	idle  *http.Transport
	certs *tlsfiles.Reloader // nil without TLS

	former     *tlsfiles.Reloader // nil if no former name is accepted
	formerUsed *atomic.Bool
}

// New returns a client. It reads the TLS files but does not call the service. Errors wrap ErrTLS if
// the files cannot be used.
func New(opts Options) (*Client, error) {
	if err := opts.Validate(); err != nil {
		return nil, fmt.Errorf("escache client: %w", err)
	}
	c := &Client{opts: withDefaults(opts), formerUsed: new(atomic.Bool)}
	c.idle = &http.Transport{
		Proxy:               nil, // hosts are called directly, whatever the environment says
		DialContext:         c.dial,
		MaxIdleConnsPerHost: 4,
		IdleConnTimeout:     30 * time.Second,
		DisableCompression:  true, // the size limit counts what was sent
	}
	base := opts.BaseURL
	if opts.UnixSocket != "" {
		base = "http://escache"
		c.idle.DialContext = func(ctx context.Context, _, _ string) (net.Conn, error) {
			return c.dial(ctx, "unix", opts.UnixSocket)
		}
	} else if u, err := url.Parse(opts.BaseURL); err == nil && u.Scheme == "https" {
		files := tlsfiles.Files{CA: opts.TLS.CA, Cert: opts.TLS.Cert, Key: opts.TLS.Key}
		c.certs, err = tlsfiles.New(files, func(err error) {
			c.opts.Logger.Warn("TLS files cannot be used; the last good ones stay in force", "error", err)
		})
		if err != nil {
			return nil, fmt.Errorf("escache client for %s: %w: %w; %s", c.opts.Node, ErrTLS, err, tlsAdvice(err))
		}
		c.prepareFormer()
		c.idle.DialTLSContext = c.dialTLS
	}
	c.http = resty.NewWithClient(&http.Client{
		Transport:     c.idle,
		CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
	})
	c.http.SetBaseURL(base).SetHeader("User-Agent", c.opts.UserAgent).SetLogger(silent{}).SetResponseBodyLimit(maxAnswerBytes)
	c.http.SetRetryCount(maxRepeats).SetRetryWaitTime(c.opts.RepeatAfter).SetRetryMaxWaitTime(longestWait)
	return c, nil
}

// For returns the client for calls that are meant for the host with this identity. Another one that has its
// name or address refuses those that would change something, with escache.CodeOtherHost. An empty
// identity is not known, and whoever answers carries them out.
func (c *Client) For(hostID string) *Client {
	meant := *c
	meant.meant = hostID
	return &meant
}

func (c *Client) dial(ctx context.Context, network, address string) (net.Conn, error) {
	ctx, cancel := context.WithTimeout(ctx, dialTimeout)
	defer cancel()
	return c.opts.Dial(ctx, network, address)
}

// dialTLS opens a connection with the certificates in force.
func (c *Client) dialTLS(ctx context.Context, network, address string) (net.Conn, error) {
	ctx, cancel := context.WithTimeout(ctx, dialTimeout)
	defer cancel()
	name := c.opts.TLS.ServerName
	if name == "" {
		host, _, err := net.SplitHostPort(address)
		if err != nil {
			return nil, err
		}
		name = host
	}
	conn, err := c.dialWith(ctx, network, address, c.certs, name)
	if err != nil {
		return c.dialFormer(ctx, network, address, err)
	}
	return conn, nil
}

// dialWith opens a connection and demands a name of the service's certificate.
func (c *Client) dialWith(ctx context.Context, network, address string, certs *tlsfiles.Reloader, name string) (net.Conn, error) {
	config, err := certs.Client(name)
	if err != nil {
		return nil, err
	}
	conn, err := c.opts.Dial(ctx, network, address)
	if err != nil {
		return nil, err
	}
	secured := tls.Client(conn, config)
	if err := secured.HandshakeContext(ctx); err != nil {
		_ = conn.Close()
		return nil, err
	}
	return secured, nil
}

// Close closes idle connections. The client stays usable.
func (c *Client) Close() { c.idle.CloseIdleConnections() }

// silent drops resty's own log lines, which hold addresses and bodies. Observe and the slow-call
// line report what matters.
type silent struct{}

func (silent) Errorf(string, ...any) {}
func (silent) Warnf(string, ...any)  {}
func (silent) Debugf(string, ...any) {}

// call is one request: what to send, where the answer goes, and how long it may take.
type call struct {
	name   string
	method string
	path   string
	query  url.Values
	body   any
	out    any     // nil: the answer has no body
	hostID *string // gets the identity of the host that answered
	limit  time.Duration
	slow   time.Duration // 0: Options.SlowAfter
}

// do makes a call and tells log, metrics and traces about it: the only place where that happens.
func (c *Client) do(ctx context.Context, k call) error {
	start := time.Now()
	ctx, step := traces.Call(ctx, "escached", k.name)
	defer step.End()
	step.Set("escached.node", c.opts.Node)
	ctx, cancel := context.WithTimeout(ctx, k.limit)
	defer cancel()
	err := c.send(ctx, k)
	if err != nil {
		err = &CallError{Node: c.opts.Node, Call: k.name, Err: err}
		step.Fail(outcomeOf(err))
	}
	took, slow := time.Since(start), k.slow
	if slow == 0 {
		slow = c.opts.SlowAfter
	}
	if took > slow {
		c.opts.Logger.Warn("slow escache call", "node", c.opts.Node, "call", k.name, "outcome", outcomeOf(err), "duration", took)
	}
	c.opts.Observe(k.name, outcomeOf(err), took)
	return err
}

func (c *Client) send(ctx context.Context, k call) error {
	c.endFormer()
	if c.certs != nil {
		changed, err := c.certs.Refresh()
		if err != nil {
			return causeOf(ctx, err, false)
		}
		if changed { // what is open was made with the old certificates
			c.idle.CloseIdleConnections()
		}
	}
	var attempt attempt
	request := c.http.R().SetContext(httptrace.WithClientTrace(ctx, attempt.trace())).SetQueryParamsFromValues(k.query)
	traces.Send(ctx, request.Header)
	if c.meant != "" && k.method != http.MethodGet {
		request.SetHeader(escache.HeaderHostID, c.meant)
	}
	if k.body != nil {
		request.SetHeader("Content-Type", "application/json").SetBody(k.body)
	}
	request.AddRetryCondition(func(_ *resty.Response, err error) bool { return attempt.again(ctx, k.method, c.opts.RepeatAfter, err) })
	resp, err := request.Execute(k.method, k.path)
	if errors.Is(err, resty.ErrResponseBodyTooLarge) {
		return &UnexpectedAnswerError{Status: resp.StatusCode(), Reason: fmt.Sprintf("longer than %d bytes", maxAnswerBytes)}
	}
	if err != nil {
		if attempt.last != nil { // what came before a wait that the deadline ended
			err = attempt.last
		}
		return causeOf(ctx, err, attempt.connected.Load())
	}
	if k.hostID != nil {
		*k.hostID = resp.Header().Get(escache.HeaderHostID)
	}
	return answer(resp, k.out)
}

// answer decodes a complete answer.
func answer(resp *resty.Response, out any) error {
	switch status := resp.StatusCode(); {
	case status >= http.StatusBadRequest:
		return problemOf(resp)
	case out == nil && status == http.StatusNoContent:
		return nil
	case out != nil && status == http.StatusOK:
		if err := json.Unmarshal(resp.Body(), out); err != nil {
			return unexpected(resp, err.Error())
		}
		return nil
	default:
		return unexpected(resp, "status")
	}
}

// attempt watches one call's tries to decide whether another is safe.
type attempt struct {
	connected atomic.Bool // in this try the request may have been sent
	last      error
}

func (a *attempt) trace() *httptrace.ClientTrace {
	return &httptrace.ClientTrace{GotConn: func(httptrace.GotConnInfo) { a.connected.Store(true) }}
}

// again decides on a repeat: nothing was sent, or what was sent may be sent twice. Answers are
// never asked for again: a busy or failing service is its caller's to judge.
func (a *attempt) again(ctx context.Context, method string, pause time.Duration, err error) bool {
	if a.last == nil || ctx.Err() == nil { // a try that the deadline ended does not hide why those before it failed
		a.last = err
	}
	if err == nil || ctx.Err() != nil || tlsAdvice(err) != "" || errors.Is(err, resty.ErrResponseBodyTooLarge) {
		return false
	}
	if a.connected.Load() && method != http.MethodGet && method != http.MethodPut {
		return false
	}
	if deadline, ok := ctx.Deadline(); ok && time.Until(deadline) < pause {
		return false
	}
	a.connected.Store(false)
	return true
}
