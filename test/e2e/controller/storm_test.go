//go:build e2e

package controller

import (
	"context"
	"encoding/json"
	"fmt"
	"os/exec"
	"strings"
	"sync"
	"testing"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

func oneName(t *testing.T, w *world) {
	d := leader(t, time.Minute, w.launch(t, "a", soon...))
	var mu sync.Mutex
	got := map[codes.Code]int{}
	inParallel(100, 100, func(int) {
		err := d.create(t.Context(), "pvc-one")
		mu.Lock()
		defer mu.Unlock()
		got[status.Code(err)]++
	})
	if got[codes.OK] == 0 || got[codes.OK]+got[codes.Aborted] != 100 {
		t.Errorf("answers: %v", got)
	}
	t.Logf("answers: %v", got)
	if images := w.images(t); len(images) != 1 || len(w.volumes(t)) != 1 {
		t.Errorf("%d records and images %v", len(w.volumes(t)), images)
	}
	until(t, func() error { return d.delete(t.Context(), "pvc-one") })
}

// storm creates and deletes at the same time. Whoever repeats his call until it succeeds has what
// he wanted.
func storm(t *testing.T, w *world) {
	d := leader(t, time.Minute, w.launch(t, "a", soon...))
	inParallel(25, 100, func(i int) {
		name := fmt.Sprintf("pvc-%d", i%30) // names meet each other
		until(t, func() error { return d.create(t.Context(), name) })
		until(t, func() error { return d.delete(t.Context(), name) })
	})
	for _, v := range w.volumes(t) {
		until(t, func() error { return d.delete(t.Context(), v.Name) })
	}
}

func spread(t *testing.T, w *world) {
	d := leader(t, time.Minute, w.launch(t, "a", soon...))
	const volumes = 36
	inParallel(12, volumes, func(i int) { until(t, func() error { return d.create(t.Context(), fmt.Sprintf("pvc-%d", i)) }) })
	groups, replicas, primaries := map[string]int{}, map[string]int{}, map[string]int{}
	ports := map[string]bool{}
	for _, v := range w.volumes(t) {
		groups[v.Spec.Group]++
		primaries[v.Spec.Replicas[0]]++
		for _, n := range v.Spec.Replicas {
			replicas[n]++
		}
		ports[fmt.Sprint(v.Spec.Group, v.Spec.Port)] = true
	}
	for what, counts := range map[string]map[string]int{"groups": groups, "replicas": replicas, "primaries": primaries} {
		lo, hi := volumes, 0
		for _, n := range counts {
			lo, hi = min(lo, n), max(hi, n)
		}
		if hi-lo > 1 || len(counts) != map[bool]int{true: 2, false: 6}[what == "groups"] {
			t.Errorf("%s: %v", what, counts)
		}
	}
	if len(ports) != volumes {
		t.Errorf("%d different ports for %d volumes", len(ports), volumes)
	}
	inParallel(12, volumes, func(i int) { until(t, func() error { return d.delete(t.Context(), fmt.Sprintf("pvc-%d", i)) }) })
}

// until repeats a call as a sidecar does, for two minutes at most.
func until(t *testing.T, call func() error) {
	t.Helper()
	var err error
	for end := time.Now().Add(2 * time.Minute); time.Now().Before(end); time.Sleep(20 * time.Millisecond) {
		if err = call(); err == nil {
			return
		}
		switch status.Code(err) {
		case codes.Aborted, codes.Unavailable, codes.DeadlineExceeded:
		default:
			t.Errorf("repeating does not help: %v", err)
			return
		}
	}
	t.Errorf("still failing: %v", err)
}

// inParallel runs n calls, at most so many at once.
func inParallel(atOnce, n int, call func(i int)) {
	var wait sync.WaitGroup
	slots := make(chan struct{}, atOnce)
	for i := range n {
		slots <- struct{}{}
		wait.Go(func() {
			defer func() { <-slots }()
			call(i)
		})
	}
	wait.Wait()
}

// groupStatus shows that a NodeGroup's status says what is wrong with its hosts.
func groupStatus(t *testing.T, w *world) {
	leader(t, time.Minute, w.launch(t, "a", soon...))
	says := func(group, text string) {
		t.Helper()
		seen := ""
		eventually(t, 30*time.Second, func() bool {
			told, err := json.Marshal(w.group(t, group).Status)
			must(t, err)
			seen = string(told)
			return strings.Contains(seen, text)
		}, func() string { return "status does not say " + text + ":\n" + seen })
	}
	says("g1", `"ready":"3/3"`)
	w.fleet.Hosts["n1"].Stop()
	says("g1", "escached on node n1 does not answer")
	w.fleet.Hosts["n1"].Restart(t)
	says("g1", `"ready":"3/3"`)
	w.fleet.Hosts["n2"].Sicken("the NVMe is gone")
	says("g1", "the NVMe is gone")
	w.fleet.Hosts["n3"].Sicken("no DRBD")
	says("g1", "1 of 3 members are ready")
	w.fleet.Hosts["n2"].Sicken("")
	w.fleet.Hosts["n3"].Sicken("")
	says("g1", `"ready":"3/3"`)
	w.kubectl(t, `{"apiVersion":"escache.io/v1alpha1","kind":"NodeGroup","metadata":{"name":"late"},"spec":{"nodes":["n1","n88","n99"]}}`,
		"apply", "-f", "-")
	says("late", "node n1 belongs to the older group g1")
	says("late", "Kubernetes has no node n88")
	says("g1", `"ready":"3/3"`)
	for _, reason := range []string{"EscachedUnreachable", "Unhealthy", "MemberReady", "ClaimedByAnotherGroup"} {
		w.saysInEvent(t, reason)
	}
	w.kubectl(t, "", "delete", "nodegroup", "late")
}

// saysInEvent waits for an Event with this reason. Events are sent on their own, after what they tell of.
func (w *world) saysInEvent(t *testing.T, reason string) {
	t.Helper()
	var events string
	eventually(t, time.Minute, func() bool {
		events = w.kubectl(t, "", "get", "events", "-A")
		return strings.Contains(events, reason)
	}, func() string { return "no Event " + reason + ":\n" + events })
}

// orphanCommand shows that orphans are found, and removed only when named.
func orphanCommand(t *testing.T, w *world) {
	d := leader(t, time.Minute, w.launch(t, "a", soon...))
	until(t, func() error { return d.create(t.Context(), "pvc-kept") })
	w.rbd(t, "create", "--size", "16M", "rbd/escache-lost")
	w.rbd(t, "create", "--size", "16M", "rbd/escache-unmarked")
	system := w.kubectl(t, "", "get", "namespace", "kube-system", "-o", "jsonpath={.metadata.uid}")
	w.rbd(t, "image-meta", "set", "rbd/escache-lost", "escache.io/kubernetes-cluster", system)
	w.rbd(t, "create", "--size", "16M", "rbd/of-somebody-else")
	out, err := w.orphans()
	if err != nil || !strings.Contains(out, "lab/rbd/escache-lost") || !strings.Contains(out, "unmarked image  lab/rbd/escache-unmarked") ||
		strings.Contains(out, "pvc-kept") || strings.Contains(out, "somebody") {
		t.Errorf("%v\n%s", err, out)
	}
	if mark := w.rbd(t, "image-meta", "get", "rbd/escache-pvc-kept", "escache.io/kubernetes-cluster"); strings.TrimSpace(mark) != system {
		t.Errorf("the driver's own image is marked %q, not %q", mark, system)
	}
	for _, name := range []string{"lab/rbd/of-somebody-else", "lab/rbd/escache-pvc-kept", "lab/rbd/escache-unmarked"} {
		if out, err := w.orphans("--remove-image", name); err == nil {
			t.Errorf("%s was removed: %s", name, out)
		}
	}
	// Somebody has used the image, or nothing says that nobody has.
	note := func(epoch int) {
		w.rbd(t, "image-meta", "set", "rbd/escache-lost", "escache.io/record",
			fmt.Sprintf(`{"version":1,"volume":"lost","claim":"shop/data","epoch":%d,"authority":"Cache","spec":{"replicas":["n1","n2"]}}`, epoch))
	}
	for _, why := range []string{"not known whether it was used", "used until epoch 2, and the caches on n1 and n2"} {
		if out, err := w.orphans("--remove-image", "lab/rbd/escache-lost"); err == nil || !strings.Contains(out, why) {
			t.Errorf("removed, or refused for another reason than %q: %v: %s", why, err, out)
		}
		note(2)
	}
	if out, err := w.orphans(); err != nil || !strings.Contains(out, "shop/data") || !strings.Contains(out, "used until epoch 2") {
		t.Errorf("%v\n%s", err, out)
	}
	note(0)
	if out, err := w.orphans("--remove-image", "lab/rbd/escache-lost"); err != nil {
		t.Errorf("%v: %s", err, out)
	}
	if out, err := w.orphans("--allow-unmarked", "--remove-image", "lab/rbd/escache-unmarked"); err != nil {
		t.Errorf("%v: %s", err, out)
	}
	until(t, func() error { return d.delete(context.Background(), "pvc-kept") })
	w.rbd(t, "rm", "rbd/of-somebody-else")
	// What a command moved to the trash nobody watches yet; the next leader does.
	d.bury()
	leader(t, time.Minute, w.launch(t, "b", soon...))
}

// orphans runs the subcommand.
func (w *world) orphans(args ...string) (string, error) {
	all := append([]string{"orphans", "--kubeconfig", w.account.Kubeconfig, "--ceph-dir", w.cephDir}, args...)
	out, err := exec.Command(w.binary, all...).CombinedOutput()
	return string(out), err
}
