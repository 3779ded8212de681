package app

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

func TestCephUsersAreThoseOfTheMountedDirectories(t *testing.T) {
	controller, hosts := t.TempDir(), t.TempDir()
	for _, path := range []string{controller + "/lab/ceph.conf", controller + "/..2027/ceph.conf", hosts + "/lab/ceph.conf", hosts + "/other/ceph.conf"} {
		if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, []byte("[global]\n"), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	for _, c := range []struct{ controller, hosts, want string }{
		{controller, hosts, "lab lab,hosts other,hosts"},
		{controller, "", "lab"},
		{filepath.Join(controller, "not-there"), "", ""},
	} {
		users, done, err := cephUsers(c.controller, c.hosts)
		if err != nil {
			t.Fatal(err)
		}
		defer done()
		var got []string
		for _, u := range users {
			name := u.ClusterID
			if u.Hosts {
				name += ",hosts"
			}
			got = append(got, name)
			if _, err := u.Rights(t.Context(), []string{"fast"}); err == nil || !strings.Contains(err.Error(), "keyring: no such file") {
				t.Errorf("%s without a keyring: %v", name, err)
			}
		}
		if strings.Join(got, " ") != c.want {
			t.Errorf("%+v: %q", c, got)
		}
	}
}
