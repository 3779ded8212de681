//go:build e2e

package operators

import (
	"maps"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
)

// block is one block of code of a page.
type block struct {
	language string // "": it is indented, or its fence names none
	lines    []string
}

// program is how a line begins that is meant for a shell.
var program = regexp.MustCompile(`^(\$ )?(sudo )?(` + strings.Join([]string{
	"apt", "cat", "ceph", "cosign", "curl", "dmsetup", "drbdadm", "drbdsetup", "escached", "for", "fsck", "gpg", "grep", "helm", "install",
	"ip", "kubectl", "losetup", "ls", "lvchange", "lvcreate", "lvremove", "lvs", "make", "mkdir", "modprobe", "mount", "nvme", "openssl",
	"pvchange", "pvcreate", "rbd", "reboot", "rm", "scp", "sha256sum", "skopeo", "ssh", "systemctl", "tar", "umount", "velero", "vgcreate",
	"vgextend", "vgreduce", "vgremove", "vgs", "xfs_repair", "go",
}, "|") + `) [^:=]`)

// commands are the lines of a block for a shell, with continued ones as one. A block that is marked as text has none.
func (b block) commands() []string {
	if b.language == "text" {
		return nil
	}
	shell := slices.Contains([]string{"sh", "bash", "console"}, b.language)
	var out []string
	for line := range strings.Lines(strings.ReplaceAll(strings.Join(b.lines, "\n"), "\\\n", "")) {
		if line = strings.Join(strings.Fields(line), " "); line != "" && (shell || program.MatchString(line)) {
			out = append(out, line)
		}
	}
	return out
}

// blocksOf returns all blocks of a page, fenced and indented ones, also those in lists.
func blocksOf(t *testing.T, path string) []block {
	t.Helper()
	text, err := os.ReadFile(path)
	must(t, err)
	var all []block
	var fenced, indented bool
	before := ""
	for line := range strings.SplitSeq(string(text), "\n") {
		bare := strings.TrimSpace(line)
		switch {
		case strings.HasPrefix(bare, "```"):
			if fenced, indented = !fenced, false; fenced {
				all = append(all, block{language: strings.TrimPrefix(bare, "```")})
			}
		case fenced:
			all[len(all)-1].lines = append(all[len(all)-1].lines, line)
		case strings.HasPrefix(line, "    ") && bare != "" && (indented || before == ""):
			if !indented {
				all, indented = append(all, block{}), true
			}
			all[len(all)-1].lines = append(all[len(all)-1].lines, line)
		default:
			indented = false
		}
		before = bare
	}
	return all
}

// commandsOf are the lines of a page's blocks that are marked as sh.
func commandsOf(t *testing.T, path string) []string {
	t.Helper()
	var commands []string
	for _, b := range blocksOf(t, path) {
		if b.language == "sh" {
			commands = append(commands, b.commands()...)
		}
	}
	return commands
}

// notRun is why a command of a page that is run is left out, and "" if it is run.
func notRun(command string) string {
	for _, begins := range slices.Sorted(maps.Keys(outOfReach)) {
		if strings.HasPrefix(command, begins) {
			return outOfReach[begins]
		}
	}
	return ""
}

// TestEveryCommandIsRunOrLeftOutForAReason: a command that nothing runs is soon one that does not work.
func TestEveryCommandIsRunOrLeftOutForAReason(t *testing.T) {
	docs := filepath.Join(checkout, "docs")
	all, err := filepath.Glob(filepath.Join(docs, "*.md"))
	must(t, err)
	deeper, err := filepath.Glob(filepath.Join(docs, "*", "*.md"))
	must(t, err)
	leftOut, found := maps.Clone(outOfReach), map[string]bool{}
	for _, path := range append(append(all, deeper...), filepath.Join(checkout, "README.md")) {
		name, err := filepath.Rel(docs, strings.TrimSuffix(path, ".md"))
		must(t, err)
		for _, b := range blocksOf(t, path) {
			for _, command := range b.commands() {
				found[name] = true
				switch {
				case elsewhere[name] != "":
				case !slices.Contains(pages, name):
					t.Errorf("%s: nothing runs %q: put the page among those that are run, or say in elsewhere why not", path, command)
				case b.language != "sh":
					t.Errorf("%s: nothing runs %q: mark its block as sh", path, command)
				}
				maps.DeleteFunc(leftOut, func(begins, _ string) bool { return strings.HasPrefix(command, begins) })
			}
		}
	}
	for begins := range leftOut {
		t.Errorf("no page has the command %q that is left out", begins)
	}
	for _, name := range append(slices.Collect(maps.Keys(elsewhere)), pages...) {
		if !found[name] {
			t.Errorf("the page %s has no commands, or is not there", name)
		}
	}
}

// TestBlocksOfAPageAreFound, whichever way they are written.
func TestBlocksOfAPageAreFound(t *testing.T) {
	path := filepath.Join(t.TempDir(), "page.md")
	must(t, os.WriteFile(path, []byte(strings.Join([]string{
		"text", "", "    kubectl get nodes", "", "1. a list", "", "       helm upgrade a \\", "         --set b=c", "",
		"```console", "$ kubectl x", "what it prints", "```", "", "   ```sh", "   vgs escache", "   ```", "",
		"```yaml", "args: [kubectl]", "```", "```text", "drbdadm up", "```",
	}, "\n")), 0o600))
	var got []string
	for _, b := range blocksOf(t, path) {
		for _, command := range b.commands() {
			got = append(got, b.language+": "+command)
		}
	}
	want := []string{": kubectl get nodes", ": helm upgrade a --set b=c", "console: $ kubectl x", "console: what it prints", "sh: vgs escache"}
	if !slices.Equal(got, want) {
		t.Errorf("got %q, want %q", got, want)
	}
}
