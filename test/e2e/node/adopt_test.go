//go:build e2e

package node

import (
	"encoding/json"
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/escache/escache-csi/api/escache"
	"github.com/escache/escache-csi/test/labtest"
)

const (
	// roundTrip is the aim for an image that is adopted, used and released on emulated hosts.
	roundTrip = time.Minute
	// theirBytes is what the image holds before. A copy would write at least as much.
	theirBytes = 64 << 20
	// ownWrites bounds what the pod writes in between, with the filesystem's journal and Ceph's metadata.
	ownWrites = 24 << 20
)

// theirs is an image as ceph-csi makes one, with its metadata and its journal, by hand.
type theirs struct {
	*labtest.Volume

	lab            *labtest.Lab
	uuid, pv       string
	sums           string // of its files
	remove         func()
	osd, imageSize int64 // what the OSD had written, and what the image took, before it was adopted
}

// ofCephCSI takes an image of ceph-csi in and gives it back: once by its name, and once by its PersistentVolume.
func ofCephCSI(t *testing.T, w *world) {
	t.Run("by its name", func(t *testing.T) { w.adoptImage(t) })
	t.Run("by its PersistentVolume", func(t *testing.T) { w.adoptPersistentVolume(t) })
}

func (w *world) adoptImage(t *testing.T) {
	i := w.theirImage(t, "6b0e2f1c-91b2-4a5e-9d06-0242ac110004", "pvc-of-ceph-csi-1")
	steps, begin := labtest.NewTimeline(), time.Now()
	said := w.done(t, "adopt", "--pool", i.Pool, "--image", i.Image, "--storage-class", "e2e-node-ext4", "--claim", namespace+"/adopted", "--apply")
	t.Logf("%s", said)
	w.kubectl(t, "wait", "--for=jsonpath={.status.phase}=Bound", "pvc/adopted", "--timeout=120s")
	steps.Mark("adopted, and its claim is bound")
	w.usedAndReleased(t, i, "adopted", steps)
	measured(t, begin)
	steps.Print(t)
	w.kubectl(t, "delete", "pvc", "adopted", "--timeout=120s")
	i.remove()
	w.nothingLeft(t)
}

// measured prints how long a round trip took, beside the aim. It asserts nothing: the hosts are emulated, and other things
// run on the machine. What a copy would cost is asserted in bytes.
func measured(t *testing.T, begin time.Time) {
	t.Helper()
	took := time.Since(begin)
	t.Logf("measured: round trip %s, %.2f of the aim of %s", took.Round(100*time.Millisecond), took.Seconds()/roundTrip.Seconds(), roundTrip)
}

