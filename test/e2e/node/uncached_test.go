//go:build e2e

package node

import (
	"context"
	"fmt"
	"strings"
	"testing"

	"k8s.io/apimachinery/pkg/api/meta"

	"github.com/escache/escache-csi/api/v1alpha1"
	"github.com/escache/escache-csi/test/labtest"
)

// regroup puts two hosts into the group and the third one into another one. A group names three hosts at
// least, so the rest are names of hosts that are not there.
func (w *world) regroup(t *testing.T, outside string) {
	t.Helper()
	names := map[string]string{group: strings.Join(w.nodes, ", ")}
	if outside != "" {
		names[group] = strings.Join(append(w.without(outside), "absent-1"), ", ")
		names["elsewhere"] = outside + ", absent-2, absent-3"
	}
	if outside == "" {
		w.kubectl(t, "delete", "nodegroup", "elsewhere", "--timeout=120s")
	}
	for name, nodes := range names {
		w.apply(t, fmt.Sprintf("apiVersion: escache.io/v1alpha1\nkind: NodeGroup\nmetadata: {name: %s}\nspec: {nodes: [%s]}\n", name, nodes))
	}
	labtest.WaitForCommand(t, "the kubelets know the groups", commandTime, func(ctx context.Context) error {
		for _, n := range w.nodes {
			want := group
			if n == outside {
				want = "elsewhere"
			}
			got, err := w.try(ctx, "", "get", "node", n, "-o", `jsonpath={.metadata.labels.topology\.escache\.io/group}`)
			if err != nil || got != want {
				return fmt.Errorf("%s has group %q: %w", n, got, err)
			}
		}
		return nil
	})
}

func (w *world) cordon(t *testing.T, on bool, nodes ...string) {
	t.Helper()
	for _, n := range nodes {
		w.kubectl(t, "patch", "node", n, "-p", fmt.Sprintf(`{"spec":{"unschedulable":%t}}`, on))
	}
}

// leavesItsGroup has a pod run outside its volume's group while no host of that takes pods, and then in the
// group again. What it writes outside is there afterwards, so no old cache was used.
func leavesItsGroup(t *testing.T, w *world) {
	outside := w.nodes[2]
	inside := w.without(outside)
	w.regroup(t, outside)
	defer w.regroup(t, "")
	w.apply(t, strings.Replace(w.class("leaving", "Immediate", "64Mi", "ext4"), "parameters: {", `parameters: {uncachedFallback: "true", `, 1))
	volume := w.claim(t, "leaving", "e2e-node-leaving", "Filesystem", "256Mi")

	w.pod(t, "leaving-1", inside[0], "leaving", "Filesystem", forever)
	w.in(t, "leaving-1", "echo old > /data/word; dd if=/dev/urandom of=/data/file bs=64k count=128 conv=fsync 2>/dev/null; sync")
	w.removePod(t, "leaving-1", volume)
	generation := w.volume(t, volume).Spec.LinkGeneration

	w.cordon(t, true, inside...)
	defer w.cordon(t, false, inside...)
	// It waits until the host has the label: before that, the PersistentVolume does not allow it.
	t.Logf("pod running outside the group after %s", w.pod(t, "leaving-2", outside, "leaving", "Filesystem", forever))
	v := w.volume(t, volume)
	if v.Status.AttachedNode != outside || !v.Status.UncachedAttached() || !meta.IsStatusConditionTrue(v.Status.Conditions, v1alpha1.ConditionUncached) {
		t.Errorf("attached: %+v", v.Status)
	}
	w.waitForEvent(t, "CacheVolume", volume, "AttachedUncached", outside, group)
	if got := w.in(t, "leaving-2", "cat /data/word"); got != "old" {
		t.Errorf("read %q outside the group", got)
	}
	w.in(t, "leaving-2", "echo new > /data/word; sync")
	sum := w.fill(t, "leaving-2")

	w.cordon(t, false, inside...)
	w.removePod(t, "leaving-2", volume)
	w.pod(t, "leaving-3", inside[1], "leaving", "Filesystem", forever)
	v = w.volume(t, volume)
	if v.Status.UncachedAttached() || v.Status.Authority != v1alpha1.AuthorityCache || v.Spec.LinkGeneration == generation ||
		meta.FindStatusCondition(v.Status.Conditions, v1alpha1.ConditionUncached) != nil {
		t.Errorf("in its group again: %+v", v.Status)
	}
	if got := w.in(t, "leaving-3", "cat /data/word"); got != "new" {
		t.Errorf("read %q in the group: an old cache is used", got)
	}
	w.same(t, "leaving-3", sum)
	w.removePod(t, "leaving-3", volume)
	labtest.WaitForCommand(t, "the label is gone", commandTime, func(ctx context.Context) error {
		got, err := w.try(ctx, "", "get", "nodes", "-l", v1alpha1.UncachedKey(group), "-o", "name")
		if err == nil && got != "" {
			err = fmt.Errorf("%s have it", got)
		}
		return err
	})
	w.kubectl(t, "delete", "pvc", "leaving", "--timeout=120s")
}
