package preflight

import (
	"context"
	"crypto/x509"
	"fmt"
	"net"
	"slices"
	"strings"

	"github.com/escache/escache-csi/internal/checklist"
	"github.com/escache/escache-csi/internal/hostcert"
	"github.com/escache/escache-csi/internal/tlsfiles"
)

const (
	ownCertificate = "certificate"
	clientsCA      = "authority of clients"
)

// certificates checks this host's own certificate and the authority of those who call. The first is signed
// by an authority that only csi-controller knows, so nothing says whom it must be of.
func (h *Host) certificates(context.Context) []checklist.Result {
	if h.Config.Listen == "" && h.Config.TLS.Cert == "" {
		none := checklist.Badf(checklist.Unknown, "set tls in the configuration; with the chart csi-node brings the certificate",
			"not checked: no configuration names it")
		return []checklist.Result{none.Of(ownCertificate)}
	}
	files := tlsfiles.Files{CA: h.Config.TLS.ClientCA, Cert: h.Config.TLS.Cert, Key: h.Config.TLS.Key}
	return []checklist.Result{h.own(files).Of(ownCertificate), h.clients(files).Of(clientsCA)}
}

const renew = "with the chart's tls.mode generated or certManager: see why csi-node does not renew it " +
	"(kubectl logs); otherwise put a new one in its place (docs/security.md)"

func (h *Host) own(files tlsfiles.Files) checklist.Result {
	own, err := files.Own()
	if err != nil {
		return checklist.Badf(checklist.Failed, "put certificate and key there (docs/security.md); with the chart csi-node does it",
			"%v", err)
	}
	names := strings.Join(namesOf(own.Leaf), ", ")
	switch {
	case !forServers(own.Leaf):
		return checklist.Badf(checklist.Failed, "issue one with the extended key usage serverAuth", "%s: it is not for servers", files.Cert)
	case h.ServerName != "":
		if name := hostcert.Name(h.ServerName, h.Config.Node); own.Leaf.VerifyHostname(name) != nil {
			return checklist.Badf(checklist.Failed, "issue one with the name that csi-controller expects (tls.serverName in the chart)",
				"%s: it is for %s, and not for %s", files.Cert, names, name)
		}
	case !h.namesThisHost(own.Leaf):
		return checklist.Badf(checklist.Warning, "name what csi-controller expects with --server-name (tls.serverName in the chart)",
			"%s: it is for %s, and no name begins with %s", files.Cert, names, h.Config.Node)
	}
	return checklist.Certificate(own.Leaf, names, renew, h.System.Now())
}

func (h *Host) clients(files tlsfiles.Files) checklist.Result {
	all, err := files.Authorities()
	if err != nil {
		return checklist.Badf(checklist.Failed, "put the authority of csi-controller's certificate there (docs/security.md); with the "+
			"chart it is inside escached's pod", "%v", err)
	}
	var results []checklist.Result
	for _, authority := range all {
		remedy := "put the authority's present certificate into " + files.CA
		results = append(results, checklist.Certificate(authority, authority.Subject.CommonName, remedy, h.System.Now()))
	}
	// One that is valid is enough: an older one may stay beside it for a while.
	if at := slices.IndexFunc(results, func(r checklist.Result) bool { return r.State == checklist.OK }); at >= 0 {
		return results[at]
	}
	return results[len(results)-1]
}

func namesOf(c *x509.Certificate) []string {
	names := slices.Clone(c.DNSNames)
	for _, ip := range c.IPAddresses {
		names = append(names, ip.String())
	}
	if len(names) == 0 {
		return []string{fmt.Sprintf("nothing (subject %s)", c.Subject)}
	}
	return names
}

func forServers(c *x509.Certificate) bool {
	if len(c.ExtKeyUsage)+len(c.UnknownExtKeyUsage) == 0 {
		return true // without the extension it is for everything: RFC 5280, section 4.2.1.12
	}
	return slices.Contains(c.ExtKeyUsage, x509.ExtKeyUsageServerAuth) || slices.Contains(c.ExtKeyUsage, x509.ExtKeyUsageAny)
}

// namesThisHost reports whether a certificate has a name that is this host's, as the chart makes them, or one
// of its addresses.
func (h *Host) namesThisHost(c *x509.Certificate) bool {
	for _, name := range c.DNSNames {
		if strings.EqualFold(name, h.Config.Node) || strings.HasPrefix(strings.ToLower(name), strings.ToLower(h.Config.Node)+".") {
			return true
		}
	}
	addresses, _ := h.System.Addresses()
	return slices.ContainsFunc(c.IPAddresses, func(ip net.IP) bool { return among(addresses, ip) })
}