func (w *world) adoptPersistentVolume(t *testing.T) {
	i := w.theirImage(t, "d1f5a0b7-2c44-4c0e-8b0a-0242ac110005", "pvc-of-ceph-csi-2")
	w.apply(t, fmt.Sprintf(`
apiVersion: v1
kind: PersistentVolume
metadata: {name: %[1]s}
spec:
  accessModes: [ReadWriteOnce]
  capacity: {storage: 512Mi}
  persistentVolumeReclaimPolicy: Delete
  storageClassName: ceph-rbd
  claimRef: {apiVersion: v1, kind: PersistentVolumeClaim, namespace: %[2]s, name: theirs}
  csi:
    driver: rbd.csi.ceph.com
    fsType: ext4
    volumeHandle: 0001-0024-%[3]s-0000000000000001-%[4]s
    volumeAttributes: {clusterID: %[3]q, pool: %[5]s, journalPool: %[5]s, imageName: %[6]s, imageFeatures: layering}
---
apiVersion: v1
kind: PersistentVolumeClaim
metadata: {name: theirs, namespace: %[2]s}
spec: {accessModes: [ReadWriteOnce], storageClassName: ceph-rbd, volumeName: %[1]s, resources: {requests: {storage: 512Mi}}}
`, i.pv, namespace, w.fsid, i.uuid, i.Pool, i.Image))
	w.kubectl(t, "wait", "--for=jsonpath={.status.phase}=Bound", "pvc/theirs", "--timeout=120s")

	steps, begin := labtest.NewTimeline(), time.Now()
	adopt := []string{"adopt", "--persistent-volume", i.pv, "--storage-class", "e2e-node-ext4", "--apply"}
	w.done(t, adopt...)
	steps.Mark("adopted")
	if policy := w.kubectl(t, "get", "pv", i.pv, "-o", "jsonpath={.spec.persistentVolumeReclaimPolicy}"); policy != "Retain" {
		t.Fatalf("deleting ceph-csi's PersistentVolume would delete the image: its reclaim policy is %s", policy)
	}
	// The command ended before it made the PersistentVolume.
	w.kubectl(t, "delete", "pv", w.twinOf(t, i), "--timeout=120s")
	said := w.done(t, adopt...)
	t.Logf("%s", said)
	steps.Mark("the repeated command has made the PersistentVolume again")

	// What it says is left to do.
	_, claim, found := strings.Cut(said, "then apply the claim again:\n")
	if !found {
		t.Fatalf("it does not say what is left to do:\n%s", said)
	}
	w.kubectl(t, "delete", "pvc", "theirs", "--timeout=120s")
	w.kubectl(t, "delete", "pv", i.pv, "--timeout=120s")
	w.apply(t, claim)
	w.kubectl(t, "wait", "--for=jsonpath={.status.phase}=Bound", "pvc/theirs", "--timeout=120s")
	steps.Mark("the claim is bound to the twin")
	w.usedAndReleased(t, i, "theirs", steps)
	measured(t, begin)
	steps.Print(t)
	w.kubectl(t, "delete", "pvc", "theirs", "--timeout=120s")
	i.remove()
	w.nothingLeft(t)
}

// theirImage makes an image of 512 MiB with an ext4 and files. As most of ceph-csi's, it has no exclusive-lock at
// first; the command by which adopt has that mended is the one that is run.
func (w *world) theirImage(t *testing.T, uuid, pv string) *theirs {
	t.Helper()
	lab := labtest.Open(t)
	i := &theirs{Volume: lab.VolumeOf(escache.VolumeRef{Pool: "rbd", Image: "csi-vol-" + uuid}), lab: lab, uuid: uuid, pv: pv}
	var once sync.Once
	i.remove = func() {
		once.Do(func() {
			lab.Command(t, "rados", "-p", i.Pool, "rm", "csi.volumes.default", "csi.volume."+uuid)
			lab.Command(t, "rbd", "rm", "--no-progress", i.String())
		})
	}
	w.rbd(t, "create", "--size", "512M", "--image-feature", "layering", i.String())
	for _, entry := range [][3]string{
		{"csi.volumes.default", "csi.volume." + pv, uuid}, {"csi.volume." + uuid, "csi.volname", pv}, {"csi.volume." + uuid, "csi.imagename", i.Image},
	} {
		lab.Command(t, "rados", "-p", i.Pool, "setomapval", entry[0], entry[1], entry[2])
	}
	t.Cleanup(i.remove)
	for key, value := range map[string]string{
		"csi.ceph.com/cluster/name": "lab", "csi.storage.k8s.io/pv/name": pv, "csi.storage.k8s.io/pvc/name": "theirs",
		"csi.storage.k8s.io/pvc/namespace": namespace,
	} {
		w.rbd(t, "image-meta", "set", i.String(), key, value)
	}
	said, code := w.escache(t, "adopt", "--pool", i.Pool, "--image", i.Image, "--storage-class", "e2e-node-ext4")
	_, mend, _ := strings.Cut(said, "`rbd ")
	mend, _, found := strings.Cut(mend, "`")
	if code == 0 || !found {
		t.Fatalf("without exclusive-lock: exit code %d: %s", code, said)
	}
	w.rbd(t, strings.Fields(mend)...)

	host := lab.Hosts[0]
	device, unmap := host.MapPlain(t, i.Volume)
	i.sums = w.shell(t, host.Name, fmt.Sprintf(`set -e; mkfs.ext4 -q %[1]s; mkdir -p /run/theirs; mount %[1]s /run/theirs; cd /run/theirs
for i in 1 2 3 4 5 6 7 8; do dd if=/dev/urandom of=f$i bs=1M count=%[2]d conv=fsync 2>/dev/null; done; sha256sum f1 f2 f3 f4 f5 f6 f7 f8
cd /; umount /run/theirs`, device, theirBytes>>23))
	unmap()
	i.WaitForNoWatcher(t)
	i.osd, i.imageSize = w.osdWrote(t), i.ImageBytes(t)
	return i
}

