package escacheclient

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/url"
	"path/filepath"
	"time"
)

// Options say where an escached is and how to call it. Exactly one of BaseURL and UnixSocket is
// set.
type Options struct {
	// Node is the host's name in error messages and logs. Empty: the address.
	Node string
	// BaseURL is "https://HOST:PORT" without a path.
	BaseURL string
	// UnixSocket is the absolute path of the local service's socket.
	UnixSocket string
	// TLS is needed for an https BaseURL. The files are read again when they change.
	TLS TLSFiles
	// Former is a name that the service may still show instead of TLS.ServerName.
	Former FormerName
	// AllowPlaintext permits an http BaseURL to hosts other than the loopback.
	AllowPlaintext bool
	// Dial opens the connections, below TLS. nil: net.Dialer.
	Dial func(ctx context.Context, network, address string) (net.Conn, error)
	// Timeout bounds the calls. Zero fields get the values of DefaultTimeouts.
	Timeout Timeouts
	// RepeatAfter is the pause before a call is repeated for the first time. The next pauses are longer. 0: 100 ms.
	RepeatAfter time.Duration
	// UserAgent names the caller in the other side's log.
	UserAgent string
	// Logger gets one line for each slow call, and for each call while changed TLS files cannot be
	// used. nil: no lines.
	Logger *slog.Logger
	// SlowAfter is the duration from which a call other than flush is logged. 0: three seconds.
	SlowAfter time.Duration
	// Observe is called after each call. The code is "ok", a code of the API, or one of the Outcome
	// constants. It may be nil.
	Observe func(call, code string, d time.Duration)
}

// TLSFiles are the paths of PEM files: the authority that signed the service's certificate, and the
// caller's own certificate and key.
type TLSFiles struct {
	CA, Cert, Key string
	// ServerName is the name that the service's certificate must have. Empty: the URL's host.
	ServerName string
}

// Timeouts bound a call with all its repeats. The deadline of the caller's context applies too.
type Timeouts struct {
	// Query bounds Node and Status.
	Query time.Duration
	// Change bounds PutReplica, DeleteReplica, Stop, SetMode, SetOptions, Hold, Release and
	// Resize.
	Change time.Duration
	// Connect bounds DevConnect, which may wait for Ceph to break a dead client's lock.
	Connect time.Duration
	// FlushMargin is added to the time that a flush request asks for.
	FlushMargin time.Duration
}

// DefaultTimeouts returns limits that suit a loaded host, and are short enough to notice a dead
// one.
func DefaultTimeouts() Timeouts {
	return Timeouts{Query: 5 * time.Second, Change: time.Minute, Connect: 2 * time.Minute, FlushMargin: 15 * time.Second}
}

// Validate reports everything that is wrong at once.
func (o *Options) Validate() error {
	var errs []error
	bad := func(format string, args ...any) { errs = append(errs, fmt.Errorf(format, args...)) }
	switch {
	case o.BaseURL == "" && o.UnixSocket == "":
		bad("neither a base URL nor a unix socket is set; name one of them")
	case o.BaseURL != "" && o.UnixSocket != "":
		bad("both base URL %q and unix socket %q are set; name one of them", o.BaseURL, o.UnixSocket)
	case o.UnixSocket != "" && !filepath.IsAbs(o.UnixSocket):
		bad("unix socket %q is not an absolute path", o.UnixSocket)
	case o.BaseURL != "":
		errs = append(errs, o.validateURL())
	}
	for name, d := range map[string]time.Duration{
		"query": o.Timeout.Query, "change": o.Timeout.Change, "connect": o.Timeout.Connect, "flush margin": o.Timeout.FlushMargin,
		"slow after": o.SlowAfter, "repeat after": o.RepeatAfter,
	} {
		if d < 0 {
			bad("%s: %s is negative", name, d)
		}
	}
	return errors.Join(errs...)
}

func (o *Options) validateURL() error {
	u, err := url.Parse(o.BaseURL)
	if err != nil {
		return fmt.Errorf("base URL: %w", err)
	}
	if u.Host == "" || (u.Path != "" && u.Path != "/") || u.User != nil || u.RawQuery != "" || u.Fragment != "" {
		return fmt.Errorf("base URL %q is not https://HOST:PORT", u.Redacted())
	}
	switch u.Scheme {
	case "https":
		if o.TLS.CA == "" || o.TLS.Cert == "" || o.TLS.Key == "" {
			return fmt.Errorf("base URL %q needs the TLS files CA, certificate and key: the API asks for client certificates",
				o.BaseURL)
		}
	case "http":
		if ip := net.ParseIP(u.Hostname()); !o.AllowPlaintext && u.Hostname() != "localhost" && (ip == nil || !ip.IsLoopback()) {
			return fmt.Errorf("base URL %q would send everything in the clear; use https with TLS files", o.BaseURL)
		}
	default:
		return fmt.Errorf("base URL %q is not https://HOST:PORT", o.BaseURL)
	}
	return nil
}

// withDefaults fills in what was left out.
func withDefaults(o Options) Options {
	def := DefaultTimeouts()
	for _, d := range []struct {
		set *time.Duration
		def time.Duration
	}{
		{&o.Timeout.Query, def.Query}, {&o.Timeout.Change, def.Change}, {&o.Timeout.Connect, def.Connect},
		{&o.Timeout.FlushMargin, def.FlushMargin}, {&o.SlowAfter, 3 * time.Second}, {&o.RepeatAfter, firstWait},
	} {
		if *d.set == 0 {
			*d.set = d.def
		}
	}
	if o.Dial == nil {
		o.Dial = (&net.Dialer{}).DialContext
	}
	if o.Node == "" {
		o.Node = o.BaseURL + o.UnixSocket
	}
	if o.UserAgent == "" {
		o.UserAgent = "escache-client"
	}
	if o.Logger == nil {
		o.Logger = slog.New(slog.DiscardHandler)
	}
	if o.Observe == nil {
		o.Observe = func(string, string, time.Duration) {}
	}
	return o
}
