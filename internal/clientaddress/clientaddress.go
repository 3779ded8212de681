// Package clientaddress compares the addresses of Ceph clients. An IPv6 address has many spellings: Ceph and
// the kernel, which map images, do not always choose the same one.
package clientaddress

import (
	"net/netip"
	"slices"
	"strings"
)

// Canonical returns the address of a client, "IP:PORT/NONCE", in the one spelling that the same client has
// here. What is no such address stays as it is.
func Canonical(address string) string {
	if !strings.HasPrefix(address, "[") {
		return address // an IPv4 address has one spelling
	}
	host, nonce, found := strings.Cut(address, "/")
	if parsed, err := netip.ParseAddrPort(host); err == nil && found {
		return parsed.String() + "/" + nonce
	}
	return address
}

// Same reports whether both addresses are one client's.
func Same(a, b string) bool { return a == b || Canonical(a) == Canonical(b) }

// In reports whether one of the addresses is this client's.
func In(addresses []string, client string) bool {
	return slices.ContainsFunc(addresses, func(a string) bool { return Same(a, client) })
}

// SameHost reports whether both are IP addresses of one host, without port and brackets.
func SameHost(a, b string) bool {
	if a == b {
		return true
	}
	first, err := netip.ParseAddr(a)
	if err != nil {
		return false
	}
	other, err := netip.ParseAddr(b)
	return err == nil && first == other
}
