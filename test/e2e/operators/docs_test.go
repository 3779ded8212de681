//go:build e2e

package operators

import (
	"os"
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

// elsewhere are the commands that this test cannot run, and why.
var elsewhere = map[string]string{
	"helm": "there is no release here; test/chart's tests install, upgrade and uninstall the chart",
}

// runDocs runs every command of every page, as it stands there.
func (w *world) runDocs(t *testing.T) {
	docs := filepath.Join(checkout, "docs")
	all, err := filepath.Glob(filepath.Join(docs, "*.md"))
	must(t, err)
	deeper, err := filepath.Glob(filepath.Join(docs, "*", "*.md"))
	must(t, err)
	known := map[string]bool{"README": true}
	for _, name := range pages {
		known[name] = true
		t.Run(name, func(t *testing.T) {
			if name == "hosts/host-died" {
				w.leave(t, "data-app-1", "n2")
			}
			for _, command := range commandsOf(t, filepath.Join(docs, name+".md")) {
				w.runDoc(t, command)
			}
		})
	}
	for _, path := range append(all, deeper...) {
		name, err := filepath.Rel(docs, strings.TrimSuffix(path, ".md"))
		must(t, err)
		if !known[name] && len(commandsOf(t, path)) > 0 {
			t.Errorf("the commands of %s are not run by anything", path)
		}
	}
}

// commandsOf are the lines of a page's blocks that are marked as sh.
func commandsOf(t *testing.T, path string) []string {
	t.Helper()
	text, err := os.ReadFile(path)
	must(t, err)
	var commands []string
	inside := false
	for line := range strings.SplitSeq(string(text), "\n") {
		switch {
		case strings.HasPrefix(line, "```"):
			inside = line == "```sh"
		case inside && line != "":
			commands = append(commands, line)
		}
	}
	return commands
}

func (w *world) runDoc(t *testing.T, command string) {
	t.Helper()
	words := wordsOf(t, command)
	if why, ok := elsewhere[words[0]]; ok {
		t.Logf("not run: %s (%s)", command, why)
		return
	}
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
