//go:build e2e

package node

import (
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/escache/escache-csi/api/v1alpha1"
	"github.com/escache/escache-csi/hack/labclient"
)

// events returns how often each reason was told of a claim by csi-node.
func (w *world) events(ctx context.Context, claim string) (map[string]int, error) {
	text, err := w.try(ctx, "", "-n", namespace, "get", "events", "-o", "json",
		"--field-selector", "involvedObject.kind=PersistentVolumeClaim,involvedObject.name="+claim)
	if err != nil {
		return nil, err
	}
	var list struct {
		Items []struct {
			Reason string `json:"reason"`
			Source struct {
				Component string `json:"component"`
			} `json:"source"`
		} `json:"items"`
	}
	told := map[string]int{}
	err = json.Unmarshal([]byte(text), &list)
	for _, e := range list.Items {
		if e.Source.Component == "csi-node" {
			told[e.Reason]++
		}
	}
	return told, err
}

func redundant(v *v1alpha1.CacheVolume, want metav1.ConditionStatus) error {
	c := meta.FindStatusCondition(v.Status.Conditions, v1alpha1.ConditionRedundant)
	if c == nil || c.Status != want {
		return fmt.Errorf("Redundant is %+v", c)
	}
	return nil
}

// peer is the other replica's host.
func peer(v *v1alpha1.CacheVolume, node string) string {
	return v.Spec.Replicas[1-slices.Index(v.Spec.Replicas, node)]
}

func lostReplica(t *testing.T, w *world) {
	name := w.claim(t, "replica", "e2e-node-ext4", "Filesystem", "256Mi")
	primary := w.volume(t, name).Spec.Replicas[0]
	w.pod(t, "replica", primary, "replica", "Filesystem", writing)
	waitFor(t, "the volume is redundant", commandTime, func(ctx context.Context) error {
		v, err := w.read(ctx, name)
		if err != nil {
			return err
		}
		return redundant(v, metav1.ConditionTrue)
	})
	lost := peer(w.volume(t, name), primary)

	check(t, w.lab.Cut(t.Context(), lost, labclient.Cut{From: primary}))
	begin := time.Now()
	told := waitFor(t, "the loss is told", commandTime, func(ctx context.Context) error {
		v, err := w.read(ctx, name)
		if err == nil {
			err = redundant(v, metav1.ConditionFalse)
		}
		if err != nil {
			return err
		}
		events, err := w.events(ctx, "replica")
		if err == nil && events["PeerLost"] != 1 {
			err = fmt.Errorf("events %v", events)
		}
		return err
	})
	// DRBD itself needs up to three seconds to notice; these two look through kubectl, which takes its time too.
	t.Logf("told %s after the cut", told)
	waitFor(t, "the peer is on record as outdated", commandTime, func(ctx context.Context) error {
		v, err := w.read(ctx, name)
		if err == nil && !v.Status.IsOutdated(lost) {
			err = fmt.Errorf("outdated: %q", v.Status.Outdated)
		}
		return err
	})
	t.Logf("on record as outdated %s after the cut", time.Since(begin))
	w.goesOn(t, "replica", w.count(t, "replica"))
	t.Logf("the writer goes on %s after the cut", time.Since(begin))
	time.Sleep(12 * time.Second) // long enough for a flood
	if events, err := w.events(t.Context(), "replica"); err != nil || events["PeerLost"] != 1 {
		t.Errorf("events %v %v", events, err)
	}

	check(t, w.lab.Heal(t.Context()))
	begin = time.Now()
	waitFor(t, "the peer is taken off the list and all is well", commandTime, func(ctx context.Context) error {
		v, err := w.read(ctx, name)
		if err == nil && len(v.Status.Outdated) > 0 {
			err = fmt.Errorf("outdated: %q", v.Status.Outdated)
		}
		if err == nil {
			err = redundant(v, metav1.ConditionTrue)
		}
		return err
	})
	t.Logf("off the list %s after the cut was healed", time.Since(begin))
	events, err := w.events(t.Context(), "replica")
	check(t, err)
	if events["PeerLost"] != 1 || events["Recovered"] < 1 || events["Recovered"] > 3 {
		t.Errorf("events %v", events)
	}
	t.Logf("events %v", events)
	w.removePod(t, "replica", name)
}

