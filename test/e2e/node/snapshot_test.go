//go:build e2e

package node

import (
	"fmt"
	"os/exec"
	"strconv"
	"strings"
	"testing"

	"github.com/escache/escache-csi/test/labtest"
)

// inTurn writes a number to one file and then to another, each with fsync, and goes on with the
// next number: at any moment the first file is at most one ahead of the second. A write that fails
// ends the pod. It rests in between: starting programs is most of what an emulated processor has to
// do here.
const inTurn = `i=0; while true; do i=$((i+1)); for f in a b; do printf '%09d' $i | dd of=/data/$f conv=notrunc,fsync 2>/dev/null || exit 1; done
sleep 0.3; done`

// snapshots of a volume under constant writes have all that was acknowledged before they were asked
// for, and nothing out of order; volumes made of them live on when snapshot and source are gone.
func snapshots(t *testing.T, w *world) {
	for _, kind := range []string{"ext4", "xfs"} {
		t.Run(kind, func(t *testing.T) { w.snapshotsOf(t, kind) })
	}
}

func (w *world) snapshotsOf(t *testing.T, kind string) {
	steps := labtest.NewTimeline()
	name := "snap-" + kind
	class := "e2e-node-" + kind
	w.apply(t, `
apiVersion: snapshot.storage.k8s.io/v1
kind: VolumeSnapshotClass
metadata: {name: e2e-node}
driver: csi.escache.io
deletionPolicy: Delete
`)
	volume := w.claim(t, name, class, "Filesystem", "512Mi")
	node := w.nodes[0]
	w.pod(t, name, node, name, "Filesystem", inTurn)
	w.turnsGoOn(t, name)
	steps.Mark("a pod writes")

	var before [2]int
	taken := []string{name + "-1", name + "-2"}
	for i, snapshot := range taken {
		_, before[i] = w.turns(t, name)
		w.apply(t, fmt.Sprintf(`
apiVersion: snapshot.storage.k8s.io/v1
kind: VolumeSnapshot
metadata: {name: %s, namespace: %s}
spec: {volumeSnapshotClassName: e2e-node, source: {persistentVolumeClaimName: %s}}
`, snapshot, namespace, name))
		w.kubectl(t, "wait", "--for=jsonpath={.status.readyToUse}=true", "volumesnapshot/"+snapshot, "--timeout=120s")
		steps.Mark("snapshot " + snapshot + " is ready")
		w.turnsGoOn(t, name)
	}
	after, _ := w.turns(t, name)

	clones := map[string]string{}
	for i, snapshot := range taken {
		w.apply(t, fmt.Sprintf(`
apiVersion: v1
kind: PersistentVolumeClaim
metadata: {name: %[1]s, namespace: %[2]s}
spec:
  accessModes: [ReadWriteOnce]
  storageClassName: %[3]s
  resources: {requests: {storage: 1Gi}}
  dataSource: {apiGroup: snapshot.storage.k8s.io, kind: VolumeSnapshot, name: %[1]s}
`, snapshot, namespace, class))
		w.pod(t, snapshot, node, snapshot, "Filesystem", forever) // on the source's host: the filesystems have one UUID
		a, b := w.turns(t, snapshot)
		if a != b && a != b+1 || b < before[i] || a > after {
			t.Errorf("snapshot %d has %d and %d, of a source that had %d when it was asked for and %d in the end", i+1, a, b, before[i], after)
		}
		size, err := strconv.Atoi(w.in(t, snapshot, "df -kP /data | tail -n 1 | awk '{print $2}'"))
		check(t, err)
		if size < 900<<10 {
			t.Errorf("a filesystem of %d KiB in a volume of 1 GiB", size)
		}
		steps.Mark(fmt.Sprintf("a pod has what was in snapshot %d: %d and %d", i+1, a, b))
		clones[snapshot] = w.volumeOf(t, snapshot)
	}

	// The snapshots go while the source is in use and they have clones; the clones keep what they
	// have.
	w.kubectl(t, "delete", "volumesnapshot", taken[0], taken[1], "--timeout=120s")
	if left := w.rbd(t, "snap", "ls", "rbd/escache-"+volume); left != "" {
		t.Errorf("the image has snapshots: %s", left)
	}
	w.turnsGoOn(t, name)
	w.removePod(t, name, volume)
	w.kubectl(t, "delete", "pvc", name, "--timeout=120s")
	steps.Mark("snapshots and source deleted")
	for _, snapshot := range taken {
		a, b := w.turns(t, snapshot)
		w.removePod(t, snapshot, clones[snapshot])
		w.pod(t, snapshot+"-moved", w.nodes[1], snapshot, "Filesystem", forever)
		if nowA, nowB := w.turns(t, snapshot+"-moved"); nowA != a || nowB != b {
			t.Errorf("%d and %d on another host, %d and %d before", nowA, nowB, a, b)
		}
		w.removePod(t, snapshot+"-moved", clones[snapshot])
		w.kubectl(t, "delete", "pvc", snapshot, "--timeout=120s")
	}
	w.nothingLeft(t)
	steps.Mark("clones read on another host, deleted, and nothing left")
	steps.Print(t)
}

// turns are the two numbers.
func (w *world) turns(t *testing.T, pod string) (a, b int) {
	t.Helper()
	// The second first: while it is read, the first one may go on, but never fall behind.
	out := w.in(t, pod, "cat /data/b; echo; cat /data/a")
	second, first, _ := strings.Cut(out, "\n")
	b, err := strconv.Atoi(second)
	check(t, err)
	a, err = strconv.Atoi(first)
	check(t, err)
	return a, b
}

func (w *world) turnsGoOn(t *testing.T, pod string) {
	t.Helper()
	w.in(t, pod, `until [ -s /data/b ]; do sleep 0.1; done; was=$(cat /data/b); until [ "$(cat /data/b)" != "$was" ]; do sleep 0.1; done`)
}

func (w *world) rbd(t *testing.T, args ...string) string {
	t.Helper()
	out, err := labtest.Output(exec.CommandContext(t.Context(), "rbd", args...))
	check(t, err)
	return strings.TrimSpace(out)
}
