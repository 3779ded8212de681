//go:build e2e

package node

import (
	"context"
	"fmt"
	"os/exec"
	"strconv"
	"strings"
	"testing"

	"github.com/escache/escache-csi/api/escache"
	"github.com/escache/escache-csi/test/labtest"
)

const (
	// groupTries is how many group snapshots are taken while the writer goes on.
	groupTries = 20

	// fixedOrder writes a number to the first device, then to the second, then to the third, each with
	// fsync, and goes on with the next number. A write that fails ends the pod.
	fixedOrder = `i=0; while true; do i=$((i+1)); for d in data group-2 group-3; do
printf '%09d' $i | dd of=/dev/$d conv=notrunc,fsync 2>/dev/null || exit 1; done; sleep 0.1; done`
)

// groupSnapshots are of volumes with the engine of this run.
func groupSnapshots(t *testing.T, w *world) {
	w.groupOf(t, "e2e-node-ext4", "e2e-node-ext4", "e2e-node-ext4")
}

// mixedGroupSnapshots are of volumes of both cache engines. I/O of the engine log goes on in a hold without a pause.
func mixedGroupSnapshots(t *testing.T, w *world) {
	own := "cacheEngine: " + labtest.ClassEngine()
	var classes []string
	for _, engine := range []escache.Engine{escache.EngineLog, escache.EngineWritecache} {
		name := "group-" + string(engine)
		w.apply(t, strings.Replace(w.class(name, "Immediate", "64Mi", "ext4"), own, "cacheEngine: "+string(engine), 1))
		classes = append(classes, "e2e-node-"+name)
	}
	w.groupOf(t, classes[0], classes[1], classes[0])
	w.kubectl(t, append([]string{"delete", "storageclass"}, classes...)...)
}

// groupOf takes group snapshots of three volumes of these classes, to which one pod writes. At any moment the
// second device is at most one number behind the first, and the third at most one behind both; no snapshot that is
// of another moment than the others of its group keeps to that for long.
func (w *world) groupOf(t *testing.T, classes ...string) {
	steps := labtest.NewTimeline()
	w.apply(t, `
apiVersion: groupsnapshot.storage.k8s.io/v1
kind: VolumeGroupSnapshotClass
metadata: {name: e2e-node}
driver: csi.escache.io
deletionPolicy: Delete
parameters: {maxSeconds: "40"}
`)
	claims := []string{"group-1", "group-2", "group-3"}
	volumes := map[string]string{}
	for i, claim := range claims {
		volumes[claim] = w.claim(t, claim, classes[i], "Block", "128Mi")
		w.kubectl(t, "label", "pvc", claim, "app=group")
	}
	w.apply(t, labtest.Pod{
		Name: "group", Namespace: namespace, Host: w.nodes[0], Claim: claims[0], More: claims[1:], Script: fixedOrder, Block: true, HostNetwork: true,
	}.Object(t))
	w.running(t, "group")
	w.in(t, "group", "until head -c 9 /dev/group-3 | grep -q '[1-9]'; do sleep 0.1; done")
	steps.Mark("a pod writes")

	var last [3]int
	for n := range groupTries {
		name := fmt.Sprintf("group-%d", n+1)
		before := w.number(t, w.in(t, "group", "head -c 9 /dev/group-3"))
		w.apply(t, fmt.Sprintf(`
apiVersion: groupsnapshot.storage.k8s.io/v1
kind: VolumeGroupSnapshot
metadata: {name: %s, namespace: %s}
spec: {volumeGroupSnapshotClassName: e2e-node, source: {selector: {matchLabels: {app: group}}}}
`, name, namespace))
		w.kubectl(t, "wait", "--for=jsonpath={.status.readyToUse}=true", "volumegroupsnapshot/"+name, "--timeout=180s")
		for i, claim := range claims {
			last[i] = w.number(t, w.start(t, w.memberOf(t, volumes[claim])))
		}
		t.Logf("%s: %v, and %d was written before it", name, last, before)
		if first, second, third := last[0], last[1], last[2]; first < second || second < third || first > third+1 || third < before {
			t.Errorf("%s has %v, which was at no moment after %d was written", name, last, before)
		}
		if n < groupTries-1 {
			w.kubectl(t, "delete", "volumegroupsnapshot", name, "--timeout=120s")
			w.withoutSnapshots(t)
		}
	}
	w.in(t, "group", "n=$(head -c 9 /dev/group-3); until [ $(head -c 9 /dev/group-3) != $n ]; do sleep 0.1; done")
	steps.Mark(fmt.Sprintf("%d group snapshots taken and read in Ceph", groupTries))

	restored := w.restoreGroup(t, claims, volumes)
	steps.Mark("volumes of the last one read in a pod")
	for i, claim := range restored {
		device := "data"
		if i > 0 {
			device = claim
		}
		if got := w.number(t, w.in(t, "restored", "head -c 9 /dev/"+device)); got != last[i] {
			t.Errorf("claim %s has %d, and the snapshot %d", claim, got, last[i])
		}
	}
	w.removePod(t, "restored", w.volumeOf(t, restored[0]))
	w.removePod(t, "group", volumes[claims[0]])
	w.kubectl(t, append([]string{"delete", "pvc", "--timeout=240s"}, restored...)...)
	w.kubectl(t, "delete", "volumegroupsnapshot", "--all", "--timeout=120s")
	w.withoutSnapshots(t)
	w.kubectl(t, append([]string{"delete", "pvc", "--timeout=240s"}, claims...)...)
	w.nothingLeft(t)
	steps.Mark("all deleted, and nothing left")
	steps.Print(t)
}