// frozenWithoutAPI: a host that cannot reach the record must not acknowledge what nobody else has.
func frozenWithoutAPI(t *testing.T, w *world) {
	name := w.claim(t, "frozen", "e2e-node-ext4", "Filesystem", "256Mi")
	primary := w.volume(t, name).Spec.Replicas[0]
	w.pod(t, "frozen", primary, "frozen", "Filesystem", writing)
	lost := peer(w.volume(t, name), primary)
	w.goesOn(t, "frozen", 0)
	check(t, w.lab.StopAPIServer(t.Context()))
	started := false
	defer func() {
		if !started {
			check(t, w.lab.StartAPIServer(context.WithoutCancel(t.Context())))
		}
	}()
	check(t, w.lab.Cut(t.Context(), lost, labclient.Cut{From: primary}))
	time.Sleep(8 * time.Second)
	first := w.completed(t, primary)
	time.Sleep(8 * time.Second)
	second := w.completed(t, primary)
	if second != first {
		t.Errorf("%d writes ended well without a record", second-first)
	}
	begin := time.Now()
	check(t, w.lab.StartAPIServer(t.Context()))
	started = true
	waitFor(t, "writes go on", commandTime, func(context.Context) error {
		if w.completed(t, primary) == second {
			return fmt.Errorf("still %d", second)
		}
		return nil
	})
	t.Logf("writes go on %s after the API server was started", time.Since(begin))
	w.goesOn(t, "frozen", w.count(t, "frozen"))
	if v := w.volume(t, name); !v.Status.IsOutdated(lost) {
		t.Errorf("outdated: %q", v.Status.Outdated)
	}
	check(t, w.lab.Heal(t.Context()))
	waitFor(t, "the peer is taken off the list", commandTime, func(ctx context.Context) error {
		v, err := w.read(ctx, name)
		if err == nil && len(v.Status.Outdated) > 0 {
			err = fmt.Errorf("outdated: %q", v.Status.Outdated)
		}
		return err
	})
	w.removePod(t, "frozen", name)
}

// completed counts the writes that the one volume of a host has answered since it was connected. The kernel says so without touching the
// filesystem: there whoever reads may hang with the writer while I/O is frozen.
func (w *world) completed(t *testing.T, node string) int {
	t.Helper()
	var n int
	out := w.shell(t, node, `set -- $(cat /sys/dev/block/$(printf %d:%d $(stat -L -c '0x%t 0x%T' /dev/escache/*/*))/stat); echo $5`)
	_, err := fmt.Sscan(out, &n)
	check(t, err)
	return n
}

// groupChange deletes the group and makes another one of the same nodes: every kubelet learns it.
func groupChange(t *testing.T, w *world) {
	renamed := group + "-renamed"
	change := func(from, to string) {
		t.Helper()
		_, err := w.try(t.Context(), "", "delete", "nodegroup", from, "--timeout=60s")
		check(t, err)
		w.apply(t, fmt.Sprintf("apiVersion: escache.io/v1alpha1\nkind: NodeGroup\nmetadata: {name: %s}\nspec: {nodes: [%s]}\n",
			to, strings.Join(w.nodes, ", ")))
		took := waitFor(t, "the kubelets have registered group "+to, commandTime, func(ctx context.Context) error {
			for _, n := range w.nodes {
				got, err := w.try(ctx, "", "get", "node", n, "-o", `jsonpath={.metadata.labels.topology\.escache\.io/group}`)
				if err != nil || got != to {
					return fmt.Errorf("%s has %q: %w", n, got, err)
				}
			}
			return nil
		})
		t.Logf("registered as %s after %s", to, took)
	}
	change(group, renamed)
	change(renamed, group)
}

