package server

import (
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"os"
	"sync"
	"time"

	"github.com/escache/escache-csi/internal/escached"
)

// certificates reads its files again when they change, so that a renewed certificate or authority needs no restart.
type certificates struct {
	files escached.TLSFiles

	mu      sync.Mutex
	stamp   [3]fileStamp
	current *tls.Config
}

type fileStamp struct {
	modified time.Time
	size     int64
}

// newCertificates fails if the files cannot be used now.
func newCertificates(files escached.TLSFiles) (*certificates, error) {
	c := &certificates{files: files}
	_, err := c.config()
	return c, err
}

// server is the TLS configuration to listen with.
func (c *certificates) server() *tls.Config {
	return &tls.Config{
		MinVersion: tls.VersionTLS13,
		GetConfigForClient: func(*tls.ClientHelloInfo) (*tls.Config, error) {
			return c.config()
		},
	}
}

// config returns the configuration of the files as they are. While new ones cannot be used the old ones stay: files of one
// renewal do not change in the same moment.
func (c *certificates) config() (*tls.Config, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	stamp, err := c.stamps()
	if err == nil && c.current != nil && stamp == c.stamp {
		return c.current, nil
	}
	next, loadErr := c.load()
	switch {
	case err == nil && loadErr == nil:
		c.current, c.stamp = next, stamp
	case c.current == nil:
		return nil, errors.Join(err, loadErr)
	}
	return c.current, nil
}

func (c *certificates) stamps() (out [3]fileStamp, err error) {
	for i, path := range []string{c.files.Cert, c.files.Key, c.files.ClientCA} {
		info, err := os.Stat(path)
		if err != nil {
			return out, fmt.Errorf("tls: %w", err)
		}
		out[i] = fileStamp{info.ModTime(), info.Size()}
	}
	return out, nil
}

func (c *certificates) load() (*tls.Config, error) {
	cert, err := tls.LoadX509KeyPair(c.files.Cert, c.files.Key)
	if err != nil {
		return nil, fmt.Errorf("tls: %w", err)
	}
	pem, err := os.ReadFile(c.files.ClientCA)
	if err != nil {
		return nil, fmt.Errorf("tls.clientCA: %w", err)
	}
	pool := x509.NewCertPool()
	if !pool.AppendCertsFromPEM(pem) {
		return nil, fmt.Errorf("tls.clientCA: %s holds no certificate", c.files.ClientCA)
	}
	return &tls.Config{
		MinVersion: tls.VersionTLS13, Certificates: []tls.Certificate{cert}, ClientCAs: pool, ClientAuth: tls.RequireAndVerifyClientCert,
		NextProtos: []string{"h2", "http/1.1"},
	}, nil
}