// withoutSnapshots waits until no snapshot is on record.
func (w *world) withoutSnapshots(t *testing.T) {
	t.Helper()
	labtest.WaitForCommand(t, "no snapshot is on record", commandTime, func(ctx context.Context) error {
		left, err := w.try(ctx, "", "get", "cachesnapshots", "-o", "name")
		if err == nil && left != "" {
			err = fmt.Errorf("left: %s", left)
		}
		return err
	})
}

// member is a snapshot of the only group there is.
type member struct{ id, image, snapshot string }

func (w *world) memberOf(t *testing.T, volume string) member {
	t.Helper()
	out := w.kubectl(t, "get", "cachesnapshots", "-o",
		`jsonpath={range .items[?(@.spec.volume=="`+volume+`")]}{.metadata.name} {.spec.image} {.spec.snapshot}{"\n"}{end}`)
	fields := strings.Fields(out)
	if len(fields) != 3 {
		t.Fatalf("snapshots of volume %s: %q", volume, out)
	}
	return member{id: fields[0], image: fields[1], snapshot: fields[2]}
}

// start is the first nine bytes of a snapshot in Ceph.
func (w *world) start(t *testing.T, m member) string {
	t.Helper()
	script := "rbd export --no-progress rbd/" + m.image + "@" + m.snapshot + " - 2>/dev/null | head -c 9"
	out, err := labtest.Output(exec.CommandContext(t.Context(), "sh", "-c", script))
	check(t, err)
	return out
}

func (w *world) number(t *testing.T, text string) int {
	t.Helper()
	n, err := strconv.Atoi(strings.TrimSpace(text))
	check(t, err)
	return n
}

// restoreGroup makes a claim of each VolumeSnapshot of the only group there is, and a pod with all of
// them on another host. It returns the claims in the order of their sources.
func (w *world) restoreGroup(t *testing.T, claims []string, volumes map[string]string) (restored []string) {
	t.Helper()
	bySnapshot := map[string]string{} // VolumeSnapshots by the id of the snapshot
	out := w.kubectl(t, "get", "volumesnapshots", "-o", `jsonpath={range .items[*]}{.metadata.name} {.status.boundVolumeSnapshotContentName}{"\n"}{end}`)
	for line := range strings.Lines(out) {
		name, content, _ := strings.Cut(strings.TrimSpace(line), " ")
		bySnapshot[w.kubectl(t, "get", "volumesnapshotcontent", content, "-o", "jsonpath={.status.snapshotHandle}")] = name
	}
	for _, claim := range claims {
		name := "restored-" + claim
		w.apply(t, fmt.Sprintf(`
apiVersion: v1
kind: PersistentVolumeClaim
metadata: {name: %s, namespace: %s}
spec:
  accessModes: [ReadWriteOnce]
  volumeMode: Block
  storageClassName: e2e-node-ext4
  resources: {requests: {storage: 128Mi}}
  dataSource: {apiGroup: snapshot.storage.k8s.io, kind: VolumeSnapshot, name: %s}
`, name, namespace, bySnapshot[w.memberOf(t, volumes[claim]).id]))
		restored = append(restored, name)
	}
	w.apply(t, labtest.Pod{
		Name: "restored", Namespace: namespace, Host: w.nodes[1], Claim: restored[0], More: restored[1:], Script: forever, Block: true, HostNetwork: true,
	}.Object(t))
	w.running(t, "restored")
	return restored
}
