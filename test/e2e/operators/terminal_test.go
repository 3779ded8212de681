//go:build e2e

package operators

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/escache/escache-csi/api/escache/escachetest"
)

// onTerminal looks at what a person sees: kubectl-escache, as the binary it is, in windows of
// several sizes.
func (w *world) onTerminal(t *testing.T) {
	binary := w.plugin(t)
	open := func(name string, width, height int, args ...string) *window {
		return openWindow(t, name, width, height, binary+" --kubeconfig "+w.kube.Kubeconfig()+" "+strings.Join(args, " "))
	}

	small := open("status-small", 60, 8, "status", "--watch")
	small.wait("What is wrong", "more lines")
	large := open("status-large", 120, 30, "status", "--watch")
	large.wait("rack1", "pvc-c", "What is wrong")
	w.fleet.Hosts["n2"].Write(ref("c"), 99*mib)
	large.wait("99Mi")
	for _, shown := range []*window{small, large} {
		if first, _, _ := strings.Cut(shown.screen(), "\n"); !strings.HasPrefix(first, "What is wrong") {
			t.Errorf("what is shown anew is not in the place of what was there:\n%s", shown.screen())
		}
		shown.interrupt()
		shown.wait("exit 0")
	}

	evacuation, goOn := w.inTheMiddle(func() *window { return open("evacuate", 100, 20, "evacuate", "n1", "--wait") }, "a", "b")
	goOn()
	evacuation.wait("everything on node n1 is in Ceph", "exit 0")
	if shown := evacuation.screen(); strings.Count(shown, "[###") != 3 { // two volumes and all of it, each drawn in its place
		t.Errorf("bars:\n%s", shown)
	}
	open("status-80", 80, 40, "status", "--node=n2").wait("Volumes:", "pvc-c", "exit 0")
	open("explain-group", 80, 40, "explain", "group/rack1").wait("Conditions:", "Hosts:", "exit 0")
	open("explain", 100, 40, "explain", "a", "-n", "shop").wait("Next step", "exit 0")
	open("status-drained", 120, 30, "status").wait("Drained", "exit 0")
	w.escache(t, 0, "uncordon", "n1")

	interrupted, goOn := w.inTheMiddle(func() *window { return open("interrupted", 100, 20, "flush", "a", "-n", "shop", "--wait") }, "a")
	interrupted.interrupt()
	interrupted.wait("error: interrupted; CacheFlush", "goes on without you", "exit 3")
	goOn()

	// Elsewhere there is nothing that only a terminal understands.
	for _, args := range [][]string{{"status"}, {"flush", "c", "-n", "shop", "--wait"}, {"explain", "c", "-n", "shop"}} {
		if out := w.escache(t, 0, args...); strings.Contains(out, "\x1b") || strings.Contains(out, "[#") {
			t.Errorf("%q in a pipe", out)
		}
	}
}

// inTheMiddle opens a window that shows a flush of volumes of n1, and returns when a quarter is flushed. There the flush
// stays until goOn: Ceph takes nothing, and what it has taken is played.
func (w *world) inTheMiddle(open func() *window, volumes ...string) (shown *window, goOn func()) {
	n1 := w.fleet.Hosts["n1"]
	for _, name := range volumes {
		n1.Load(ref(name), escachetest.Traffic{CephPerSecond: -1})
		n1.Write(ref(name), 400*mib)
	}
	shown = open()
	shown.wait("[.", "Running", fmt.Sprintf("%dMi left", 400*len(volumes)))
	for _, name := range volumes {
		n1.Write(ref(name), 300*mib)
	}
	shown.wait("[#", "Running", fmt.Sprintf("%dMi left", 300*len(volumes)))
	return shown, func() {
		for _, name := range volumes {
			n1.Load(ref(name), steady)
		}
	}
}

// window is a terminal's, which tmux plays.
type window struct {
	t    *testing.T
	name string
	tmux []string
}

func openWindow(t *testing.T, name string, width, height int, command string) *window {
	t.Helper()
	w := &window{t: t, name: name, tmux: []string{"-S", filepath.Join(t.TempDir(), "tmux"), "-f", "/dev/null"}}
	w.run("new-session", "-d", "-x", strconv.Itoa(width), "-y", strconv.Itoa(height), command+`; echo "exit $?"; exec sleep 600`)
	t.Cleanup(func() { w.run("kill-server") })
	return w
}

func (w *window) run(args ...string) string {
	w.t.Helper()
	out, err := exec.Command("tmux", append(w.tmux, args...)...).CombinedOutput()
	if err != nil {
		w.t.Fatalf("tmux (hack/setup.sh screens installs it): %v: %s", err, out)
	}
	return string(out)
}

func (w *window) screen() string { return strings.TrimRight(w.run("capture-pane", "-p"), "\n") }

func (w *window) interrupt() { w.run("send-keys", "C-c") }

// wait waits until the screen shows all of the words. ESCACHE_SCREENS=DIR keeps it.
func (w *window) wait(words ...string) {
	w.t.Helper()
	for deadline := time.Now().Add(time.Minute); ; time.Sleep(50 * time.Millisecond) {
		shown := w.screen()
		missing := ""
		for _, word := range words {
			if !strings.Contains(shown, word) {
				missing = word
			}
		}
		if missing == "" {
			if dir := os.Getenv("ESCACHE_SCREENS"); dir != "" {
				must(w.t, os.WriteFile(filepath.Join(dir, "cli-"+w.name+"-"+strings.Trim(words[0], "[#. ")+".txt"), []byte(shown+"\n"), 0o644))
			}
			return
		}
		if time.Now().After(deadline) {
			w.t.Fatalf("the screen does not show %q:\n%s", missing, shown)
		}
	}
}
