package rbd

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

func TestSettings(t *testing.T) {
	const conf, ring = "[global]\n", "[client.a]\n\tkey = AQ==\n\tcaps mon = \"profile rbd\"\n"
	for name, c := range map[string]struct {
		files  map[string]string // nil: no directory
		id     string
		want   error
		reason string
		user   string
	}{
		"good":          {files: map[string]string{confFile: conf, keyringFile: ring}, user: "client.a"},
		"first client":  {files: map[string]string{confFile: conf, keyringFile: "[mon.]\nkey = AA==\n" + ring + "[client.b]\nkey=BB==\n"}, user: "client.a"},
		"no directory":  {want: ErrClusterNotFound, reason: "make the directory"},
		"no conf":       {files: map[string]string{keyringFile: ring}, want: ErrConfig, reason: "ceph.conf: no such file"},
		"no keyring":    {files: map[string]string{confFile: conf}, want: ErrConfig, reason: "keyring: no such file"},
		"no client":     {files: map[string]string{confFile: conf, keyringFile: "key = AQ==\n"}, want: ErrConfig, reason: "no [client.NAME] section"},
		"no key":        {files: map[string]string{confFile: conf, keyringFile: "[client.a]\n"}, want: ErrConfig, reason: "section of client.a has no key"},
		"way out":       {id: "..", want: ErrClusterNotFound},
		"other folders": {id: "a/../../b", want: ErrClusterNotFound},
		"no ID":         {id: " ", want: ErrClusterNotFound},
	} {
		t.Run(strings.ReplaceAll(name, " ", "-"), func(t *testing.T) {
			dir := t.TempDir()
			if c.files != nil {
				must(t, os.Mkdir(filepath.Join(dir, testCluster), 0o700))
			}
			for file, text := range c.files {
				writeFile(t, filepath.Join(dir, testCluster, file), text)
			}
			if c.id == "" {
				c.id = testCluster
			}
			s, err := readSettings(dir, c.id)
			switch {
			case c.want == nil && (err != nil || s.user != c.user || s.key != "AQ=="):
				t.Errorf("got user %q, %v", s.user, err)
			case c.want != nil && (!errors.Is(err, c.want) || !strings.Contains(err.Error(), c.reason)):
				t.Errorf("got %v", err)
			case err != nil && strings.Contains(err.Error(), "AQ=="):
				t.Errorf("the error tells the key: %v", err)
			}
		})
	}
}
