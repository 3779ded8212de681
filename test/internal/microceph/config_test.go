package microceph

import (
	"encoding/base64"
	"strings"
	"testing"
	"time"
)

func TestConfigWithoutAPlaceIsRefused(t *testing.T) {
	for name, cfg := range map[string]Config{
		"no directory": {Address: "127.0.0.1"},
		"no address":   {Dir: "x"},
		"host name":    {Dir: "x", Address: "localhost"},
	} {
		if _, err := cfg.withDefaults(); err == nil {
			t.Errorf("%s: accepted", name)
		}
	}
}

func TestMonitorPortsAreChosenOnlyWhereOthersMayBeInUse(t *testing.T) {
	for name, test := range map[string]struct {
		cfg  Config
		want monitorAddress // zero: any two neighbours
	}{
		"a namespace of its own": {Config{Address: "10.77.0.1"}, monitorAddress{6789, 6790}},
		"asked for":              {Config{Address: "127.0.0.1", Port: 17000}, monitorAddress{17000, 17001}},
		"loopback":               {Config{Address: "127.0.0.1"}, monitorAddress{}},
	} {
		got, err := chooseMonitorPorts(t.Context(), test.cfg)
		if err != nil || got.v2 != got.v1+1 || test.want.v1 != 0 && got != test.want {
			t.Errorf("%s: %v, %v", name, got, err)
		}
	}
}

func TestKeysAreCephsAndDiffer(t *testing.T) {
	now := time.Unix(1_700_000_000, 5)
	a, b := newKey(now), newKey(now)
	if a == b {
		t.Error("the same key twice")
	}
	raw, err := base64.StdEncoding.DecodeString(a)
	// Type 1, seconds, nanoseconds, length 16, all little endian, and the secret.
	want := "\x01\x00\x00\xf1\x53\x65\x05\x00\x00\x00\x10\x00"
	if err != nil || len(raw) != 28 || string(raw[:12]) != want {
		t.Errorf("key %x, %v", raw, err)
	}
}

func TestClientsFindTheKeyringOfTheirUser(t *testing.T) {
	cfg, err := Config{Dir: "/lab/ceph", Address: "10.77.0.1"}.withDefaults()
	if err != nil {
		t.Fatal(err)
	}
	c := &Cluster{cfg: cfg, fsid: "f", mon: monitorAddress{6789, 6790}}
	conf := c.conf()
	for _, line := range []string{
		"keyring = /lab/ceph/$name.keyring\n", "mon_host = [v2:10.77.0.1:6790,v1:10.77.0.1:6789]\n", "auth_client_required = cephx\n",
	} {
		if !strings.Contains(conf, line) {
			t.Errorf("%q is missing in\n%s", line, conf)
		}
	}
	if c.keyring("client.escache") != "/lab/ceph/client.escache.keyring" {
		t.Errorf("keyring at %s", c.keyring("client.escache"))
	}
}
