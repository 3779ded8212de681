package server

import (
	"net/http"
	"slices"
	"strconv"
	"strings"

	"github.com/escache/escache-csi/api/escache"
	"github.com/escache/escache-csi/internal/escached/problem"
)

// clients are the names of those who may call over TLS. That an authority has signed a certificate
// says nothing of what its owner may do here: a site's own authority signs everybody's.
type clients []string

// check returns an error unless the request comes from one of the clients, or over the unix socket,
// of which the file's mode says who may use it.
func (c clients) check(r *http.Request) error {
	if r.TLS == nil {
		return nil
	}
	var names []string
	if len(r.TLS.PeerCertificates) > 0 {
		leaf := r.TLS.PeerCertificates[0]
		names = append(slices.Clone(leaf.DNSNames), leaf.Subject.CommonName)
	}
	for _, name := range names {
		if name != "" && slices.Contains(c, name) {
			return nil
		}
	}
	return problem.New(escache.CodeForbidden,
		"the client's certificate is for %s, and only %s may call; use csi-controller's certificate, or change tls.clients of escached",
		quoted(names), quoted(c))
}

// quoted lists names as they are in a message. They come from outside, so they are escaped.
func quoted(names []string) string {
	var out []string
	for _, name := range names {
		if name != "" {
			out = append(out, strconv.QuoteToASCII(name))
		}
	}
	if len(out) == 0 {
		return "nobody"
	}
	return strings.Join(out, " or ")
}
