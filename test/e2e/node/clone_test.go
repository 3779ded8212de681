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
	// The source is s. The volumes x and y are clones of it, and z is one of x.
	for _, c := range []struct{ kind, order string }{{"ext4", "s x y z"}, {"ext4", "z y x s"}, {"xfs", "x s z y"}} {
		t.Run(c.kind+", deleted in the order "+c.order, func(t *testing.T) { w.clonesOf(t, c.kind, strings.Fields(c.order)) })
	}
}

func (w *world) clonesOf(t *testing.T, kind string, order []string) {
	steps := labtest.NewTimeline()
	class := "e2e-node-" + kind
	ids := map[string]string{"s": w.claim(t, "s", class, "Filesystem", "512Mi")}
	w.pod(t, "s", w.nodes[0], "s", "Filesystem", inTurnTimed)
	w.turnsGoOn(t, "s")
	usual := w.longestPause(t, func() { time.Sleep(20 * time.Second) })
	steps.Mark("a pod writes")

	before := map[string]int{}
	paused := w.longestPause(t, func() {
		for _, name := range []string{"x", "y"} {
			_, before[name] = w.turns(t, "s")
			ids[name] = w.cloneOf(t, name, "s", class)
			steps.Mark("clone " + name + " is made")
			w.turnsGoOn(t, "s")
		}
	})
	after, _ := w.turns(t, "s")
	t.Logf("the writer's longest time from one pair of fsyncs to the next is %s, and %s while its volume is cloned twice; a hold is bounded by %s",
		usual, paused, volumes.HoldTime)
	if paused > volumes.HoldTime {
		t.Errorf("the writer rested for %s, longer than a hold may be", paused)
	}
	ids["z"] = w.cloneOf(t, "z", "x", class)
	before["z"] = before["x"]
	steps.Mark("clone z is made of clone x")

	has := map[string]string{}
	for _, name := range []string{"x", "y", "z"} {
		w.pod(t, name, w.nodes[0], name, "Filesystem", forever) // on the source's host: the filesystems have one UUID
		a, b := w.turns(t, name)
		if a != b && a != b+1 || b < before[name] || a > after {
			t.Errorf("clone %s has %d and %d, of a source that had %d when it was asked for and %d in the end", name, a, b, before[name], after)
		}
		has[name] = fmt.Sprint(a, b)
	}
	if has["z"] != has["x"] {
		t.Errorf("the clone of a clone has %s, and that has %s", has["z"], has["x"])
	}
	steps.Mark(fmt.Sprintf("pods have read %s, %s and %s", has["x"], has["y"], has["z"]))

	left := []string{"x", "y", "z"}
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

// longestPause is the longest time from one number to the next of the writer s during do.
func (w *world) longestPause(t *testing.T, do func()) time.Duration {
	t.Helper()
	w.in(t, "s", "rm -f /tmp/pause; until [ -s /tmp/pause ]; do sleep 0.1; done")
	do()
	hundredths, err := strconv.Atoi(w.in(t, "s", "cat /tmp/pause"))
	check(t, err)
	return time.Duration(hundredths) * 10 * time.Millisecond
}
