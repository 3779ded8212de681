package clientaddress

import "testing"

func TestAClientIsTheSameInEverySpelling(t *testing.T) {
	for _, tc := range []struct {
		a, b string
		same bool
	}{
		{"10.0.0.1:0/1", "10.0.0.1:0/1", true},
		{"10.0.0.1:0/1", "10.0.0.1:0/2", false},
		{"10.0.0.1:0/1", "10.0.0.1:6800/1", false},
		{"[2001:db8::7]:0/4711", "[2001:DB8:0:0::7]:0/4711", true},
		{"[2001:db8::7]:0/4711", "[2001:db8::8]:0/4711", false},
		{"[2001:db8::7]:0/4711", "[2001:db8::7]:0/471", false},
		{"[fd00::5efe:a00:1]:0/1", "[fd00::5efe:10.0.0.1]:0/1", true}, // as Ceph, as the kernel
		{"[fd00::1]:0/1", "[fd00:0::1]:0", false},
		{"[fd00::1]:0", "[fd00:0::1]:0", false}, // no client
		{"", "[fd00::1]:0/1", false},
		{"", "", true},
	} {
		if Same(tc.a, tc.b) != tc.same || Same(tc.b, tc.a) != tc.same {
			t.Errorf("%q and %q: the same is %v", tc.a, tc.b, !tc.same)
		}
	}
}

func TestAHostIsTheSameInEverySpelling(t *testing.T) {
	for _, tc := range []struct {
		a, b string
		same bool
	}{
		{"10.0.0.1", "10.0.0.1", true},
		{"10.0.0.1", "10.0.0.11", false},
		{"fd00::1", "FD00:0::1", true},
		{"fd00::1", "fd00::2", false},
		{"fd00::5efe:a00:1", "fd00::5efe:10.0.0.1", true},
		{"", "fd00::1", false},
		{"no address", "another one", false},
	} {
		if SameHost(tc.a, tc.b) != tc.same || SameHost(tc.b, tc.a) != tc.same {
			t.Errorf("%q and %q: the same is %v", tc.a, tc.b, !tc.same)
		}
	}
}
