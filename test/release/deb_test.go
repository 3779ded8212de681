package release

import (
	"crypto/sha256"
	"encoding/hex"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/escache/escache-csi/internal/escached"
)

func sumOf(data []byte) string {
	s := sha256.Sum256(data)
	return hex.EncodeToString(s[:])
}

// debs has dpkg's own tools read the packages.
func debs(t *testing.T, m made) {
	for _, arch := range []string{"amd64", "arm64"} {
		file := m.path("escached_" + number + "_" + arch + ".deb")
		for field, want := range map[string]string{
			"Package": "escached", "Version": debian, "Architecture": arch, "Section": "admin",
			"Depends": "dmsetup, drbd-utils, kmod, lvm2, mount, util-linux",
		} {
			if got := strings.TrimSpace(mustRun(t, nil, "dpkg-deb", "--field", file, field)); got != want {
				t.Errorf("%s: %s is %q, not %q", arch, field, got, want)
			}
		}
		packageFiles(t, m, file, arch)
		controlScripts(t, file)
	}
}

func packageFiles(t *testing.T, m made, file, arch string) {
	t.Helper()
	list := mustRun(t, nil, "dpkg-deb", "--contents", file)
	for path, mode := range map[string]string{
		"./usr/sbin/escached":                              "-rwxr-xr-x root/root",
		"./usr/sbin/escache-cache":                         "-rwxr-xr-x root/root",
		"./usr/lib/systemd/system/escached.service":        "-rw-r--r-- root/root",
		"./usr/share/doc/escached/examples/escached.yaml":  "-rw-r--r-- root/root",
		"./usr/share/doc/escached/copyright":               "-rw-r--r-- root/root",
		"./usr/share/escache/escached.cdx.json":            "-rw-r--r-- root/root",
		"./usr/share/escache/escache-cache.cdx.json":       "-rw-r--r-- root/root",
		"./usr/share/bash-completion/completions/escached": "-rw-r--r-- root/root",
		"./etc/escache/":                                   "drwxr-xr-x root/root",
	} {
		found := false
		for line := range strings.Lines(list) {
			found = found || strings.HasPrefix(line, mode) && strings.HasSuffix(strings.TrimSpace(line), " "+path)
		}
		if !found {
			t.Errorf("%s: no %s %s in\n%s", arch, mode, path, list)
		}
	}
	root := t.TempDir()
	mustRun(t, nil, "dpkg-deb", "--extract", file, root)
	archived := untar(t, m.path(asset("escached", "linux/"+arch, "tar.gz")))
	for _, name := range []string{"escached", "escache-cache"} {
		if sum(t, root+"/usr/sbin/"+name) != sumOf(archived[name]) {
			t.Errorf("%s: %s is not that of the archive", arch, name)
		}
	}
	cfg, err := escached.LoadConfig(root + "/usr/share/doc/escached/examples/escached.yaml")
	check(t, err)
	check(t, cfg.Validate())
	unit, err := os.ReadFile(root + "/usr/lib/systemd/system/escached.service")
	check(t, err)
	// What the unit and the example say must be what is in the package.
	for _, want := range []string{
		"\nExecStart=/usr/sbin/escached --config=" + escached.DefaultConfigPath + "\n", "\nRuntimeDirectory=" + filepath.Base(cfg.RunDir) + "\n",
		"\nStateDirectory=" + filepath.Base(cfg.StateDir) + "\n", "\nRuntimeDirectoryPreserve=yes\n", "\nWantedBy=multi-user.target\n",
		"\nStartLimitIntervalSec=0\n\n[Service]\n", // systemd reads it in [Unit] only
	} {
		if !strings.Contains(string(unit), want) {
			t.Errorf("the unit has no %q:\n%s", want, unit)
		}
	}
}

// controlScripts runs the scripts as dpkg does where no systemd runs.
func controlScripts(t *testing.T, file string) {
	t.Helper()
	control := t.TempDir()
	mustRun(t, nil, "dpkg-deb", "--control", file, control)
	for script, args := range map[string][]string{"postinst": {"configure", ""}, "prerm": {"upgrade", "2"}, "postrm": {"remove"}} {
		if _, err := os.Stat(filepath.Join(control, script)); err != nil {
			t.Errorf("no %s: %v", script, err)
			continue
		}
		if script != "postinst" { // that of this machine's systemd is left alone
			continue
		}
		text, err := os.ReadFile(filepath.Join(control, script))
		check(t, err)
		text = []byte(strings.ReplaceAll(string(text), "/run/systemd/system", control+"/no-systemd"))
		out := mustRun(t, nil, unpack(t, text, script), args...)
		if !strings.Contains(out, "escached.yaml") && !strings.Contains(out, "systemctl enable") {
			t.Errorf("%s says %q", script, out)
		}
	}
	removal(t, filepath.Join(control, "prerm"))
}

// removal is refused while volumes are attached: DRBD calls the program when a peer is lost.
func removal(t *testing.T, script string) {
	t.Helper()
	text, err := os.ReadFile(script)
	check(t, err)
	host := t.TempDir()
	moved := strings.NewReplacer("/dev/escache", host+"/dev/escache", "/run/systemd/system", host+"/no-systemd").Replace(string(text))
	path := unpack(t, []byte(moved), "prerm")
	mustRun(t, nil, path, "remove")
	check(t, os.MkdirAll(host+"/dev/escache/fast", 0o755))
	mustRun(t, nil, path, "remove")
	check(t, os.Symlink("/dev/null", host+"/dev/escache/fast/image"))
	mustRun(t, nil, path, "upgrade", "2")
	if out, err := run(t, nil, path, "remove"); err == nil || !strings.Contains(out, "kubectl escache evacuate") {
		t.Errorf("removed while a volume is attached: %v, %q", err, out)
	}
}
