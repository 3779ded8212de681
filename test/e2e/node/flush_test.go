//go:build e2e

package node

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"k8s.io/apimachinery/pkg/api/meta"

	"github.com/escache/escache-csi/api/escache"
	"github.com/escache/escache-csi/api/v1alpha1"
	"github.com/escache/escache-csi/test/lab/labclient"
	"github.com/escache/escache-csi/test/labtest"
)

// TestFlush has operators flush and drain volumes in use, and breaks what it can in the middle of
// it.
func TestFlush(t *testing.T) {
	w := open(t)
	tests := []struct {
		name string
		run  func(*testing.T, *world)
	}{
		{"under constant writes a flush ends or says why not, and a drain holds dirty at zero", constantWrites},
		{"a drain is cancelled in the middle", cancelled},
		{"csi-controller is killed in the middle of a drain", controllerKilled},
		{"the host loses its power in the middle of a drain", powerLost},
		{"Ceph stalls in the middle of a flush and of a drain", cephStalls},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			defer w.cleanUp(t)
			defer w.endFlushes(t)
			test.run(t, w)
		})
	}
}

// busy is a pod that writes, with data in its cache that Ceph has not.
type busy struct {
	*world

	name, volume, host string
	sums               string
	acked              int // what the writer had synced when it was looked last
}

// writingOn is `writing` that goes on counting after a move.
var writingOn = strings.Replace(writing, "n=0", "n=$(cat /data/n 2>/dev/null || echo 0)", 1)

func (w *world) busy(t *testing.T, name, script string) *busy {
	t.Helper()
	b := &busy{world: w, name: name}
	b.volume = w.claim(t, name, "e2e-node-ext4", "Filesystem", "256Mi")
	b.host = w.volume(t, b.volume).Spec.Replicas[0]
	w.pod(t, name, b.host, name, "Filesystem", script)
	b.sums = w.fill(t, name)
	if dirty, _ := w.kernelDirty(t, b.host); dirty < 8<<20 {
		t.Fatalf("%d bytes are dirty", dirty)
	}
	return b
}

// writes waits until the writer has got further, and remembers how far.
func (b *busy) writes(t *testing.T) {
	t.Helper()
	from := b.count(t, b.name)
	b.goesOn(t, b.name, from)
	b.acked = from
}

var flushName = regexp.MustCompile(`cacheflush\.escache\.io/(\S+) created`)

// begin makes a CacheFlush of the claim and returns its name.
func (b *busy) begin(t *testing.T, flags ...string) string {
	t.Helper()
	said := b.done(t, append([]string{"flush", b.name, "-n", namespace}, flags...)...)
	found := flushName.FindStringSubmatch(said)
	if found == nil {
		t.Fatalf("kubectl escache flush says %q", said)
	}
	return found[1]
}

// beginSlowly has Ceph take little at a time, and returns when the drain has written some of it
// back and not all.
func (b *busy) beginSlowly(t *testing.T) (flush string) {
	t.Helper()
	check(t, b.lab.Cut(t.Context(), b.host, labclient.Cut{From: labclient.CutCeph, Slow: true}))
	flush = b.begin(t, "--drain")
	b.waitForFlush(t, flush, "some of it is written back and not all", func(f *v1alpha1.CacheFlush) error {
		if f.Status.Phase != v1alpha1.FlushRunning || f.Status.LeftBytes == 0 || f.Status.LeftBytes >= f.Status.TotalBytes {
			return fmt.Errorf("%s, %d of %d bytes are left", f.Status.Phase, f.Status.LeftBytes, f.Status.TotalBytes)
		}
		return nil
	})
	return flush
}

func (w *world) waitForFlush(t *testing.T, flush, what string, condition func(*v1alpha1.CacheFlush) error) *v1alpha1.CacheFlush {
	t.Helper()
	var last *v1alpha1.CacheFlush
	took := labtest.WaitForCommand(t, "CacheFlush "+flush+": "+what, podTime, func(ctx context.Context) error {
		f, err := w.cacheFlush(ctx, flush)
		if err != nil {
			return err
		}
		last = f
		if err := condition(f); err != nil {
			return fmt.Errorf("%w: %s", err, words(f))
		}
		return nil
	})
	t.Logf("%s: after %s: %s", what, took.Round(time.Second), words(last))
	return last
}

// words are the phases and messages of a CacheFlush that an operator sees.
func words(f *v1alpha1.CacheFlush) string {
	text := fmt.Sprintf("%s %d%%, %d of %d bytes left", f.Status.Phase, f.Status.Percent, f.Status.LeftBytes, f.Status.TotalBytes)
	if c := meta.FindStatusCondition(f.Status.Conditions, v1alpha1.FlushConditionComplete); c != nil {
		text += fmt.Sprintf(", Complete=%s %s: %s", c.Status, c.Reason, c.Message)
	}
	return text
}

