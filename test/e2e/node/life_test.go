//go:build e2e

package node

import (
	"context"
	"fmt"
	"strings"
	"testing"

	"github.com/escache/escache-csi/test/labtest"
)

const forever = "sleep 1000000"

// lifeOfAClaim goes through what a volume is for.
func lifeOfAClaim(t *testing.T, w *world) {
	for _, kind := range []string{"ext4", "xfs"} {
		t.Run(kind, func(t *testing.T) {
			volume := w.claim(t, kind, "e2e-node-"+kind, "Filesystem", "512Mi")
			took := w.pod(t, kind, w.nodes[0], kind, "Filesystem", forever)
			t.Logf("pod running after %s", took)
			if got := w.in(t, kind, "grep ' /data ' /proc/mounts"); !strings.Contains(got, " "+kind+" rw") {
				t.Errorf("mounted: %s", got)
			}
			if record := w.volume(t, volume).Annotations["escache.io/filesystem"]; !strings.Contains(record, `"formatted"`) {
				t.Errorf("record of the filesystem: %s", record)
			}
			sum := w.fill(t, kind)
			t.Logf("pod gone and volume detached after %s", w.removePod(t, kind, volume))
			took = w.pod(t, kind+"-again", w.nodes[0], kind, "Filesystem", forever)
			t.Logf("second pod running after %s", took)
			w.same(t, kind+"-again", sum)
			w.removePod(t, kind+"-again", volume)
		})
	}
	t.Run("block", func(t *testing.T) {
		volume := w.claim(t, "block", "e2e-node-ext4", "Block", "128Mi")
		w.pod(t, "block", w.nodes[1], "block", "Block", forever)
		w.in(t, "block", "echo raw data | dd of=/dev/data conv=fsync,notrunc 2>&1")
		w.removePod(t, "block", volume)
		w.pod(t, "block-again", w.nodes[1], "block", "Block", forever)
		if got := w.in(t, "block-again", "head -c 8 /dev/data"); got != "raw data" {
			t.Errorf("the block volume holds %q", got)
		}
		w.removePod(t, "block-again", volume)
	})
}

// growth asks for more while a pod writes.
func growth(t *testing.T, w *world) {
	for _, kind := range []string{"ext4", "xfs"} {
		t.Run(kind, func(t *testing.T) {
			name := "grow-" + kind
			volume := w.claim(t, name, "e2e-node-"+kind, "Filesystem", "512Mi")
			w.pod(t, name, w.nodes[0], name, "Filesystem", writing)
			sum := w.fill(t, name)
			w.kubectl(t, "patch", "pvc", name, "--type=merge", "-p", `{"spec":{"resources":{"requests":{"storage":"1Gi"}}}}`)
			grown := labtest.WaitForCommand(t, "the filesystem has grown in the running pod", podTime, func(ctx context.Context) error {
				out, err := w.try(ctx, "", "-n", namespace, "exec", name, "--", "sh", "-c", "df -kP /data | tail -n 1")
				var device string
				var kib int64
				if err == nil {
					_, err = fmt.Sscan(out, &device, &kib)
				}
				if err == nil && kib < 900<<10 {
					err = fmt.Errorf("%s has %d KiB", device, kib)
				}
				return err
			})
			t.Logf("grown after %s", grown)
			w.same(t, name, sum)
			w.goesOn(t, name, w.count(t, name))
			w.removePod(t, name, volume)
		})
	}
}

// moves takes a volume to all three hosts, also to the one that has no replica, and back.
func moves(t *testing.T, w *world) {
	volume := w.claim(t, "moving", "e2e-node-ext4", "Filesystem", "512Mi")
	sum := ""
	for i, node := range append(append([]string{}, w.nodes...), w.nodes[0]) {
		pod := fmt.Sprintf("moving-%d", i)
		took := w.pod(t, pod, node, "moving", "Filesystem", forever)
		if sum != "" {
			w.same(t, pod, sum)
		}
		replicas := w.volume(t, volume).Spec.Replicas
		sum = w.fill(t, pod)
		t.Logf("on %s after %s, replicas on %s", node, took, strings.Join(replicas, " and "))
		t.Logf("left %s after %s with 8 MiB dirty", node, w.removePod(t, pod, volume))
	}
}
