package release

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// installPage runs the commands with which docs/install.md verifies and unpacks a release, as they
// stand there but for the version and the directory of programs.
func installPage(t *testing.T, m made) {
	page, err := os.ReadFile(checkout + "/docs/install.md")
	check(t, err)
	_, section, _ := strings.Cut(string(page), "\n## Get a release\n")
	section, _, _ = strings.Cut(section, "\n## ")
	bin := t.TempDir()
	say := strings.NewReplacer("0.1.0", number, "/usr/local/bin", bin)
	dir := t.TempDir()
	mustRun(t, nil, "cp", "-r", m.dir+"/.", dir)
	check(t, os.WriteFile(filepath.Join(dir, "release.pub"), m.read(t, "checksums.txt.pub"), 0o600))
	ran := 0
	for line := range strings.Lines(section) {
		command, ok := strings.CutPrefix(strings.TrimSuffix(line, "\n"), "    ")
		// Neither cosign nor kubectl is on this machine; tests of their own do what these commands do.
		if !ok || strings.HasPrefix(command, "cosign ") || strings.HasPrefix(command, "kubectl ") {
			continue
		}
		ran++
		command = say.Replace(command)
		if out, err := run(t, nil, "bash", "-ec", "cd '"+dir+"'; "+command); err != nil {
			t.Errorf("%s: %v\n%s", command, err, out)
		}
	}
	if ran < 4 {
		t.Errorf("the section has only %d commands", ran)
	}
	for _, path := range []string{dir + "/charts/escache-csi/Chart.yaml", bin + "/kubectl-escache", bin + "/kubectl_complete-escache"} {
		if _, err := os.Stat(path); err != nil {
			t.Errorf("after the commands of docs/install.md: %v", err)
		}
	}
	// A file that was changed is found.
	check(t, os.WriteFile(filepath.Join(dir, "images.txt"), []byte("other\n"), 0o600))
	if out, err := run(t, nil, "bash", "-ec", "cd '"+dir+"'; sha256sum --check checksums.txt"); err == nil {
		t.Errorf("a changed file is not found:\n%s", out)
	}
}
