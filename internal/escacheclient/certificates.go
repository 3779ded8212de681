package escacheclient

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"os"
	"sync"
	"time"
)

// filesError is a set of TLS files that cannot be used.
type filesError struct{ err error }

func (e *filesError) Error() string { return e.err.Error() }
func (e *filesError) Unwrap() error { return e.err }

// certificates holds the content of TLS files and reads them again when they change. A set that cannot be used, as in the middle of
// a rotation that is not atomic, leaves the last good one in force.
type certificates struct {
	files  TLSFiles
	logger *slog.Logger

	mu     sync.Mutex
	seen   [3]fileVersion
	config *tls.Config
}

type fileVersion struct {
	modified time.Time
	size     int64
}

// refresh reads the files if they changed and reports whether a new set is in force.
func (c *certificates) refresh() (bool, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	seen, err := versionsOf(c.files)
	if err == nil && seen == c.seen && c.config != nil {
		return false, nil
	}
	var config *tls.Config
	if err == nil {
		config, err = readTLS(c.files)
	}
	switch {
	case err == nil:
		c.seen, c.config = seen, config
		return true, nil
	case c.config == nil:
		return false, &filesError{err}
	default: // the versions are not recorded, so the next call tries again
		c.logger.Warn("TLS files cannot be used; the last good ones stay in force", "error", err)
		return false, nil
	}
}

func versionsOf(files TLSFiles) ([3]fileVersion, error) {
	var seen [3]fileVersion
	for i, path := range []string{files.CA, files.Cert, files.Key} {
		info, err := os.Stat(path)
		if err != nil {
			return seen, err
		}
		seen[i] = fileVersion{info.ModTime(), info.Size()}
	}
	return seen, nil
}

func readTLS(files TLSFiles) (*tls.Config, error) {
	pem, err := os.ReadFile(files.CA)
	if err != nil {
		return nil, err
	}
	authorities := x509.NewCertPool()
	if !authorities.AppendCertsFromPEM(pem) {
		return nil, fmt.Errorf("%s holds no certificate", files.CA)
	}
	own, err := tls.LoadX509KeyPair(files.Cert, files.Key)
	if err != nil {
		return nil, fmt.Errorf("certificate %s with key %s: %w", files.Cert, files.Key, err)
	}
	return &tls.Config{
		RootCAs: authorities, MinVersion: tls.VersionTLS13, ServerName: files.ServerName,
		// Always this one, also where the service names other authorities: its refusal says more than a handshake without a certificate.
		GetClientCertificate: func(*tls.CertificateRequestInfo) (*tls.Certificate, error) { return &own, nil },
	}, nil
}

// secure runs TLS over a connection, with the certificates in force.
func (c *certificates) secure(ctx context.Context, conn net.Conn, address string) (net.Conn, error) {
	c.mu.Lock()
	config := c.config
	c.mu.Unlock()
	if config == nil {
		return nil, &filesError{errors.New("no TLS files have been read")}
	}
	if config.ServerName == "" {
		host, _, err := net.SplitHostPort(address)
		if err != nil {
			return nil, err
		}
		config = config.Clone()
		config.ServerName = host
	}
	secured := tls.Client(conn, config)
	return secured, secured.HandshakeContext(ctx)
}
