package authority

import (
	"net"
	"strings"
	"testing"
)

// FuzzHostOf takes any address of a Ceph client. An address has the same host in every form in which
// Ceph, krbd and Kubernetes write it, and the host of a host is itself.
func FuzzHostOf(f *testing.F) {
	for _, address := range []string{"10.0.0.1:0/3137012424", "[fd00::1]:0/1", "fd00::1", "10.0.0.1", "[fd00::1", "::ffff:10.0.0.1", ":/", ""} {
		f.Add(address)
	}
	f.Fuzz(func(t *testing.T, address string) {
		host := hostOf(address)
		if !strings.Contains(address, host) {
			t.Errorf("%q has the host %q", address, host)
		}
		if net.ParseIP(address) == nil {
			return
		}
		for _, form := range []string{address, net.JoinHostPort(address, "0"), net.JoinHostPort(address, "6800") + "/3137012424", address + "/7"} {
			if got := hostOf(form); got != address {
				t.Errorf("%q has the host %q, not %q", form, got, address)
			}
			if ClientOf("n1", form, address) != "n1" {
				t.Errorf("%q is not known as a client of %q", form, address)
			}
		}
	})
}
