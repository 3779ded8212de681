package escacheclient

import (
	"context"
	"crypto/tls"
	"errors"
	"net"
	"time"

	"github.com/escache/escache-csi/internal/tlsfiles"
)

// FormerName is a name that the service may show instead of TLS.ServerName for a while: that of the
// certificate that served all hosts, before each got its own. The zero value allows none.
type FormerName struct {
	Name string
	// CA is a PEM file of the authority that signed the former certificate.
	CA string
	// Until is when the name is accepted no more.
	Until time.Time
}

func (f FormerName) accepted() bool { return f.Name != "" && time.Now().Before(f.Until) }

// prepareFormer reads the files of a former name.
func (c *Client) prepareFormer() {
	if f := c.opts.Former; f.accepted() {
		c.former = tlsfiles.Later(tlsfiles.Files{CA: f.CA, Cert: c.opts.TLS.Cert, Key: c.opts.TLS.Key})
	}
}

// dialFormer opens a connection to a service whose certificate was not accepted, if it shows the
// former name and that is accepted yet.
func (c *Client) dialFormer(ctx context.Context, network, address string, refusal error) (net.Conn, error) {
	if _, verified := errors.AsType[*tls.CertificateVerificationError](refusal); !verified || c.former == nil || !c.opts.Former.accepted() {
		return nil, refusal
	}
	if _, err := c.former.Refresh(); err != nil {
		return nil, refusal
	}
	conn, err := c.dialWith(ctx, network, address, c.former, c.opts.Former.Name)
	if err != nil {
		return nil, refusal // what is wrong with the right name says more
	}
	c.formerUsed.Store(true)
	return conn, nil
}

// endFormer closes connections that were made with the former name when that is accepted no more.
// Without that they would live on as long as they are used.
func (c *Client) endFormer() {
	if c.formerUsed.Load() && !c.opts.Former.accepted() {
		c.formerUsed.Store(false)
		c.idle.CloseIdleConnections()
	}
}
