package drbd

import (
	"context"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/escache/escache-csi/internal/command"
)

// What drbdadm of Debian 12 prints on a host without the module.
const drbdadmVersion = `DRBDADM_BUILDTAG=GIT-hash:\ 409097fe02187f83790b88ac3e0d94f3c167adab\ reproducible\ build\,\ 2023-01-09\ 14:51:18
DRBDADM_API_VERSION=2
DRBD_KERNEL_VERSION_CODE=0x000000
DRBD_KERNEL_VERSION=0
DRBDADM_VERSION_CODE=0x091600
DRBDADM_VERSION=9.22.0
`

func TestVersionIsThatOfTheTools(t *testing.T) {
	out := drbdadmVersion
	c := NewControl(command.RunnerFunc(func(context.Context, command.Command) (command.Result, error) {
		return command.Result{Stdout: []byte(out)}, nil
	}), Files{})
	if got, err := c.Version(t.Context()); got != "9.22.0" || err != nil {
		t.Errorf("%q, %v", got, err)
	}
	out = "DRBD_KERNEL_VERSION=8.4.11\n"
	if got, err := c.Version(t.Context()); err == nil {
		t.Errorf("there is none, and it is %q", got)
	}
}

// packaged is /etc/drbd.conf of Debian 12.
const packaged = `# You can find an example in  /usr/share/doc/drbd.../drbd.conf.example

include "drbd.d/global_common.conf";
include "drbd.d/*.res";
`

func TestIncludedFollowsTheConfiguration(t *testing.T) {
	for name, c := range map[string]struct {
		files map[string]string
		want  bool
	}{
		"as packaged":            {map[string]string{"drbd.conf": packaged}, true},
		"absolute, not quoted":   {map[string]string{"drbd.conf": "include @/drbd.d/*;\n"}, true},
		"by way of another file": {map[string]string{"drbd.conf": "include \"more.conf\";\n", "more.conf": "global { }\ninclude \"drbd.d/*.res\";\n"}, true},
		"commented out":          {map[string]string{"drbd.conf": "include \"drbd.d/global_common.conf\";\n# include \"drbd.d/*.res\";\n"}, false},
		"another directory":      {map[string]string{"drbd.conf": "include \"resources/*.res\";\n"}, false},
		"one resource only":      {map[string]string{"drbd.conf": "include \"drbd.d/mine.res\";\n"}, false},
		"a file that has itself": {map[string]string{"drbd.conf": "include \"drbd.conf\";\n"}, false},
	} {
		dir := t.TempDir()
		for file, text := range c.files {
			text = strings.ReplaceAll(text, "@", dir)
			if err := os.WriteFile(filepath.Join(dir, file), []byte(text), 0o600); err != nil {
				t.Fatal(err)
			}
		}
		got, err := Files{Dir: filepath.Join(dir, "drbd.d")}.Included(filepath.Join(dir, "drbd.conf"))
		if got != c.want || err != nil {
			t.Errorf("%s: %v, %v", name, got, err)
		}
	}
	if _, err := (Files{Dir: "/etc/drbd.d"}).Included(filepath.Join(t.TempDir(), "none")); err == nil {
		t.Error("a file that is missing includes nothing, and that is not said")
	}
}