// idle measures csi-node on a host without volumes.
func idle(t *testing.T, w *world) {
	node := w.nodes[2]
	use := func() (ticks, kib int64) {
		out := w.shell(t, node, `p=$(cat /run/lab/services/csi-node.pid); set -- $(sed 's/.*) //' /proc/$p/stat); echo $((${12} + ${13})) `+
			`$(sed -n 's/^VmRSS:[^0-9]*\([0-9]*\).*/\1/p' /proc/$p/status)`)
		_, err := fmt.Sscan(out, &ticks, &kib)
		check(t, err)
		return ticks, kib
	}
	versions := func() string {
		out, err := w.try(t.Context(), "", "get", "cachevolumes,nodegroups,csinodes", "-o", `jsonpath={range .items[*]}{.metadata.managedFields[?(@.manager=="csi-node")].time}{end}`)
		check(t, err)
		return out
	}
	before, _ := use()
	written := versions()
	const rest = 60 * time.Second
	time.Sleep(rest)
	after, kib := use()
	t.Logf("%.1f MiB resident, %d ms CPU in %s", float64(kib)/1024, (after-before)*10, rest)
	if kib > 30<<10 {
		t.Errorf("%d KiB resident, more than 30 MiB", kib)
	}
	if got := versions(); got != written {
		t.Errorf("wrote to the API: %s, before %s", got, written)
	}
	if log := w.shell(t, node, "wget -q -O - http://127.0.0.1:9810/healthz 2>&1 || true"); !strings.Contains(log, "ok") {
		t.Logf("healthz: %s", log)
	}
}

// takenOver cuts a host off while its pod writes, has another host take the volume over, and lets the first one come back: it must get rid
// of what is frozen there by itself, without a reboot.
func takenOver(t *testing.T, w *world) {
	name := w.claim(t, "taken", "e2e-node-ext4", "Filesystem", "256Mi")
	old := w.volume(t, name).Spec.Replicas[0]
	w.pod(t, "taken", old, "taken", "Filesystem", writing)
	heir := peer(w.volume(t, name), old)
	from := w.written(t, "taken")
	booted := w.shell(t, old, "cat /proc/sys/kernel/random/boot_id")

	check(t, w.lab.Cut(t.Context(), old, labclient.Cut{}))
	w.kubectl(t, "taint", "node", old, outOfService+"=nodeshutdown:NoExecute", "--overwrite")
	w.gone(t, "taken")
	w.pod(t, "heir", heir, "taken", "Filesystem", forever)
	if got := w.count(t, "heir"); got < from {
		t.Errorf("the count is %d, and %d was written before the cut", got, from)
	}
	sum := w.fill(t, "heir")

	check(t, w.lab.Heal(t.Context()))
	w.kubectl(t, "taint", "node", old, outOfService+"-")
	took := waitFor(t, old+" has given up what was frozen there", podTime, func(ctx context.Context) error {
		out, err := w.lab.Shell(ctx, old, "grep -e csi.escache.io -e /dev/escache /proc/mounts; ls -d /dev/escache/*/* /sys/bus/rbd/devices/*; true")
		if err == nil && strings.TrimSpace(out) != "" {
			err = fmt.Errorf("there is %s", out)
		}
		return err
	})
	t.Logf("given up %s after the cut was healed", took)
	if got := w.shell(t, old, "cat /proc/sys/kernel/random/boot_id"); got != booted {
		t.Errorf("%s was booted anew", old)
	}
	waitFor(t, "the volume is redundant again", commandTime, func(ctx context.Context) error {
		v, err := w.read(ctx, name)
		if err == nil {
			err = redundant(v, metav1.ConditionTrue)
		}
		return err
	})
	w.removePod(t, "heir", name)
	w.pod(t, "home", old, "taken", "Filesystem", forever)
	w.same(t, "home", sum)
	w.removePod(t, "home", name)
}
