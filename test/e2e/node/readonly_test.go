//go:build e2e

package node

import (
	"context"
	"fmt"
	"strings"
	"testing"

	"github.com/escache/escache-csi/test/labtest"
)

const (
	// synced writes files, each with fsync, and goes on with that: the filesystem is never unmounted.
	synced = `i=0; while true; do i=$((i+1)); head -c 65536 /dev/urandom | dd of=/data/f$i conv=fsync 2>/dev/null || exit 1
echo $i > /tmp/synced; sleep 0.3; done`
	// fileSums prints the checksums of the first files.
	fileSums = "cd /data && sha256sum f1 f2 f3 f4 f5 f6 f7 f8"
)

// readOnlyVolumes are what a backup tool makes: a snapshot of a volume under writes, a read-only volume of
// it, and pods that read it on two hosts at once, one of them the host of the volume itself.
func readOnlyVolumes(t *testing.T, w *world) {
	for _, kind := range []string{"ext4", "xfs"} {
		t.Run(kind, func(t *testing.T) { w.readOnlyOf(t, kind) })
	}
}

func (w *world) readOnlyOf(t *testing.T, kind string) {
	steps := labtest.NewTimeline()
	name, read := "source-"+kind, "read-"+kind
	class := "e2e-node-" + kind
	volume, want := w.snapshotUnderWrites(t, name, class, read)
	steps.Mark("a snapshot is taken under writes")

	w.apply(t, readOnlyClaim(read, class))
	pods := []string{read + "-1", read + "-2"}
	for i, pod := range pods {
		w.apply(t, podObject(t, pod, w.nodes[i], read, "Filesystem", forever))
	}
	for _, pod := range pods {
		w.running(t, pod)
	}
	id := w.volumeOf(t, read)
	for _, pod := range pods {
		if got := w.in(t, pod, fileSums); got != want {
			t.Errorf("%s has\n%s\nand the source had\n%s", pod, got, want)
		}
		if got := w.in(t, pod, "touch /data/new 2>&1 || true"); !strings.Contains(got, "Read-only") {
			t.Errorf("%s can write: %q", pod, got)
		}
	}
	if on := w.readers(t, id); on != w.nodes[0]+" "+w.nodes[1] {
		t.Errorf("on record it is on %q", on)
	}
	steps.Mark("pods on two hosts have read it at the same time")

	w.kubectl(t, "delete", "pod", pods[0], "--wait=true", "--timeout=240s")
	labtest.WaitForCommand(t, "the first host has given it back", podTime, func(ctx context.Context) error {
		on, err := w.try(ctx, "", "get", "readonlyvolume", id, "-o", "jsonpath={.status.copies[*].node}")
		if err == nil && on != w.nodes[1] {
			err = fmt.Errorf("it is on %q", on)
		}
		return err
	})
	if got := w.in(t, pods[1], fileSums); got != want {
		t.Errorf("the second host has\n%s\nafter the first one has given it back", got)
	}
	w.kubectl(t, "delete", "pod", pods[1], "--wait=true", "--timeout=240s")
	w.kubectl(t, "delete", "pvc", read, "--timeout=240s")
	w.kubectl(t, "delete", "volumesnapshot", read, "--timeout=240s")
	w.removePod(t, name, volume)
	w.kubectl(t, "delete", "pvc", name, "--timeout=120s")
	w.nothingLeft(t)
	steps.Mark("all deleted, and nothing left")
	steps.Print(t)
}

// readers are the nodes that have a read-only volume.
func (w *world) readers(t *testing.T, id string) string {
	t.Helper()
	return w.kubectl(t, "get", "readonlyvolume", id, "-o", "jsonpath={.status.copies[*].node}")
}

// snapshotUnderWrites makes a claim, has a pod on the first host write to it all the time, and takes a snapshot. It returns
// the volume's name and the checksums of files that the snapshot has.
func (w *world) snapshotUnderWrites(t *testing.T, claim, class, snapshot string) (volume, sums string) {
	t.Helper()
	w.apply(t, `
apiVersion: snapshot.storage.k8s.io/v1
kind: VolumeSnapshotClass
metadata: {name: e2e-node}
driver: csi.escache.io
deletionPolicy: Delete
`)
	volume = w.claim(t, claim, class, "Filesystem", "512Mi")
	w.pod(t, claim, w.nodes[0], claim, "Filesystem", synced)
	w.in(t, claim, `until [ -s /tmp/synced ] && [ "$(cat /tmp/synced)" -ge 8 ]; do sleep 0.1; done`)
	sums = w.in(t, claim, fileSums)
	w.apply(t, fmt.Sprintf(`
apiVersion: snapshot.storage.k8s.io/v1
kind: VolumeSnapshot
metadata: {name: %s, namespace: %s}
spec: {volumeSnapshotClassName: e2e-node, source: {persistentVolumeClaimName: %s}}
`, snapshot, namespace, claim))
	w.kubectl(t, "wait", "--for=jsonpath={.status.readyToUse}=true", "volumesnapshot/"+snapshot, "--timeout=120s")
	return volume, sums
}

// readOnlyClaim asks for a read-only volume of the snapshot with the same name.
func readOnlyClaim(name, class string) string {
	return fmt.Sprintf(`
apiVersion: v1
kind: PersistentVolumeClaim
metadata: {name: %[1]s, namespace: %[2]s}
spec:
  accessModes: [ReadOnlyMany]
  storageClassName: %[3]s
  resources: {requests: {storage: 512Mi}}
  dataSource: {apiGroup: snapshot.storage.k8s.io, kind: VolumeSnapshot, name: %[1]s}
`, name, namespace, class)
}

// dataMover is a pod as Velero's: it reads the read-only volume of a snapshot, and copies its files into a volume of its
// own. Then all is deleted but the copy.
func dataMover(t *testing.T, w *world) {
	const class = "e2e-node-ext4"
	volume, want := w.snapshotUnderWrites(t, "backed-up", class, "to-move")
	w.apply(t, readOnlyClaim("to-move", class))
	store := w.claim(t, "store", class, "Filesystem", "512Mi")
	w.apply(t, labtest.Pod{
		Name: "mover", Namespace: namespace, Host: w.nodes[1], Claim: "store", More: []string{"to-move"}, Script: forever, HostNetwork: true,
	}.Object(t))
	w.running(t, "mover")
	if got := w.in(t, "mover", "cp /to-move/f[1-8] /data/ && sync && "+fileSums); got != want {
		t.Errorf("the mover has copied\n%s\nand the source had\n%s", got, want)
	}
	w.removePod(t, "mover", store)
	w.kubectl(t, "delete", "pvc", "to-move", "--timeout=240s")
	w.kubectl(t, "delete", "volumesnapshot", "to-move", "--timeout=240s")
	w.removePod(t, "backed-up", volume)
	w.kubectl(t, "delete", "pvc", "backed-up", "--timeout=120s")
	w.pod(t, "restored", w.nodes[2], "store", "Filesystem", forever)
	if got := w.in(t, "restored", fileSums); got != want {
		t.Errorf("the copy has\n%s\nand the source had\n%s", got, want)
	}
	w.removePod(t, "restored", store)
	w.kubectl(t, "delete", "pvc", "store", "--timeout=120s")
	w.nothingLeft(t)
}
