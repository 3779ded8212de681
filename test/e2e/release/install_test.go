//go:build e2e

package release

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/escache/escache-csi/test/internal/page"
	"github.com/escache/escache-csi/test/labtest"
)

// damaged wants the page's command to find a file that was changed.
func damaged(t *testing.T, w *world, doc page.Page) {
	images := filepath.Join(w.dir, "images.txt")
	whole, err := os.ReadFile(images)
	check(t, err)
	check(t, os.WriteFile(images, []byte("other\n"), 0o600))
	if out, err := w.shell(t.Context(), doc.Line(t, "    sha256sum")); err == nil || !strings.Contains(out, "images.txt: FAILED") {
		t.Errorf("a changed file is not found: %v\n%s", err, out)
	}
	check(t, os.WriteFile(images, whole, 0o600))
}

// unpack verifies the release, and unpacks the chart and the plugin.
func unpack(t *testing.T, w *world, doc page.Page) {
	w.began = time.Now()
	section := doc.Section(t, "Get a release")
	for _, text := range page.Commands(section.Block(t, "sha256sum")) {
		if !strings.HasPrefix(text, "cosign ") { // openssl, below it, does the same
			w.do(t, command{text: text, check: true})
		}
	}
	w.all(t, section.Block(t, "-C charts"))
	w.do(t, command{text: section.Line(t, "    tar -xzf kubectl-escache")}) // in place of krew
	if out := w.kubectl(t, "escache --version"); !strings.Contains(out, w.version) {
		t.Errorf("kubectl-escache is another one: %s", out)
	}
}

// checkHosts runs escached preflight on a host that has nothing of the driver.
func checkHosts(t *testing.T, w *world, doc page.Page) {
	for _, h := range w.hosts {
		w.onHost(t, h.Name, "for there in /usr/local/bin/escached /usr/local/lib/escache /etc/escache /etc/ceph; do test ! -e $there; done")
	}
	for _, text := range page.Commands(doc.Section(t, "Check the hosts").Block(t, "scp")) {
		w.do(t, command{text: text, check: true})
	}
	w.onHost(t, w.hosts[0].Name, "rm /tmp/escached")
}

// values are what is special here: no udev on the hosts, and a lease that bears emulated processors.
const values = `
escached: {extraEnv: [{name: DM_DISABLE_UDEV, value: "1"}]}
controller: {lease: {duration: 60s, renewDeadline: 45s, retryPeriod: 5s}}
`

// install is what the page's steps say, up to a driver that is ready.
func install(t *testing.T, w *world, doc page.Page) {
	steps := doc.Section(t, "Steps")
	w.all(t, steps.Step(t, 1))
	w.all(t, steps.Quoted(t, "kubectl label node"))
	everyImage := doc.Section(t, "Without access to the internet").Line(t, "    global:")
	check(t, os.WriteFile(filepath.Join(w.dir, "values.yaml"), []byte(w.fill.Replace(steps.Step(t, 3)+everyImage+values)), 0o600))
	w.all(t, steps.Quoted(t, "helm install"))
	w.repeat(t, steps.Quoted(t, "kubectl get nodegroups"), "3/3")
	w.repeat(t, steps.Quoted(t, "kubectl escache preflight"), "") // while pods start
}

// repeat runs a command of the page, as that says, until it succeeds and prints a word, if one is wanted.
func (w *world) repeat(t *testing.T, text, word string) {
	t.Helper()
	begin := time.Now()
	labtest.WaitForCommand(t, text, podTime, func(ctx context.Context) error {
		out, err := w.shell(ctx, text)
		if err == nil && word != "" && !slices.Contains(strings.Fields(out), word) {
			err = fmt.Errorf("no %s", word)
		}
		if err != nil {
			return fmt.Errorf("%w\n%s", err, out)
		}
		t.Logf("%s\n%s", text, out)
		return nil
	})
	w.ran = append(w.ran, command{text: text, took: time.Since(begin), check: true})
}

// helmTest runs the same checks in the cluster. Whoever is in a hurry leaves it out.
func helmTest(t *testing.T, w *world, doc page.Page) {
	w.do(t, command{text: doc.Section(t, "Steps").Quoted(t, "helm test"), check: true})
}

// firstPod is the page's claim and pod, and what the pod has written.
func firstPod(t *testing.T, w *world, doc page.Page) {
	for i, text := range page.Commands(doc.Section(t, "Steps").Step(t, 7)) {
		out := w.do(t, command{text: text, check: i > 0})
		if strings.HasPrefix(text, "kubectl wait ") {
			w.ready = time.Now()
		}
		if strings.HasPrefix(text, "kubectl exec ") && !strings.Contains(out, fmt.Sprint(time.Now().Year())) {
			t.Errorf("the pod has written %q, and not when it began", out)
		}
	}
	if w.ready.IsZero() {
		t.Error("the page does not wait for the pod")
	}
	volume := labtest.VolumeOf(func(args ...string) string {
		return w.kubectl(t, "'"+strings.Join(args, "' '")+"'")
	}, "first")
	if node := w.kubectl(t, "get cachevolume "+volume+" -o jsonpath={.status.attachedNode}"); node == "" {
		t.Errorf("%s is attached nowhere", volume)
	}
}
