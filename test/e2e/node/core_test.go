//go:build e2e

package node

import (
	"context"
	"fmt"
	"os/exec"
	"strings"
	"testing"
	"time"

	"github.com/escache/escache-csi/test/labtest"
)

// TestCore is the main job once, in one go: a claim becomes a running pod, the pod moves, its host
// loses power, the volume is deleted.
func TestCore(t *testing.T) {
	w := open(t)
	defer w.cleanUp(t)
	steps := labtest.NewTimeline()
	volume := w.claim(t, "core", "e2e-node-ext4", "Filesystem", "256Mi")
	steps.Mark("claim bound")
	first := w.volume(t, volume).Spec.Replicas[0]
	w.pod(t, "core-1", first, "core", "Filesystem", forever)
	steps.Mark("pod ready on " + first)
	sum := w.fill(t, "core-1")
	w.removePod(t, "core-1", volume)
	steps.Mark("pod gone, volume written back and detached")

	second := w.without(first)[0]
	w.pod(t, "core-2", second, "core", "Filesystem", forever)
	w.same(t, "core-2", sum)
	steps.Mark("pod ready on " + second + " with its data")
	sum = w.fill(t, "core-2")
	third := peer(w.volume(t, volume), second)
	w.redundant(t, volume)
	w.losePower(t, second, "core-2")
	steps.Mark(second + " has lost its power with data in its cache, and the pod is gone")
	w.pod(t, "core-3", third, "core", "Filesystem", forever)
	w.same(t, "core-3", sum)
	steps.Mark("pod ready on " + third + " with its data")

	w.powerOn(t, second)
	steps.Mark(second + " is back")
	w.removePod(t, "core-3", volume)
	w.kubectl(t, "delete", "pvc", "core", "--timeout=120s")
	w.nothingLeft(t)
	steps.Mark("deleted, and nothing of it left")
	steps.Print(t)
}

// sums are of each MiB of the file: which of them differ says what kind of a loss it is.
const sums = `for i in 0 1 2 3 4 5 6 7; do dd if=/data/file bs=1M skip=$i count=1 2>/dev/null | sha1sum | cut -c-8; done; ls -l /data/file`

// fill writes and syncs a file in the pod; it returns its checksums.
func (w *world) fill(t *testing.T, pod string) string {
	t.Helper()
	return w.in(t, pod, "set -e; dd if=/dev/urandom of=/data/file bs=64k count=128 conv=fsync 2>/dev/null; "+sums)
}

func (w *world) same(t *testing.T, pod, want string) {
	t.Helper()
	if got := w.in(t, pod, sums); got != want {
		t.Fatalf("in %s:\n%s\nit was\n%s", pod, got, want)
	}
}

// without are the other hosts.
func (w *world) without(node string) []string {
	var others []string
	for _, n := range w.nodes {
		if n != node {
			others = append(others, n)
		}
	}
	return others
}

const outOfService = "node.kubernetes.io/out-of-service"

// losePower takes a host's power away, says so to Kubernetes as an operator does, and returns when
// its pod is gone.
func (w *world) losePower(t *testing.T, node, pod string) {
	t.Helper()
	check(t, w.lab.PowerOff(t.Context(), node))
	w.kubectl(t, "taint", "node", node, outOfService+"=nodeshutdown:NoExecute", "--overwrite")
	w.gone(t, pod)
}

func (w *world) gone(t *testing.T, pod string) {
	t.Helper()
	labtest.WaitForCommand(t, "pod "+pod+" is gone", podTime, func(ctx context.Context) error {
		out, err := w.try(ctx, "", "-n", namespace, "get", "pod", pod, "--ignore-not-found", "-o", "name")
		if err == nil && out != "" {
			err = fmt.Errorf("there is %s", out)
		}
		return err
	})
}

func (w *world) powerOn(t *testing.T, node string) {
	t.Helper()
	check(t, w.lab.PowerOn(t.Context(), node))
	w.kubectl(t, "taint", "node", node, outOfService+"-")
	w.kubectl(t, "wait", "--for=condition=Ready", "node/"+node, fmt.Sprintf("--timeout=%s", podTime))
}

// nothingLeft waits until neither Kubernetes nor Ceph nor a host knows of any volume: what Ceph
// keeps in its trash is emptied in the background.
func (w *world) nothingLeft(t *testing.T) {
	t.Helper()
	hosts := labtest.Open(t).Hosts
	labtest.WaitForCommand(t, "nothing is left of the volumes", podTime, func(ctx context.Context) error {
		objects, err := w.try(ctx, "", "get", "cachevolumes,readonlyvolumes,volumeattachments,pv", "-o", "name")
		if err != nil || objects != "" {
			return fmt.Errorf("Kubernetes has %q: %w", objects, err)
		}
		for _, args := range [][]string{{"ls", "rbd"}, {"trash", "ls", "rbd"}} {
			if out, err := exec.CommandContext(ctx, "rbd", args...).Output(); err != nil || len(out) > 0 {
				return fmt.Errorf("rbd %s: %q: %w", strings.Join(args, " "), out, err)
			}
		}
		for _, h := range hosts {
			if left, err := h.Residue(ctx); err != nil || len(left) > 0 {
				return fmt.Errorf("%s has %q: %w", h.Name, left, err)
			}
		}
		return nil
	})
}

// mend gives back what a failed test has taken away.
func (w *world) mend(t *testing.T) {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.WithoutCancel(t.Context()), mendTime)
	defer cancel()
	check(t, w.lab.ResumeCeph(ctx))
	check(t, w.lab.Heal(ctx))
	off, err := labtest.HostsOff(ctx, w.lab)
	check(t, err)
	for _, node := range off {
		check(t, w.lab.PowerOn(ctx, node))
		_, _ = w.try(ctx, "", "taint", "node", node, outOfService+"-") // a host that had none stays as it is
	}
}

// mendTime is for booting hosts on a busy machine.
const mendTime = 6 * time.Minute
