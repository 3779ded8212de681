// Package tlsfiles reads TLS files again when they change, so that a renewed certificate or
// authority needs no restart. Both sides of the escache API use it.
package tlsfiles

import (
	"crypto/tls"
	"crypto/x509"
	"encoding/pem"
	"errors"
	"fmt"
	"os"
	"sync"
	"time"
)

// Files are the paths of PEM files.
type Files struct {
	// CA holds the authorities that the other side's certificate must be signed by.
	CA string
	// Cert and Key are this side's own.
	Cert, Key string
}

// Error says why a set of files cannot be used.
type Error struct{ cause error }

// Error returns the cause's text.
func (e *Error) Error() string { return e.cause.Error() }

// Unwrap returns the cause.
func (e *Error) Unwrap() error { return e.cause }

// Reloader holds the contents of the files. While changed files cannot be used the old contents
// stay in force: the files of one renewal do not change at the same moment. Its methods may be
// called from several goroutines.
type Reloader struct {
	files Files
	// unusable is called with the reason while changed files cannot be used and older contents
	// stay.
	unusable func(error)

	mu      sync.Mutex
	stamp   [3]stamp
	current *contents
}

// stamp changes when a file does.
type stamp struct {
	modified time.Time
	size     int64
}

// contents of the files. They are never changed, only replaced.
type contents struct {
	authorities *x509.CertPool
	// end is when the last of the authorities ends.
	end time.Time
	own tls.Certificate
}

// New reads the files. It fails with an *Error if they cannot be used now. Later, when changed
// files cannot be used, it calls unusable, which may be nil, at each attempt.
func New(files Files, unusable func(error)) (*Reloader, error) {
	r := Later(files)
	if unusable != nil {
		r.unusable = unusable
	}
	_, err := r.Refresh()
	return r, err
}

// Later returns a Reloader of files that may still be missing. It reads them at the first Refresh,
// or at the first handshake of a server.
func Later(files Files) *Reloader { return &Reloader{files: files, unusable: func(error) {}} }

// Refresh reads the files if they changed, and reports whether new contents are in force. It fails
// only if no contents are.
func (r *Reloader) Refresh() (changed bool, err error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	stamp, err := r.stamps()
	if err == nil && r.current != nil && stamp == r.stamp {
		return false, nil
	}
	var next *contents
	if err == nil {
		next, err = r.load()
	}
	switch {
	case err == nil:
		r.current, r.stamp = next, stamp
		return true, nil
	case r.current == nil:
		return false, &Error{err}
	default: // the stamp stays as it was, so the next call tries again
		r.unusable(err)
		return false, nil
	}
}

// Server returns a configuration to listen with. It refreshes at each handshake, and accepts only
// clients with a certificate of the authorities.
func (r *Reloader) Server() *tls.Config {
	return &tls.Config{
		MinVersion: tls.VersionTLS13,
		GetConfigForClient: func(*tls.ClientHelloInfo) (*tls.Config, error) {
			if _, err := r.Refresh(); err != nil {
				return nil, err
			}
			c, err := r.inForce()
			if err != nil {
				return nil, err
			}
			return &tls.Config{
				MinVersion: tls.VersionTLS13, Certificates: []tls.Certificate{c.own},
				ClientCAs: c.authorities, ClientAuth: tls.RequireAndVerifyClientCert, NextProtos: []string{"h2", "http/1.1"},
			}, nil
		},
	}
}

// Client returns a configuration to call the server of that name or address with. It does not
// refresh: a caller that does can close its old connections.
func (r *Reloader) Client(server string) (*tls.Config, error) {
	c, err := r.inForce()
	if err != nil {
		return nil, err
	}
	return &tls.Config{
		MinVersion: tls.VersionTLS13, RootCAs: c.authorities, ServerName: server,
		// Also if the server asks for another authority's certificate: its refusal says more than a
		// handshake without a certificate.
		GetClientCertificate: func(*tls.CertificateRequestInfo) (*tls.Certificate, error) { return &c.own, nil },
	}, nil
}

// End returns when this side's own certificate ends; zero if none is in force.
func (r *Reloader) End() time.Time {
	c, err := r.inForce()
	if err != nil || c.own.Leaf == nil {
		return time.Time{}
	}
	return c.own.Leaf.NotAfter
}

// AuthoritiesEnd returns when the last of the authorities ends: after that no other side is accepted. It is zero if
// none is in force.
func (r *Reloader) AuthoritiesEnd() time.Time {
	c, err := r.inForce()
	if err != nil {
		return time.Time{}
	}
	return c.end
}

func (r *Reloader) inForce() (*contents, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.current == nil {
		return nil, &Error{errors.New("no TLS files have been read")}
	}
	return r.current, nil
}

func (r *Reloader) stamps() (out [3]stamp, err error) {
	for i, path := range []string{r.files.CA, r.files.Cert, r.files.Key} {
		info, err := os.Stat(path)
		if err != nil {
			return out, err
		}
		out[i] = stamp{info.ModTime(), info.Size()}
	}
	return out, nil
}

func (r *Reloader) load() (*contents, error) {
	trusted, err := r.files.Authorities()
	if err != nil {
		return nil, err
	}
	next := &contents{authorities: x509.NewCertPool()}
	for _, authority := range trusted {
		next.authorities.AddCert(authority)
		if authority.NotAfter.After(next.end) {
			next.end = authority.NotAfter
		}
	}
	if next.own, err = r.files.Own(); err != nil {
		return nil, err
	}
	return next, nil
}

// Authorities reads the certificates of the authorities. There is at least one.
func (f Files) Authorities() ([]*x509.Certificate, error) {
	rest, err := os.ReadFile(f.CA)
	if err != nil {
		return nil, err
	}
	var all []*x509.Certificate
	for {
		var block *pem.Block
		if block, rest = pem.Decode(rest); block == nil {
			break
		}
		// One that cannot be read is left out, as the standard library does for the pool of a system.
		if certificate, err := x509.ParseCertificate(block.Bytes); err == nil && block.Type == "CERTIFICATE" {
			all = append(all, certificate)
		}
	}
	if len(all) == 0 {
		return nil, fmt.Errorf("%s holds no certificate", f.CA)
	}
	return all, nil
}

// Own reads this side's own certificate, and fails unless the key is that of the certificate.
func (f Files) Own() (tls.Certificate, error) {
	own, err := tls.LoadX509KeyPair(f.Cert, f.Key)
	if err != nil {
		return own, fmt.Errorf("certificate %s with key %s: %w", f.Cert, f.Key, err)
	}
	return own, nil
}
