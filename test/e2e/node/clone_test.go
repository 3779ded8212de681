//go:build e2e

package node

import (
	"fmt"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/escache/escache-csi/internal/controller/volumes"
	"github.com/escache/escache-csi/test/labtest"
)

// inTurnTimed is inTurn that also keeps the longest time from one number to the next in /tmp/pause, in hundredths of
// a second. Whoever removes that file begins anew.
const inTurnTimed = `now() { read t _ </proc/uptime; echo ${t%.*}${t#*.}; }
i=0; last=$(now)
while true; do i=$((i+1)); for f in a b; do printf '%09d' $i | dd of=/data/$f conv=notrunc,fsync 2>/dev/null || exit 1; done
t=$(now); gap=$((t-last)); last=$t; max=0; [ -s /tmp/pause ] && read max </tmp/pause
[ $gap -le $max ] || echo $gap >/tmp/pause; sleep 0.1; done`

// clones are made of a volume under constant fsync writes. Each is the volume at one moment, and whatever is deleted
// first, nothing is left in the end.
func clones(t *testing.T, w *world) {
	// The volumes c1 and c2 are clones of the source, and c3 is one of c1.
	for _, c := range []struct{ kind, order string }{{"ext4", "source c1 c2 c3"}, {"ext4", "c3 c2 c1 source"}, {"xfs", "c1 source c3 c2"}} {
		t.Run(c.kind+", deleted in the order "+c.order, func(t *testing.T) { w.clonesOf(t, c.kind, strings.Fields(c.order)) })
	}
}

func (w *world) clonesOf(t *testing.T, kind string, order []string) {
	steps := labtest.NewTimeline()
	class := "e2e-node-" + kind
	ids := map[string]string{"source": w.claim(t, "source", class, "Filesystem", "512Mi")}
	w.pod(t, "source", w.nodes[0], "source", "Filesystem", inTurnTimed)
	w.turnsGoOn(t, "source")
	usual := w.longestPause(t, func() { time.Sleep(20 * time.Second) })
	steps.Mark("a pod writes")

	before := map[string]int{}
	paused := w.longestPause(t, func() {
		for _, name := range []string{"c1", "c2"} {
			_, before[name] = w.turns(t, "source")
			ids[name] = w.cloneOf(t, name, "source", class)
			steps.Mark("clone " + name + " is made")
			w.turnsGoOn(t, "source")
		}
	})
	after, _ := w.turns(t, "source")
	t.Logf("the writer's longest time from one pair of fsyncs to the next is %s, and %s while its volume is cloned twice; a hold is bounded by %s",
		usual, paused, volumes.HoldTime)
	if paused > volumes.HoldTime {
		t.Errorf("the writer rested for %s, longer than a hold may be", paused)
	}
	ids["c3"] = w.cloneOf(t, "c3", "c1", class)
	before["c3"] = before["c1"]
	steps.Mark("clone c3 is made of clone c1")

	has := map[string]string{}
	for _, name := range []string{"c1", "c2", "c3"} {
		w.pod(t, name, w.nodes[0], name, "Filesystem", forever) // on the source's host: the filesystems have one UUID
		a, b := w.turns(t, name)
		if a != b && a != b+1 || b < before[name] || a > after {
			t.Errorf("clone %s has %d and %d, of a source that had %d when it was asked for and %d in the end", name, a, b, before[name], after)
		}
		has[name] = fmt.Sprint(a, b)
	}
	if has["c3"] != has["c1"] {
		t.Errorf("the clone of a clone has %s, and that has %s", has["c3"], has["c1"])
	}
	steps.Mark(fmt.Sprintf("pods have read %s, %s and %s", has["c1"], has["c2"], has["c3"]))

	left := []string{"c1", "c2", "c3"}
	for _, name := range order {
		w.removePod(t, name, ids[name])
		w.kubectl(t, "delete", "pvc", name, "--timeout=120s")
		for n, other := range left {
			if other == name {
				left = append(left[:n], left[n+1:]...)
				break
			}
		}
		for _, other := range left {
			if a, b := w.turns(t, other); fmt.Sprint(a, b) != has[other] {
				t.Errorf("clone %s has %d and %d after %s was deleted, and had %s", other, a, b, name, has[other])
			}
		}
	}
	w.nothingLeft(t)
	steps.Mark("all deleted, and nothing left")
	steps.Print(t)
}

// cloneOf makes a claim of another one, and returns its volume's name once it is bound.
func (w *world) cloneOf(t *testing.T, name, source, class string) string {
	t.Helper()
	w.apply(t, fmt.Sprintf(`
apiVersion: v1
kind: PersistentVolumeClaim
metadata: {name: %s, namespace: %s}
spec:
  accessModes: [ReadWriteOnce]
  storageClassName: %s
  resources: {requests: {storage: 512Mi}}
  dataSource: {kind: PersistentVolumeClaim, name: %s}
`, name, namespace, class, source))
	w.kubectl(t, "wait", "--for=jsonpath={.status.phase}=Bound", "pvc/"+name, "--timeout=240s")
	return w.volumeOf(t, name)
}

// longestPause is the longest time from one number to the next of the source's writer during do.
func (w *world) longestPause(t *testing.T, do func()) time.Duration {
	t.Helper()
	w.in(t, "source", "rm -f /tmp/pause; until [ -s /tmp/pause ]; do sleep 0.1; done")
	do()
	hundredths, err := strconv.Atoi(w.in(t, "source", "cat /tmp/pause"))
	check(t, err)
	return time.Duration(hundredths) * 10 * time.Millisecond
}
