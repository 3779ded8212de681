//go:build e2e

package chart

import (
	"strings"
	"testing"

	"github.com/escache/escache-csi/test/internal/page"
)

// upgrade replaces every pod of the release as docs/upgrade.md says, while each host has a pod that
// writes. The images have another tag, and are of another revision where the script has built one.
func upgrade(t *testing.T, w *world) {
	writers := []string{"first", "second", "third"}
	w.claim(t, "second", "n2", writing)
	w.claim(t, "third", "n3", writing)
	for _, writer := range writers {
		w.running(t, writer)
		w.goesOn(t, writer, 0)
	}
	w.steps.Mark("a writer on each host")
	doc := page.Read(t, "docs/upgrade.md")
	for _, h := range w.hosts {
		w.shell(t, h.Name, `for image in csi-controller csi-node escached; do
			ctr -n k8s.io images ls -q | grep -q "^ghcr.io/escache/$image:next$" && continue # of another revision
			old=$(ctr -n k8s.io images ls -q | grep "^ghcr.io/escache/$image:" | grep -v ":other$") && ctr -n k8s.io images tag "$old" "${old%:*}:next"; done`)
	}
	before := w.pods(t)
	w.sh(t, "charts", doc.Line(t, "kubectl apply"))
	tags := ""
	for _, part := range []string{"controller", "node", "escached"} {
		tags += " --set " + part + ".image.tag=next"
	}
	w.sh(t, "charts", doc.Line(t, "helm upgrade")+tags)
	w.rolledOut(t)
	w.ready(t)
	w.steps.Mark("helm upgrade: every pod replaced")
	for name, uid := range w.pods(t) {
		if before[name] == uid {
			t.Errorf("pod %s was not replaced", name)
		}
	}
	if out := w.kubectl(t, "-n", namespace, "get", "pods", "-o", "jsonpath={.items[*].spec.containers[0].image}"); strings.Count(out, ":next") < 8 {
		t.Errorf("images after the upgrade: %s", out)
	}
	for _, writer := range writers {
		w.goesOn(t, writer, w.count(t, writer))
	}
	w.hasNotFailed(t, writers...)
	for _, h := range w.hosts {
		if out := w.shell(t, h.Name, "dmesg | grep -i -e 'I/O error' -e 'EXT4-fs error' || true"); out != "" {
			t.Errorf("%s: %s", h.Name, out)
		}
	}

	// What the earlier containers set up, those of now can take down, and set up elsewhere.
	n := w.count(t, "second")
	volume := w.volume(t, "second")
	w.removePod(t, "second", volume)
	w.pod(t, "moved", "second", "n3", idle)
	w.running(t, "moved")
	if got := w.count(t, "moved"); got < n {
		t.Errorf("the count is %d after the move, and %d was written before", got, n)
	}
	w.removePod(t, "moved", volume)
	w.steps.Mark("a volume from before the upgrade has moved from n2 to n3")
}

// pods are the driver's by name, with their UIDs.
func (w *world) pods(t *testing.T) map[string]string {
	t.Helper()
	pods := map[string]string{}
	out := w.kubectl(t, "-n", namespace, "get", "pods", "-o", `jsonpath={range .items[*]}{.metadata.name} {.metadata.uid}{"\n"}{end}`)
	for line := range strings.Lines(out) {
		name, uid, _ := strings.Cut(strings.TrimSpace(line), " ")
		pods[name] = uid
	}
	return pods
}
