//go:build e2e

package node

import (
	"encoding/json"
	"fmt"
	"strings"
	"testing"

	"github.com/escache/escache-csi/api/escache"
	"github.com/escache/escache-csi/api/v1alpha1"
	"github.com/escache/escache-csi/test/labtest"
)

// trimmedBytes is the size of the file that is deleted, and leastTrimmed how much of it has to come back. Ceph counts
// whole objects of 4 MiB, and a filesystem frees parts of some.
const (
	trimmedBytes = 128 << 20
	leastTrimmed = trimmedBytes / 2
)

// trim gives the space of a deleted file back to Ceph: at once with the mount option discard, and with fstrim
// otherwise. Its volumes have the cache engine log: the other one takes no TRIM, because there is a loop device in
// front of each of its caches (docs/limits.md).
func trim(t *testing.T, w *world) {
	for _, kind := range []string{"ext4", "xfs"} {
		t.Run(kind, func(t *testing.T) { w.trimOf(t, kind) })
	}
}

func (w *world) trimOf(t *testing.T, kind string) {
	steps := labtest.NewTimeline()
	defer w.endFlushes(t)
	other, engine := "cacheEngine: "+labtest.ClassEngine(), "cacheEngine: "+string(escache.EngineLog)
	for _, c := range []struct{ name, options string }{{"fstrim-" + kind, ""}, {"discard-" + kind, "discard"}} {
		byItself := c.options != ""
		w.apply(t, mountedWith(t, strings.Replace(w.class(c.name, "Immediate", "64Mi", kind), other, engine, 1), c.options))
		volume := w.claim(t, c.name, "e2e-node-"+c.name, "Filesystem", "512Mi")
		w.pod(t, c.name, w.nodes[0], c.name, "Filesystem", forever)
		if got := w.in(t, c.name, "grep ' /data ' /proc/mounts"); strings.Contains(got, "discard") != byItself {
			t.Fatalf("mounted: %s", got)
		}
		sum := w.fill(t, c.name)
		empty := w.inCeph(t, c.name, volume)
		w.in(t, c.name, fmt.Sprintf("dd if=/dev/urandom of=/data/large bs=1M count=%d conv=fsync 2>/dev/null", trimmedBytes>>20))
		full := w.inCeph(t, c.name, volume)
		w.in(t, c.name, "rm /data/large; sync; sleep 2; sync")
		deleted := w.inCeph(t, c.name, volume)
		after := deleted
		if !byItself {
			mounted := "$(grep -o '/[^ ]*csi.escache.io/[^ ]*globalmount' /proc/mounts)"
			t.Logf("%s", w.shell(t, w.nodes[0], "fstrim -v "+mounted))
			after = w.inCeph(t, c.name, volume)
			if deleted < full {
				t.Errorf("without TRIM Ceph has %d bytes after the file is deleted, and had %d", deleted, full)
			}
		}
		t.Logf("%s: rbd du: %d bytes with a small file, %d with a file of %d more, %d after that is deleted, %d after TRIM",
			c.name, empty, full, trimmedBytes, deleted, after)
		if full < empty+leastTrimmed || after > full-leastTrimmed {
			t.Errorf("Ceph has got back %d bytes", full-after)
		}
		w.same(t, c.name, sum)
		w.removePod(t, c.name, volume)
		w.pod(t, c.name+"-moved", w.nodes[1], c.name, "Filesystem", forever)
		w.same(t, c.name+"-moved", sum)
		w.removePod(t, c.name+"-moved", volume)
		w.kubectl(t, "delete", "pvc", c.name, "--timeout=120s")
		w.kubectl(t, "delete", "storageclass", "e2e-node-"+c.name)
		steps.Mark(c.name)
	}
	w.nothingLeft(t)
	steps.Print(t)
}

// detachedBytes is the size of the file whose space comes back without a cache.
const detachedBytes = 200 << 20

