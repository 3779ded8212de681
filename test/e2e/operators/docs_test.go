//go:build e2e

package operators

import (
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

// pages in the order in which one world can go through them; the last one ends it.
var pages = []string{
	"see-the-state", "troubleshooting", "plan-a-migration", "hosts/rolling-reboot", "hosts/host-died", "hosts/disk-replaced", "hosts/host-reinstalled",
	"ceph-maintenance", "cache-disk-full", "upgrade", "hosts/group-added", "hosts/replace-a-host", "hosts/group-removed", "uninstall",
}

// outOfReach are the commands of these pages that this test cannot run, by how they begin, and why.
var outOfReach = map[string]string{
	"helm ": "there is no release here; test/chart's tests install, upgrade and uninstall the chart",
}

// elsewhere are the pages whose commands are not run here, and why.
var elsewhere = map[string]string{}

// runDocs runs every command of every page, as it stands there.
func (w *world) runDocs(t *testing.T) {
	docs := filepath.Join(checkout, "docs")
	for _, name := range pages {
		t.Run(name, func(t *testing.T) {
			if name == "hosts/host-died" {
				w.leave(t, "data-app-1", "n2")
			}
			for _, command := range commandsOf(t, filepath.Join(docs, name+".md")) {
				w.runDoc(t, command)
			}
		})
	}
}

func (w *world) runDoc(t *testing.T, command string) {
	t.Helper()
	if why := notRun(command); why != "" {
		t.Logf("not run: %s (%s)", command, why)
		return
	}
	words := wordsOf(t, command)
	if words[0] != "kubectl" {
		t.Fatalf("nobody knows how to run %q", command)
	}
	t.Log(command)
	if words[1] == "escache" {
		for i, word := range words { // what a page writes goes into the test's own directory
			if strings.HasPrefix(word, "/tmp/") {
				words[i] = filepath.Join(t.TempDir(), filepath.Base(word))
			}
		}
		w.beat(t, "n4") // no kubelet says that it lives
		w.escache(t, 0, words[2:]...)
		return
	}
	for i, word := range words {
		if strings.HasPrefix(word, "charts/") {
			words[i] = filepath.Join(checkout, word)
		}
	}
	w.kubectl(t, words[1:]...)
}

// wordsOf splits a command as a shell does.
func wordsOf(t *testing.T, command string) []string {
	t.Helper()
	out, err := exec.CommandContext(t.Context(), "sh", "-c", `for word in `+command+`; do printf '%s\n' "$word"; done`).Output()
	must(t, err)
	return strings.Split(strings.TrimSuffix(string(out), "\n"), "\n")
}
