//go:build e2e

package node

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"testing"

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/escache/escache-csi/api/escache"
	"github.com/escache/escache-csi/api/v1alpha1"
	"github.com/escache/escache-csi/test/labtest"
)

type cacheVolume = v1alpha1.CacheVolume

// replaced has the host of a volume's second copy lose its power for good while a pod writes.
func replaced(t *testing.T, w *world) {
	b := w.busy(t, "replaced", writingOn)
	b.bothCurrent(t)
	lost, third := peer(w.volume(t, b.volume), b.host), w.third(t, b.volume)
	volumes, groups := follow[v1alpha1.CacheVolume](t, w, "cachevolume", b.volume), follow[v1alpha1.NodeGroup](t, w, "nodegroup", group)
	b.writes(t)

	check(t, w.lab.PowerOff(t.Context(), lost))
	w.waitForVolume(t, b.volume, "has its repair begun", func(v *cacheVolume) error {
		if v.Status.Repair == nil || v.Status.Repair.Lost != lost {
			return fmt.Errorf("repair %+v, outdated %q", v.Status.Repair, v.Status.Outdated)
		}
		return nil
	})
	b.writes(t)
	w.waitForVolume(t, b.volume, "has its second copy on the third host", func(v *cacheVolume) error {
		repairing := meta.FindStatusCondition(v.Status.Conditions, v1alpha1.ConditionRepairing)
		if v.Status.Repair != nil || !v.Spec.HasReplica(third) || len(v.Status.Outdated) > 0 || repairing.Status != metav1.ConditionFalse {
			return fmt.Errorf("replicas %q, outdated %q, %+v", v.Spec.Replicas, v.Status.Outdated, repairing)
		}
		return redundant(v, metav1.ConditionTrue)
	})
	b.writes(t)
	if out := w.failedIO(t, b.host); out != "" || strings.Contains(w.kubectl(t, "logs", b.name), "FAILED") {
		t.Errorf("I/O has failed on %s: %s", b.host, out)
	}
	if s := w.onHost(t, b.host, b.volume); s.Mode != escache.ModeWriteback {
		t.Errorf("the repair is over, and the volume is in mode %s", s.Mode)
	}
	b.reportsTheRepair(t, volumes.versions(), groups.versions(), lost, third)

	w.boot(t, lost)
	labtest.WaitForCommand(t, "the replica on "+lost+" is wiped", podTime, func(ctx context.Context) error {
		var g v1alpha1.NodeGroup
		if err := w.get(ctx, &g, "nodegroup", group); err != nil || len(g.Status.StaleReplicas) > 0 {
			return fmt.Errorf("there is %+v: %w", g.Status.StaleReplicas, err)
		}
		return nil
	})
	if s := w.onHost(t, lost, b.volume); s.State != escache.StateAbsent {
		t.Errorf("%s has %+v", lost, s)
	}

	// The new copy is worth something: the volume lives on it.
	b.sums = b.fill(t, b.name)
	b.writes(t)
	w.losePower(t, b.host, b.name)
	old := b.host
	b.name, b.host = "replaced-heir", third
	b.claimPod(t, third)
	b.same(t, b.name, b.sums)
	if n := b.count(t, b.name); n < b.acked {
		t.Errorf("the count is %d on %s, and %d was acknowledged", n, third, b.acked)
	}
	w.powerOn(t, old)
	b.removePod(t, b.name, b.volume)
	w.kubectl(t, "delete", "pvc", "replaced", "--timeout=120s")
	w.nothingLeft(t)
}

func (b *busy) bothCurrent(t *testing.T) {
	t.Helper()
	b.waitForVolume(t, b.volume, "has two current copies", func(v *cacheVolume) error { return redundant(v, metav1.ConditionTrue) })
}

// reportsTheRepair looks at what was on record and in Events.
func (b *busy) reportsTheRepair(t *testing.T, volumes []v1alpha1.CacheVolume, groups []v1alpha1.NodeGroup, lost, third string) {
	t.Helper()
	var reasons []string
	replacedAt := slices.IndexFunc(volumes, func(v v1alpha1.CacheVolume) bool {
		return v.Status.Repair != nil && v.Status.Repair.Substitute != ""
	})
	for _, v := range volumes {
		c := meta.FindStatusCondition(v.Status.Conditions, v1alpha1.ConditionRepairing)
		if c != nil && (len(reasons) == 0 || reasons[len(reasons)-1] != c.Reason) {
			reasons = append(reasons, c.Reason)
		}
	}
	t.Logf("the condition Repairing was %q", reasons)
	if replacedAt < 0 {
		t.Fatalf("no substitute was ever on record")
	}
	// Drained first: what only the holder had was in Ceph before the lost copy was given up.
	at := volumes[replacedAt]
	if s := at.Status; s.Authority != v1alpha1.AuthorityCeph || s.DirtyBytes != 0 || !s.IsOutdated(third) || at.Spec.HasReplica(third) {
		t.Errorf("when the substitute came on record, the rest was %+v, replicas %q", s, at.Spec.Replicas)
	}
	for _, v := range volumes {
		if v.Spec.HasReplica(third) && v.Status.Repair != nil && !v.Status.IsOutdated(third) && v.Status.Repair.Substitute == "" {
			t.Errorf("the new copy counted before it was one: %+v", v.Status)
		}
	}
	told, err := b.said(t.Context(), "CacheVolume", b.volume)
	check(t, err)
	for _, reason := range []string{"Draining", "Copying"} {
		if told["Repair"+reason] == "" || !slices.Contains(reasons, reason) {
			t.Errorf("nothing tells of %s: conditions %q, Events %q", reason, reasons, told)
		}
	}
	if told["RepairOver"] == "" || !strings.Contains(told["RepairDraining"]+told["RepairBeginning"]+told["RepairCopying"], lost) {
		t.Errorf("Events %q", told)
	}
	tells := func(g v1alpha1.NodeGroup) bool {
		c := meta.FindStatusCondition(g.Status.Conditions, v1alpha1.GroupRedundant)
		return c != nil && c.Status == metav1.ConditionFalse && strings.Contains(c.Message, "volumes in repair: 1") && strings.Contains(c.Message, lost)
	}
	if !slices.ContainsFunc(groups, tells) {
		t.Errorf("the group never told of the repair")
	}
	stale := func(g v1alpha1.NodeGroup) bool {
		return slices.ContainsFunc(g.Status.StaleReplicas, func(r v1alpha1.StaleReplica) bool { return r.Node == lost && r.Volume == b.volume })
	}
	if !slices.ContainsFunc(groups, stale) {
		t.Errorf("the lost replica was never on record as one to wipe")
	}
}
