package escached

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

func TestConfigSaysEverythingThatIsWrong(t *testing.T) {
	const good = "node: n1\naddress: 10.0.0.1\n"
	for name, c := range map[string]struct{ text, want string }{
		"good":           {good, ""},
		"unknown key":    {good + "colour: red\n", "colour"},
		"no node":        {"address: 10.0.0.1\n", "node:"},
		"bad address":    {"node: n1\naddress: n1.example\n", "address:"},
		"TCP needs TLS":  {good + "listen: 0.0.0.0:7443\n", "tls:"},
		"TCP for nobody": {good + "listen: 0.0.0.0:7443\ntls: {cert: /c, key: /k, clientCA: /a, clients: []}\n", "tls.clients:"},
		"TCP":            {good + "listen: 0.0.0.0:7443\ntls: {cert: /c, key: /k, clientCA: /a}\n", ""},
		"bad arbiter":    {good + "arbiter: arbiter.sock\n", "arbiter:"},
		"unix arbiter":   {good + "arbiter: unix:///run/x.sock\n", ""},
		"ports reversed": {good + "drbd: {ports: {first: 9, last: 8}}\n", "drbd.ports:"},
		"rate":           {good + "drbd: {resyncRate: fast}\n", "drbd.resyncRate:"},
		"two at once":    {"node: \"-\"\naddress: x\n", "address:"},
		"relative path":  {good + "runDir: run\n", "runDir:"},
		"lock":           {good + "shutdownLock: /run/lock\n", ""},
		"relative lock":  {good + "shutdownLock: lock\n", "shutdownLock:"},
		"collector":      {good + "otlpEndpoint: otel:4317\n", ""},
		"collector URL":  {good + "otlpEndpoint: http://otel:4317\n", "otlpEndpoint:"},
		"wipe nothing":   {good + "wipe: none\n", ""},
		"wipe all":       {good + "wipe: full\n", ""},
		"wipe some":      {good + "wipe: some\n", "wipe:"},
		"quote in user":  {good + "ceph: {user: \"a,b\"}\n", "ceph.user:"},
	} {
		path := filepath.Join(t.TempDir(), "c.yaml")
		if err := os.WriteFile(path, []byte(c.text), 0o600); err != nil {
			t.Fatal(err)
		}
		cfg, err := LoadConfig(path)
		if err == nil {
			err = cfg.Validate()
		}
		switch {
		case c.want == "" && err != nil:
			t.Errorf("%s: %v", name, err)
		case c.want != "" && (err == nil || !strings.Contains(err.Error(), c.want)):
			t.Errorf("%s: got %v, want %q", name, err, c.want)
		}
	}
}

func TestNamesHaveALimit(t *testing.T) {
	for length, want := range map[int]bool{0: false, 1: true, maxName: true, maxName + 1: false} {
		name := strings.Repeat("a", length)
		if IsNodeName(name) != want {
			t.Errorf("a host's name of %d characters is valid: %v", length, !want)
		}
		cfg := DefaultConfig()
		cfg.VolumeGroup = name
		if got := !strings.Contains(cfg.Validate().Error(), "volumeGroup:"); got != want {
			t.Errorf("a volume group's name of %d characters is valid: %v", length, got)
		}
	}
}