func complete(f *v1alpha1.CacheFlush) error {
	if !meta.IsStatusConditionTrue(f.Status.Conditions, v1alpha1.FlushConditionComplete) {
		return errors.New("it is not complete")
	}
	return nil
}

func says(text string) func(*v1alpha1.CacheFlush) error {
	return func(f *v1alpha1.CacheFlush) error {
		if complete(f) == nil || !strings.Contains(words(f), text) {
			return fmt.Errorf("it does not say %q", text)
		}
		return nil
	}
}

// staysClean looks again and again whether anything is dirty on the volume's host while the pod
// writes.
func (b *busy) staysClean(t *testing.T) {
	t.Helper()
	from := b.count(t, b.name)
	const looks = 15
	for range looks {
		if dirty, caches := b.kernelDirty(t, b.host); dirty != 0 || caches != 1 {
			t.Errorf("drained, and %d bytes are dirty in %d caches", dirty, caches)
		}
		time.Sleep(time.Second)
	}
	b.goesOn(t, b.name, from)
	t.Logf("dirty was 0 at each of %d looks, while the pod counted from %d to %d", looks, from, b.count(t, b.name))
	if v := b.world.volume(t, b.volume); v.Status.Authority != v1alpha1.AuthorityCeph || v.Status.DirtyBytes != 0 {
		t.Errorf("on record: authority %s, %d bytes dirty", v.Status.Authority, v.Status.DirtyBytes)
	}
}

// writesBack waits until the volume's cache takes writes again as before a drain.
func (b *busy) writesBack(t *testing.T) {
	t.Helper()
	if mode := b.onHost(t, b.host, b.volume).Mode; mode != escache.ModeWriteback {
		t.Errorf("%s has the volume in mode %s", b.host, mode)
	}
	if v := b.world.volume(t, b.volume); v.Status.Authority != v1alpha1.AuthorityCache || len(v.Status.WriteThrough) > 0 {
		t.Errorf("on record: authority %s, claims %+v", v.Status.Authority, v.Status.WriteThrough)
	}
	b.writes(t)
	labtest.WaitForCommand(t, "the cache is dirty again", commandTime, func(context.Context) error {
		if dirty, _ := b.kernelDirty(t, b.host); dirty == 0 {
			return errors.New("nothing is")
		}
		return nil
	})
}

// keptAll moves the pod, once more to a host without a copy, and compares: what that one reads
// comes from Ceph.
func (b *busy) keptAll(t *testing.T) {
	t.Helper()
	b.same(t, b.name, b.sums)
	if out := b.kubectl(t, "logs", b.name); strings.Contains(out, "FAILED") {
		t.Error("a write has failed")
	}
	b.acked = max(b.acked, b.count(t, b.name))
	b.removePod(t, b.name, b.volume)
	replicas := b.world.volume(t, b.volume).Spec.Replicas
	for _, node := range b.nodes {
		if node != replicas[0] && node != replicas[1] {
			b.name += "-elsewhere"
			b.claimPod(t, node)
		}
	}
	b.same(t, b.name, b.sums)
	if n := b.count(t, b.name); n < b.acked {
		t.Errorf("the count is %d on another host, and %d was acknowledged", n, b.acked)
	}
	b.removePod(t, b.name, b.volume)
}

// claimPod starts the pod of b.name with the volume, to look only.
func (b *busy) claimPod(t *testing.T, node string) {
	t.Helper()
	claim, _, _ := strings.Cut(b.name, "-")
	b.pod(t, b.name, node, claim, "Filesystem", forever)
}

// constantWrites has a pod write as fast as it can.
func constantWrites(t *testing.T, w *world) {
	b := w.busy(t, "constant", strings.Replace(writingOn, "sleep 0.1", ":", 1))
	said, code := w.escache(t, "flush", b.name, "-n", namespace, "--wait", "--timeout=40s")
	t.Logf("a flush under constant writes ends with exit code %d: %s", code, said)
	switch {
	case code == 0 && strings.Contains(said, "1 of 1 volumes are clean"):
	case code == 1 && strings.Contains(said, "given up after 40 s"):
	default:
		t.Errorf("that is neither an end nor an honest word")
	}
	begin := time.Now()
	said = w.done(t, "flush", b.name, "-n", namespace, "--drain", "--wait", "--timeout=5m")
	t.Logf("a drain under constant writes after %s: %s", time.Since(begin).Round(time.Second), said)
	b.staysClean(t)
	w.endFlushes(t)
	b.writesBack(t)
	b.keptAll(t)
}

