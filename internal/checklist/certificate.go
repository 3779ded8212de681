package checklist

import (
	"crypto/x509"
	"time"
)

// CertificateEndsSoon is how long before its end a certificate is worth a warning. csi-node and cert-manager
// have renewed theirs by then. The chart's alert comes a week later.
const CertificateEndsSoon = 14 * 24 * time.Hour

// Certificate judges the dates of a certificate that is for a name. remedy says how to get a new one.
func Certificate(c *x509.Certificate, name, remedy string, now time.Time) Result {
	text := func(t time.Time) string { return t.UTC().Format("2006-01-02 15:04") + " UTC" }
	switch {
	case now.Before(c.NotBefore):
		return Badf(Failed, "compare the clocks; if they are right, issue the certificate again",
			"the certificate of %s is not valid before %s", name, text(c.NotBefore))
	case now.After(c.NotAfter):
		return Badf(Failed, remedy, "the certificate of %s ended %s", name, text(c.NotAfter))
	case c.NotAfter.Sub(now) < CertificateEndsSoon:
		return Badf(Warning, remedy, "the certificate of %s ends %s", name, text(c.NotAfter))
	}
	return Goodf("the certificate of %s ends %s", name, text(c.NotAfter))
}
