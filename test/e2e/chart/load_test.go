//go:build e2e

package chart

import (
	"context"
	"fmt"
	"strconv"
	"strings"
	"testing"

	"github.com/escache/escache-csi/test/labtest"
)

// writing ends, and its pod with it, at the first write that fails, and goes on from where an
// earlier pod was. It rests in between: starting programs is most of what an emulated processor has
// to do here.
const writing = `n=$(cat /data/n 2>/dev/null || echo 0)
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

// peerLoss takes the power from the host with the other copy. The kernel of the one that writes
// then runs DRBD's handler on the host, which asks csi-node in its pod; when the power is back, the
// pods there bring the copy up to date.
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
	// What holds for as long as the host is away. That the writer's host is the only one with its
	// latest writes is the first of them.
	w.raises(t, before, "EscacheHostWithoutEscached", "EscacheOneCopyForLong", "EscacheRedundancyLost")
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