func cancelled(t *testing.T, w *world) {
	b := w.busy(t, "cancelled", writingOn)
	flush := b.beginSlowly(t)
	begin := time.Now()
	w.kubectl(t, "delete", "cacheflush", flush, "--wait=false")
	// The kernel cannot be called back from a flush that it has begun: until Ceph has taken that,
	// the object stays and says so.
	for time.Since(begin) < 15*time.Second {
		f, err := w.cacheFlush(t.Context(), flush)
		if err != nil {
			break
		}
		if complete(f) == nil || f.Status.Phase == v1alpha1.FlushDrained {
			t.Fatalf("cancelled, and it is %s", words(f))
		}
		t.Logf("%s after it was cancelled: %s", time.Since(begin).Round(time.Second), words(f))
		time.Sleep(3 * time.Second)
	}
	check(t, w.lab.Heal(t.Context()))
	w.kubectl(t, "wait", "--for=delete", "cacheflush/"+flush, "--timeout=120s")
	t.Logf("gone %s after it was cancelled", time.Since(begin).Round(time.Second))
	b.writesBack(t)
	b.keptAll(t)
}

func controllerKilled(t *testing.T, w *world) {
	b := w.busy(t, "killed", writingOn)
	flush := b.beginSlowly(t)
	before, err := w.cacheFlush(t.Context(), flush)
	check(t, err)
	check(t, syscall.Kill(controllerOf(t, leader(t)), syscall.SIGKILL))
	begin := time.Now()
	leader(t)
	t.Logf("another csi-controller leads %s after the first was killed", time.Since(begin).Round(time.Second))
	w.waitForFlush(t, flush, "the next leader goes on", func(f *v1alpha1.CacheFlush) error {
		if f.Status.LeftBytes >= before.Status.LeftBytes {
			return fmt.Errorf("no less is left than the %d of before", before.Status.LeftBytes)
		}
		return nil
	})
	check(t, w.lab.Heal(t.Context()))
	after := w.waitForFlush(t, flush, "it is complete", complete)
	if !after.Status.StartTime.Equal(before.Status.StartTime) || after.Status.TotalBytes < before.Status.TotalBytes {
		t.Errorf("it began at %s with %d bytes, and now that is %s with %d", before.Status.StartTime, before.Status.TotalBytes,
			after.Status.StartTime, after.Status.TotalBytes)
	}
	b.staysClean(t)
	b.keptAll(t)
}

// controllerOf is the process that serves a csi-controller's socket.
func controllerOf(t *testing.T, socket string) int {
	t.Helper()
	files, err := filepath.Glob("/proc/[0-9]*/cmdline")
	check(t, err)
	for _, file := range files {
		line, err := os.ReadFile(file)
		args := strings.Split(string(line), "\x00")
		if err == nil && filepath.Base(args[0]) == "csi-controller" && strings.Contains(string(line), "--csi-socket="+socket+"\x00") {
			pid, err := strconv.Atoi(filepath.Base(filepath.Dir(file)))
			check(t, err)
			return pid
		}
	}
	t.Fatalf("no csi-controller serves %s", socket)
	return 0
}

func powerLost(t *testing.T, w *world) {
	b := w.busy(t, "power", writingOn)
	b.writes(t)
	heir := peer(w.volume(t, b.volume), b.host)
	flush := b.beginSlowly(t)
	check(t, w.lab.PowerOff(t.Context(), b.host))
	check(t, w.lab.Heal(t.Context()))
	w.waitForFlush(t, flush, "it says that the host does not answer", says(b.host))
	w.kubectl(t, "taint", "node", b.host, outOfService+"=nodeshutdown:NoExecute", "--overwrite")
	w.gone(t, b.name)
	if f, err := w.cacheFlush(t.Context(), flush); err != nil || complete(f) == nil {
		t.Errorf("with the data on %s only: %v %v", heir, f, err)
	}
	lost := b.host
	b.name, b.host = "power-heir", heir
	b.pod(t, b.name, heir, "power", "Filesystem", writingOn)
	b.same(t, b.name, b.sums)
	if n := b.count(t, b.name); n < b.acked {
		t.Errorf("the count is %d on %s, and %d was acknowledged", n, heir, b.acked)
	}
	w.waitForFlush(t, flush, "it is complete where the volume is now", complete)
	w.powerOn(t, lost)
	b.keptAll(t)
}

func cephStalls(t *testing.T, w *world) {
	b := w.busy(t, "stalled", writingOn)
	for _, mode := range []string{"flush", "drain"} {
		b.sums = b.fill(t, b.name)
		check(t, w.lab.StallCeph(t.Context()))
		var flags []string
		if mode == "drain" {
			flags = append(flags, "--drain")
		}
		flush := b.begin(t, flags...)
		w.waitForFlush(t, flush, mode+": it says that Ceph takes nothing", says("Ceph takes nothing"))
		if mode == "flush" {
			b.writes(t) // into the cache
		}
		begin := time.Now()
		check(t, w.lab.ResumeCeph(t.Context()))
		w.waitForFlush(t, flush, mode+": it is complete", complete)
		t.Logf("%s: complete %s after Ceph went on", mode, time.Since(begin).Round(time.Second))
		b.writes(t)
		w.endFlushes(t)
		b.writesBack(t)
	}
	b.keptAll(t)
}