// trimDetached gives the space of a deleted file back to Ceph with kubectl escache trim. The volumes have the cache
// engine writecache, so that is possible only while no node has them.
func trimDetached(t *testing.T, w *world) {
	for _, kind := range []string{"ext4", "xfs"} {
		t.Run(kind, func(t *testing.T) { w.trimDetachedOf(t, kind) })
	}
}

func (w *world) trimDetachedOf(t *testing.T, kind string) {
	steps := labtest.NewTimeline()
	defer w.endFlushes(t)
	name := "detached-" + kind
	other, engine := "cacheEngine: "+labtest.ClassEngine(), "cacheEngine: "+string(escache.EngineWritecache)
	w.apply(t, mountedWith(t, strings.Replace(w.class(name, "Immediate", "64Mi", kind), other, engine, 1), "noatime"))
	volume := w.claim(t, name, "e2e-node-"+name, "Filesystem", "512Mi")
	w.pod(t, name, w.nodes[0], name, "Filesystem", forever)
	sum := w.fill(t, name)
	w.in(t, name, fmt.Sprintf("dd if=/dev/urandom of=/data/large bs=1M count=%d conv=fsync 2>/dev/null", detachedBytes>>20))
	full := w.inCeph(t, name, volume)
	w.in(t, name, "rm /data/large; sync; sleep 2; sync")
	if said, code := w.escache(t, "trim", "--volume", volume); code == 0 || !strings.Contains(said, "stop its pods") {
		t.Errorf("a trim of a volume in use: %d, %s", code, said)
	}
	w.removePod(t, name, volume)
	steps.Mark("detached")
	said := w.done(t, "trim", "--claim", namespace+"/"+name, "--timeout=5m")
	t.Logf("%s", said)
	steps.Mark("trimmed")
	spec := w.volume(t, volume).Spec
	after := labtest.Open(t).VolumeOf(escache.VolumeRef{Pool: spec.Pool, Image: spec.Image}).ImageBytes(t)
	t.Logf("%s: rbd du: %d bytes with a file of %d, %d after that is deleted and trimmed", name, full, detachedBytes, after)
	if after > full-detachedBytes/2 {
		t.Errorf("Ceph has got back %d bytes", full-after)
	}
	if s := w.volume(t, volume).Status; s.AttachedNode != "" || s.Authority != v1alpha1.AuthorityCeph || len(s.Outdated) != 2 {
		t.Errorf("after the trim: %+v", s)
	}
	// Right afterwards it is cached again, by new replicas.
	w.pod(t, name+"-again", w.nodes[0], name, "Filesystem", forever)
	w.same(t, name+"-again", sum)
	if s := w.volume(t, volume).Status; s.AttachedNode != w.nodes[0] || s.Authority != v1alpha1.AuthorityCache || len(s.Outdated) != 0 {
		t.Errorf("attached again: %+v", s)
	}
	w.removePod(t, name+"-again", volume)
	w.kubectl(t, "delete", "pvc", name, "--timeout=120s")
	w.kubectl(t, "delete", "storageclass", "e2e-node-"+name)
	w.nothingLeft(t)
	steps.Print(t)
}

// mountedWith gives a StorageClass these mount options, parted by spaces.
func mountedWith(t *testing.T, class, options string) string {
	t.Helper()
	list, err := json.Marshal(strings.Fields(options))
	check(t, err)
	return strings.Replace(class, "parameters:", fmt.Sprintf("mountOptions: %s\nparameters:", list), 1)
}

// inCeph writes the claim's cache back and returns how much the image takes.
func (w *world) inCeph(t *testing.T, claim, volume string) int64 {
	t.Helper()
	w.done(t, "flush", claim, "-n", namespace, "--wait", "--timeout=3m")
	spec := w.volume(t, volume).Spec
	return labtest.Open(t).VolumeOf(escache.VolumeRef{Pool: spec.Pool, Image: spec.Image}).ImageBytes(t)
}
