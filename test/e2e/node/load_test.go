//go:build e2e

package node

import (
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/escache/escache-csi/test/labtest"
)

// together does something for every i below n at once.
func together(n int, do func(i int)) {
	var all sync.WaitGroup
	for i := range n {
		all.Go(func() { do(i) })
	}
	all.Wait()
}

// TestManyPods starts 50 pods with a volume each on three hosts at once, and takes them away again
// at once.
func TestManyPods(t *testing.T) {
	w := open(t)
	defer w.cleanUp(t)
	count := labtest.Number(t, "ESCACHE_E2E_PODS", 50)
	var objects strings.Builder
	for i := range count {
		objects.WriteString(claimObject(fmt.Sprintf("many-%d", i), "e2e-node-ext4", "Filesystem", "128Mi"))
		objects.WriteString("---\n")
		objects.WriteString(podObject(t, fmt.Sprintf("many-%d", i), w.nodes[i%len(w.nodes)], fmt.Sprintf("many-%d", i), "Filesystem", forever))
		objects.WriteString("---\n")
	}
	ctx, cancel := context.WithTimeout(t.Context(), 2*manyTime+commandTime)
	defer cancel()
	begin := time.Now()
	w.apply(t, objects.String())
	// One program waits for all of them: fifty would take from the API server what the pods need of
	// it.
	out, err := w.try(ctx, "", "-n", namespace, "wait", "pod", "--all", "--for=condition=Ready", fmt.Sprintf("--timeout=%s", manyTime))
	if err != nil {
		t.Fatalf("%v\n%s\n%s", err, out, w.kubectl(t, "get", "cachevolumes", "-o", "wide"))
	}
	t.Logf("%d pods with a volume each: all ready after %s", count, time.Since(begin))
	took := w.readyAfter(t)
	if len(took) != count {
		t.Fatalf("%d pods are ready", len(took))
	}
	t.Logf("by their own records: first ready after %s, median %s, last %s", took[0], took[count/2], took[count-1])
	for i := range count {
		// Each writes to its own volume, and no two have the same one.
		w.in(t, fmt.Sprintf("many-%d", i), fmt.Sprintf("[ ! -e /data/own ]; echo %d > /data/own; sync /data/own", i))
	}
	for i := range count {
		if got := w.in(t, fmt.Sprintf("many-%d", i), "cat /data/own"); got != strconv.Itoa(i) {
			t.Errorf("many-%d reads %q", i, got)
		}
	}
	begin = time.Now()
	_, err = w.try(ctx, "", "-n", namespace, "delete", "pod,pvc", "--all", fmt.Sprintf("--timeout=%s", manyTime))
	check(t, err)
	t.Logf("all deleted after %s", time.Since(begin))
	w.nothingLeft(t)
	t.Logf("nothing is left after %s", time.Since(begin))
}

// readyAfter returns how long each pod took from its creation until it was ready, the shortest
// first; Kubernetes writes whole seconds.
func (w *world) readyAfter(t *testing.T) []time.Duration {
	t.Helper()
	var pods corev1.PodList
	check(t, json.Unmarshal([]byte(w.kubectl(t, "get", "pod", "-o", "json")), &pods))
	var took []time.Duration
	for _, pod := range pods.Items {
		for _, c := range pod.Status.Conditions {
			if c.Type == corev1.PodReady && c.Status == corev1.ConditionTrue {
				took = append(took, c.LastTransitionTime.Sub(pod.CreationTimestamp.Time))
			}
		}
	}
	slices.Sort(took)
	return took
}

// manyTime bounds bringing up or taking away all of them.
const manyTime = 15 * time.Minute

// traveller is a volume that goes around the hosts, and a pod with it.
type traveller struct {
	name, volume string
	moves        int
	there, away  []time.Duration
}

// TestMoves takes volumes around the three hosts, 100 moves in all, and counts what the hosts'
// services hold on to.
func TestMoves(t *testing.T) {
	w := open(t)
	defer w.cleanUp(t)
	all := make([]*traveller, len(w.nodes))
	for i := range all {
		name := fmt.Sprintf("round-%d", i)
		// Each begins on another host, and so a host mostly has one coming or leaving.
		all[i] = &traveller{name: name, volume: w.claim(t, name, "e2e-node-ext4", "Filesystem", "128Mi"), moves: i}
	}
	trips := (labtest.Number(t, "ESCACHE_E2E_MOVES", 100) + len(all) - 1) / len(all)
	settled := min(len(w.nodes), trips) // by then everything has been used on every host
	w.travel(t, all, settled)
	early := w.held(t)
	w.travel(t, all, trips-settled)
	late := w.held(t)
	var there, away []time.Duration
	for _, v := range all {
		there, away = append(there, v.there...), append(away, v.away...)
	}
	slices.Sort(there)
	slices.Sort(away)
	t.Logf("%d moves: to ready median %s, longest %s; gone and detached median %s, longest %s", len(there),
		there[len(there)/2], there[len(there)-1], away[len(away)/2], away[len(away)-1])
	for what, n := range late {
		t.Logf("%s: %d after %d moves, %d at the end", what, early[what], settled*len(all), n)
		if n > early[what]+heldMore {
			t.Errorf("%s: grew from %d to %d", what, early[what], n)
		}
	}
	w.kubectl(t, "delete", "pvc", "--all", "--timeout=120s")
	w.nothingLeft(t)
}

// travel takes all of them to so many further hosts, side by side. On each, the pod finds what the
// one before it wrote.
func (w *world) travel(t *testing.T, all []*traveller, trips int) {
	t.Helper()
	t.Run("travel", func(t *testing.T) {
		for _, v := range all {
			t.Run(v.name, func(t *testing.T) {
				t.Parallel()
				for range trips {
					w.move(t, v)
				}
			})
		}
	})
	if t.Failed() {
		t.FailNow()
	}
}

func (w *world) move(t *testing.T, v *traveller) {
	t.Helper()
	node := w.nodes[v.moves%len(w.nodes)]
	v.there = append(v.there, w.pod(t, v.name, node, v.name, "Filesystem", forever))
	if len(v.away) > 0 {
		if got := w.in(t, v.name, "cat /data/n"); got != strconv.Itoa(v.moves-1) {
			t.Fatalf("move %d to %s: the file says %q", len(v.there), node, got)
		}
	}
	w.in(t, v.name, fmt.Sprintf("echo %d > /data/n; sync /data/n", v.moves))
	v.away = append(v.away, w.removePod(t, v.name, v.volume))
	v.moves++
}

// heldMore is how many files or threads more may be open by chance.
const heldMore = 6

// held counts open files and threads of the services on each host, and mounts.
func (w *world) held(t *testing.T) map[string]int {
	t.Helper()
	counts := map[string]int{}
	for _, node := range w.nodes {
		out := w.shell(t, node, `for s in csi-node escached; do p=$(cat /run/lab/services/$s.pid)
echo $s-files $(ls /proc/$p/fd | wc -l); echo $s-threads $(ls /proc/$p/task | wc -l); done; echo mounts $(wc -l < /proc/mounts)`)
		for line := range strings.Lines(out) {
			var what string
			var n int
			if _, err := fmt.Sscan(line, &what, &n); err != nil {
				t.Fatalf("%q: %v", line, err)
			}
			counts[node+" "+what] = n
		}
	}
	return counts
}
