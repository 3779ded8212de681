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
	"github.com/escache/escache-csi/test/lab/labclient"
	"github.com/escache/escache-csi/test/labtest"
)

// event is what is read of an Event.
type event struct {
	Reason  string `json:"reason"`
	Message string `json:"message"`
	Source  struct {
		Component string `json:"component"`
	} `json:"source"`
}

// eventsOf are the Events of an object.
func (w *world) eventsOf(ctx context.Context, kind, name string) ([]event, error) {
	text, err := w.try(ctx, "", "get", "events", "--all-namespaces", "-o", "json",
		"--field-selector", "involvedObject.kind="+kind+",involvedObject.name="+name)
	if err != nil {
		return nil, err
	}
	var list struct {
		Items []event `json:"items"`
	}
	err = json.Unmarshal([]byte(text), &list)
	return list.Items, err
}

// events returns how often each reason was told of a claim by csi-node.
func (w *world) events(ctx context.Context, claim string) (map[string]int, error) {
	all, err := w.eventsOf(ctx, "PersistentVolumeClaim", claim)
	told := map[string]int{}
	for _, e := range all {
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

// redundant waits until both copies of a volume count: a link that broke on a busy machine leaves
// one for some seconds, and what is lost with the host that has it cannot be had elsewhere.
func (w *world) redundant(t *testing.T, name string) {
	t.Helper()
	labtest.WaitForCommand(t, "volume "+name+" is redundant", commandTime, func(ctx context.Context) error {
		v, err := w.read(ctx, name)
		if err == nil && len(v.Status.Outdated) > 0 {
			err = fmt.Errorf("outdated: %q", v.Status.Outdated)
		}
		if err == nil {
			err = redundant(v, metav1.ConditionTrue)
		}
		return err
	})
}

// peer is the other replica's host.
func peer(v *v1alpha1.CacheVolume, node string) string {
	return v.Spec.Replicas[1-slices.Index(v.Spec.Replicas, node)]
}

func lostReplica(t *testing.T, w *world) {
	name := w.claim(t, "replica", "e2e-node-ext4", "Filesystem", "256Mi")
	primary := w.volume(t, name).Spec.Replicas[0]
	w.pod(t, "replica", primary, "replica", "Filesystem", writing)
	w.redundant(t, name)
	lost := peer(w.volume(t, name), primary)

	check(t, w.lab.Cut(t.Context(), lost, labclient.Cut{From: primary}))
	begin := time.Now()
	told := labtest.WaitForCommand(t, "the loss is told", commandTime, func(ctx context.Context) error {
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
	// DRBD itself needs up to three seconds to notice; these two look through kubectl, which takes
	// its time too.
	t.Logf("told %s after the cut", told)
	labtest.WaitForCommand(t, "the peer is on record as outdated", commandTime, func(ctx context.Context) error {
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
	w.redundant(t, name)
	t.Logf("off the list %s after the cut was healed", time.Since(begin))
	events, err := w.events(t.Context(), "replica")
	check(t, err)
	if events["PeerLost"] != 1 || events["IOFrozen"] > 1 || events["CacheError"] > 0 || events["Recovered"] < 1 || events["Recovered"] > 3 {
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
	labtest.WaitForCommand(t, "writes go on", commandTime, func(context.Context) error {
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
	labtest.WaitForCommand(t, "the peer is taken off the list", commandTime, func(ctx context.Context) error {
		v, err := w.read(ctx, name)
		if err == nil && len(v.Status.Outdated) > 0 {
			err = fmt.Errorf("outdated: %q", v.Status.Outdated)
		}
		return err
	})
	w.removePod(t, "frozen", name)
}

// completed counts the writes that the one volume of a host has answered since it was connected.
// The kernel says so without touching the filesystem: there whoever reads may hang with the writer
// while I/O is frozen.
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
		took := labtest.WaitForCommand(t, "the kubelets have registered group "+to, commandTime, func(ctx context.Context) error {
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
		t.Errorf("healthz: %s", log)
	}
}

// takenOver cuts a host off while its pod writes, has another host take the volume over, and lets
// the first one come back: it must get rid of what is frozen there by itself, without a reboot.
func takenOver(t *testing.T, w *world) {
	name := w.claim(t, "taken", "e2e-node-ext4", "Filesystem", "256Mi")
	old := w.volume(t, name).Spec.Replicas[0]
	w.pod(t, "taken", old, "taken", "Filesystem", writing)
	heir := peer(w.volume(t, name), old)
	from := w.written(t, "taken")
	w.redundant(t, name)
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
	took := labtest.WaitForCommand(t, old+" has given up what was frozen there", podTime, func(ctx context.Context) error {
		out, err := w.lab.Shell(ctx, old, "{ grep -e csi.escache.io -e /dev/escache /proc/mounts; ls -d /dev/escache/*/* /sys/bus/rbd/devices/*; } || true")
		if err == nil && strings.TrimSpace(out) != "" {
			err = fmt.Errorf("there is %s", out)
		}
		return err
	})
	t.Logf("given up %s after the cut was healed", took)
	if got := w.shell(t, old, "cat /proc/sys/kernel/random/boot_id"); got != booted {
		t.Errorf("%s was booted anew", old)
	}
	w.redundant(t, name)
	w.removePod(t, "heir", name)
	w.pod(t, "home", old, "taken", "Filesystem", forever)
	w.same(t, "home", sum)
	w.removePod(t, "home", name)
}