// usedAndReleased reads the image's files in a pod, through the cache, changes one, and gives the image back.
func (w *world) usedAndReleased(t *testing.T, i *theirs, claim string, steps *labtest.Timeline) {
	t.Helper()
	volume := w.volumeOf(t, claim)
	w.pod(t, "user", w.nodes[1], claim, "Filesystem", forever)
	if got := w.in(t, "user", fileSums); got != i.sums {
		t.Errorf("the pod reads\n%s\nand the image had\n%s", got, i.sums)
	}
	if at := w.onHost(t, w.nodes[1], volume); at.State != escache.StateConnected || at.Uncached {
		t.Errorf("it is not used through the cache: %+v", at)
	}
	steps.Mark("a pod has read what was on it")
	untouched := w.osdWrote(t) - i.osd
	i.sums = w.in(t, "user", "dd if=/dev/urandom of=/data/f3 bs=1M count=8 conv=notrunc,fsync 2>/dev/null; "+fileSums)
	w.removePod(t, "user", volume)
	steps.Mark("the pod has changed a file, and is gone")
	pv := w.kubectl(t, "get", "pvc", claim, "-o", "jsonpath={.spec.volumeName}")
	t.Logf("%s", w.done(t, "release", "--claim", namespace+"/"+claim))
	written, grown := w.osdWrote(t)-i.osd, i.ImageBytes(t)-i.imageSize
	steps.Mark("released")

	host := i.lab.Hosts[2]
	device, unmap := host.MapPlain(t, i.Volume)
	got := w.shell(t, host.Name, fmt.Sprintf(
		"set -e; mkdir -p /run/theirs; mount %s /run/theirs; cd /run/theirs; sha256sum f1 f2 f3 f4 f5 f6 f7 f8; cd /; umount /run/theirs", device))
	unmap()
	if got != i.sums {
		t.Errorf("mapped without the driver it has\n%s\nand the pod left\n%s", got, i.sums)
	}
	steps.Mark("mapped plainly, on another host, with what the pod wrote")
	t.Logf("the OSD took %d bytes of writes until the pod had read everything, and %d in all; the pod wrote 8388608, the image held %d and has grown by %d",
		untouched, written, i.imageSize, grown)
	if untouched > ownWrites/3 || written > ownWrites || grown > ownWrites {
		t.Errorf("something was copied")
	}
	w.kubectl(t, "delete", "pv", pv, "--timeout=120s", "--wait=false")
}

// twinOf is the PersistentVolume that was made for the image.
func (w *world) twinOf(t *testing.T, i *theirs) string {
	t.Helper()
	return w.kubectl(t, "get", "cachevolumes", "-o", `jsonpath={.items[?(@.spec.image=="`+i.Image+`")].metadata.name}`)
}

// osdWrote is how many bytes clients have written to the only OSD since it began.
func (w *world) osdWrote(t *testing.T) int64 {
	t.Helper()
	var counters struct {
		OSD struct {
			In int64 `json:"op_in_bytes"`
		} `json:"osd"`
	}
	check(t, json.Unmarshal([]byte(labtest.Open(t).Command(t, "ceph", "tell", "osd.0", "perf", "dump", "osd")), &counters))
	if counters.OSD.In == 0 {
		t.Fatal("the OSD does not count what it writes")
	}
	return counters.OSD.In
}
