//go:build e2e

package chart

import (
	"context"
	"fmt"
	"os"
	"strconv"
	"strings"
	"testing"

	"github.com/escache/escache-csi/internal/e2e/labtest"
)

// writing ends, and its pod with it, at the first write that fails. It rests in between: starting programs is most of what an emulated
// processor has to do here.
const writing = `n=0
while dd if=/dev/zero of=/data/block bs=4k count=16 conv=fsync 2>/dev/null &&
  echo $((n=n+1)) > /data/new && sync /data/new && mv /data/new /data/n && sync /data; do sleep 1; done
echo FAILED; exit 1`

const idle = "sleep 1000000"

func (w *world) count(t *testing.T, pod string) int {
	t.Helper()
	n, err := strconv.Atoi(w.kubectl(t, "exec", pod, "--", "cat", "/data/n"))
	check(t, err)
	return n
}

// goesOn waits until the pod's writer has got further.
func (w *world) goesOn(t *testing.T, pod string, from int) {
	t.Helper()
	labtest.WaitForCommand(t, "the writer of "+pod+" goes on", commandTime, func(ctx context.Context) error {
		out, err := w.try(ctx, "", "kubectl", "exec", pod, "--", "cat", "/data/n")
		if err != nil {
			return err
		}
		if n, err := strconv.Atoi(out); err != nil || n <= from {
			return fmt.Errorf("at %q: %w", out, err)
		}
		return nil
	})
}

// hasNotFailed says so for writers whose hosts were not switched off.
func (w *world) hasNotFailed(t *testing.T, pods ...string) {
	t.Helper()
	for _, pod := range pods {
		if phase := w.kubectl(t, "get", "pod", pod, "-o", "jsonpath={.status.phase}"); phase != "Running" {
			t.Errorf("%s is %s", pod, phase)
		}
		if out := w.kubectl(t, "logs", pod); strings.Contains(out, "FAILED") {
			t.Errorf("a write of %s has failed", pod)
		}
	}
}

// peerLoss takes the power from the host with the other copy. The kernel of the one that writes then runs DRBD's handler on the host,
// which asks csi-node in its pod; when the power is back, the pods there bring the copy up to date.
func peerLoss(t *testing.T, w *world) {
	volume := w.volume(t, "first")
	peer := w.peer(t, volume, "n1")
	before := w.quiet(t)
	check(t, w.lab.PowerOff(t.Context(), peer))
	w.sees(t, peer, "get", "cachevolume", volume, "-o", "jsonpath={.status.outdated[*]}")
	from := w.count(t, "first")
	w.goesOn(t, "first", from)
	w.steps.Mark(peer + " has lost its power, is on record as outdated, and writes on n1 go on")
	log := w.shell(t, "n1", "cat /run/escache/fence-peer.log")
	if !strings.Contains(log, "granted") {
		t.Errorf("DRBD's handler on n1 says:\n%s", log)
	}
	// What holds for as long as the host is away. That the writer's host is the only one with its latest writes is the first of them.
	w.raises(t, before, "EscacheHostWithoutEscached", "EscacheRedundancyLost")
	w.steps.Mark("the alerts for it are raised")
	check(t, w.lab.PowerOn(t.Context(), peer))
	w.isWhole(t, volume)
	w.hasNotFailed(t, "first")
	w.quiet(t)
	w.steps.Mark(peer + " is back, and its copy up to date")
}

// peer is the host with the volume's other copy.
func (w *world) peer(t *testing.T, volume, host string) string {
	t.Helper()
	replicas := w.kubectl(t, "get", "cachevolume", volume, "-o", "jsonpath={.spec.replicas[*]}")
	return strings.TrimSpace(strings.Replace(replicas, host, "", 1))
}

// isWhole waits until both copies of a volume are current, and every host is of use.
func (w *world) isWhole(t *testing.T, volume string) {
	t.Helper()
	w.sees(t, "", "get", "cachevolume", volume, "-o", "jsonpath={.status.outdated[*]}")
	w.rolledOut(t)
	w.ready(t)
}

// upgrade replaces every pod of the release as docs/upgrade.md says, while each host has a pod that writes. The images have another tag,
// and are of another revision where the script has built one.
func upgrade(t *testing.T, w *world) {
	writers := []string{"first", "second", "third"}
	w.claim(t, "second", "n2", writing)
	w.claim(t, "third", "n3", writing)
	for _, writer := range writers {
		w.running(t, writer)
		w.goesOn(t, writer, 0)
	}
	w.steps.Mark("a writer on each host")
	page, err := os.ReadFile("docs/upgrade.md")
	check(t, err)
	for _, h := range w.hosts {
		w.shell(t, h.Name, `for image in csi-controller csi-node escached; do
			ctr -n k8s.io images ls -q | grep -q "^ghcr.io/escache/$image:next$" && continue # of another revision
			old=$(ctr -n k8s.io images ls -q | grep "^ghcr.io/escache/$image:") && ctr -n k8s.io images tag "$old" "${old%:*}:next"; done`)
	}
	before := w.pods(t)
	w.sh(t, "charts", line(t, string(page), "kubectl apply"))
	tags := ""
	for _, part := range []string{"controller", "node", "escached"} {
		tags += " --set " + part + ".image.tag=next"
	}
	w.sh(t, "charts", line(t, string(page), "helm upgrade")+tags)
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
