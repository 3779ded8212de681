//go:build e2e

package node

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/escache/escache-csi/api/escache"
	"github.com/escache/escache-csi/api/v1alpha1"
	"github.com/escache/escache-csi/test/lab/labclient"
	"github.com/escache/escache-csi/test/labtest"
)

// discarded loses the only current copy of what Ceph has not.
func discarded(t *testing.T, w *world) {
	b := &busy{world: w, name: "loss", volume: w.claim(t, "loss", "e2e-node-ext4", "Filesystem", "256Mi")}
	b.host = w.volume(t, b.volume).Spec.Replicas[0]
	w.pod(t, b.name, b.host, b.name, "Filesystem", forever)
	b.sums = w.fill(t, b.name)
	w.done(t, "flush", b.name, "-n", namespace, "--wait", "--timeout=3m")
	partner := peer(w.volume(t, b.volume), b.host)
	check(t, w.lab.PowerOff(t.Context(), partner))
	w.in(t, b.name, "dd if=/dev/urandom of=/data/after bs=64k count=32 conv=fsync 2>/dev/null && sync")
	w.waitForVolume(t, b.volume, "has its only current copy on "+b.host, func(v *cacheVolume) error {
		if !slices.Equal(v.Status.Outdated, []string{partner}) || v.Status.DirtyBytes < 2<<20 {
			return fmt.Errorf("outdated %q, %d bytes dirty", v.Status.Outdated, v.Status.DirtyBytes)
		}
		return nil
	})
	w.refuses(t, b.volume+"\n", "is attached to node "+b.host, b.volume, "--reason=too early")

	lostAt := time.Now()
	w.losePower(t, b.host, b.name)
	w.boot(t, partner)
	w.apply(t, podObject(t, "loss-heir", partner, "loss", "Filesystem", forever))
	message := w.waitForEvent(t, "Pod", "loss-heir", "FailedAttachVolume", "node "+b.host+" has not answered since", "bytes", "at stake",
		"kubectl escache discard-cache "+b.volume)
	if since := dateIn(t, message, "not answered since "); since.Before(lostAt.Add(-time.Minute)) || since.After(time.Now()) {
		t.Errorf("it lost its power at %s", lostAt.UTC().Format(time.RFC3339))
	}
	w.refuses(t, "another\n", "is not", b.volume)
	if v := w.volume(t, b.volume); v.Status.Authority != v1alpha1.AuthorityCache || v.Status.Discarded != nil {
		t.Errorf("refused, and the record is %+v", v.Status)
	}

	const reason = "the test has burnt it"
	said, code := w.escacheTyped(t, b.volume+"\n", "discard-cache", b.volume, "--reason="+reason)
	if code != 0 || !strings.Contains(said, "discarded: the truth of volume "+b.volume+" is in Ceph now") || !strings.Contains(said, b.host) {
		t.Fatalf("exit code %d: %s", code, said)
	}
	t.Logf("kubectl escache discard-cache says: %s", said)
	b.isOnRecord(t, reason, lostAt)
	w.running(t, "loss-heir")
	w.same(t, "loss-heir", b.sums)
	// What was given up is gone: else this test says nothing.
	w.in(t, "loss-heir", "test ! -e /data/after")

	w.powerOn(t, b.host)
	sums := w.fill(t, "loss-heir")
	w.removePod(t, "loss-heir", b.volume)
	w.pod(t, "loss-home", b.host, "loss", "Filesystem", forever)
	w.same(t, "loss-home", sums)
	w.in(t, "loss-home", "test ! -e /data/after")
	w.removePod(t, "loss-home", b.volume)
	w.kubectl(t, "delete", "pvc", "loss", "--timeout=120s")
	w.nothingLeft(t)
}

// refuses has discard-cache refused, for a reason.
func (w *world) refuses(t *testing.T, typed, why string, args ...string) {
	t.Helper()
	said, code := w.escacheTyped(t, typed, append([]string{"discard-cache"}, args...)...)
	if code == 0 || !strings.Contains(said, why) {
		t.Errorf("exit code %d, and it does not say %q: %s", code, why, said)
	}
}

// dateIn finds a time in a sentence.
func dateIn(t *testing.T, text, after string) time.Time {
	t.Helper()
	_, rest, _ := strings.Cut(text, after)
	found, err := time.Parse(time.RFC3339, rest[:min(len(rest), len("2006-01-02T15:04:05Z"))])
	if err != nil {
		t.Errorf("no time after %q in %q: %v", after, text, err)
	}
	return found
}

// isOnRecord: who has lost what, when.
func (b *busy) isOnRecord(t *testing.T, reason string, lostAt time.Time) {
	t.Helper()
	var all v1alpha1.CacheDiscardList
	check(t, b.get(t.Context(), &all, "cachediscards"))
	i := slices.IndexFunc(all.Items, func(d v1alpha1.CacheDiscard) bool {
		return d.Spec.Volume == b.volume && d.Status.Phase == v1alpha1.DiscardDone
	})
	if i < 0 {
		t.Fatalf("no CacheDiscard of %s is done: %+v", b.volume, all.Items)
	}
	d := all.Items[i]
	who, err := b.try(t.Context(), "", "auth", "whoami", "-o", "jsonpath={.status.userInfo.username}")
	check(t, err)
	if d.Spec.RequestedBy != who || d.Spec.Reason != reason || !slices.Equal(d.Status.Nodes, []string{b.host}) ||
		d.Status.BytesAtStake < 2<<20 || d.Status.CompletionTime == nil || d.Status.CompletionTime.Time.Before(lostAt.Add(-time.Second)) {
		t.Errorf("%s has discarded it, and the request is %+v, %+v", who, d.Spec, d.Status)
	}
	v := b.world.volume(t, b.volume)
	if loss := v.Status.Discarded; loss == nil || loss.RequestedBy != who || loss.Request != string(d.UID) || !slices.Equal(loss.Nodes, d.Status.Nodes) {
		t.Errorf("the volume's record is %+v", loss)
	}
	for kind, name := range map[string]string{"CacheVolume": b.volume, "CacheDiscard": d.Name} {
		b.waitForEvent(t, kind, name, "CacheDiscarded", who, b.host)
	}
	_, err = b.try(t.Context(), "", "delete", "cachediscards", "--all", "--timeout=60s")
	check(t, err)
}

// refused: Ceph answers writes with errors. The cache keeps what it has, says so, and its host
// keeps the volume until Ceph has everything.
func refused(t *testing.T, w *world) {
	b := w.busy(t, "refused", writingOn)
	b.bothCurrent(t)
	b.writes(t)
	ceph := labtest.Open(t)
	ceph.RefuseWrites(t)
	said, code := w.escache(t, "flush", b.name, "-n", namespace, "--wait", "--timeout=30s")
	t.Logf("kubectl escache flush ends with exit code %d: %s", code, said)
	if code == 0 || !strings.Contains(said, "Ceph did not take") {
		t.Errorf("that is not what is wrong")
	}
	w.endFlushes(t)
	w.waitForVolume(t, b.volume, "says what is wrong", func(v *cacheVolume) error {
		c := meta.FindStatusCondition(v.Status.Conditions, v1alpha1.ConditionHealthy)
		if c == nil || c.Status != metav1.ConditionFalse || c.Reason != "CacheError" || !strings.Contains(c.Message, "Ceph") {
			return fmt.Errorf("Healthy is %+v", c)
		}
		return nil
	})
	w.waitForEvent(t, "PersistentVolumeClaim", b.name, "CacheError", "could not write back to Ceph")
	if s := w.onHost(t, b.host, b.volume); s.State != escache.StateError || s.Error == nil || s.Error.Code != escache.CodeCacheError {
		t.Errorf("escached says %+v", s)
	}

	// The pod goes, and the volume stays: nothing lets go of what Ceph has not.
	w.shell(t, b.host, "cp /var/log/csi-node.log /run/csi-node.before 2>/dev/null || : >/run/csi-node.before")
	w.kubectl(t, "delete", "pod", b.name, "--wait=true", "--timeout=240s")
	labtest.WaitForCommand(t, "an unstage is refused", podTime, func(ctx context.Context) error {
		out, err := w.lab.Shell(ctx, b.host, "tail -c +$(($(stat -c %s /run/csi-node.before) + 1)) /var/log/csi-node.log | grep 'Ceph did not take' || true")
		if err == nil && out == "" {
			err = errors.New("csi-node's log has nothing of it")
		}
		return err
	})
	s := w.onHost(t, b.host, b.volume)
	if v := w.volume(t, b.volume); v.Status.AttachedNode != b.host || v.Status.Authority != v1alpha1.AuthorityCache || s.Device == "" ||
		s.DirtyBytes == nil || *s.DirtyBytes == 0 {
		t.Errorf("escached says %+v, and the record is %+v", s, v.Status)
	}

	ceph.TakeWrites(t)
	w.waitForVolume(t, b.volume, "is attached nowhere", func(v *cacheVolume) error {
		if v.Status.AttachedNode != "" {
			return fmt.Errorf("it is attached to %s", v.Status.AttachedNode)
		}
		return nil
	})
	elsewhere := w.third(t, b.volume)
	b.name += "-elsewhere"
	b.claimPod(t, elsewhere)
	b.same(t, b.name, b.sums)
	if n := b.count(t, b.name); n < b.acked {
		t.Errorf("the count is %d on %s, and %d was acknowledged", n, elsewhere, b.acked)
	}
	w.waitForVolume(t, b.volume, "is healthy", func(v *cacheVolume) error {
		if !meta.IsStatusConditionTrue(v.Status.Conditions, v1alpha1.ConditionHealthy) {
			return fmt.Errorf("%+v", v.Status.Conditions)
		}
		return nil
	})
	b.removePod(t, b.name, b.volume)
}

// deadDiskOnRecord: the peer has caught up, nobody has taken it off the outdated ones yet, and the
// primary's own disk dies. Left so, the record would take the dead copy for the current one.
func deadDiskOnRecord(t *testing.T, w *world) {
	b := w.busy(t, "disk", writingOn)
	b.bothCurrent(t)
	partner := peer(w.volume(t, b.volume), b.host)
	check(t, w.lab.Cut(t.Context(), partner, labclient.Cut{From: b.host}))
	w.waitForVolume(t, b.volume, "has "+partner+" on record as outdated", func(v *cacheVolume) error {
		if !v.Status.IsOutdated(partner) {
			return fmt.Errorf("outdated: %q", v.Status.Outdated)
		}
		return nil
	})
	b.writes(t)
	node, stopped := b.host, true
	pid := w.shell(t, b.host, "cat /run/lab/services/csi-node.pid")
	w.shell(t, node, "kill -STOP "+pid)
	goOn := func() {
		if _, err := w.lab.Shell(context.WithoutCancel(t.Context()), node, "kill -CONT "+pid); err != nil {
			t.Errorf("%v", err)
		}
		stopped = false
	}
	defer func() {
		if stopped {
			goOn()
		}
	}()
	check(t, w.lab.Heal(t.Context()))
	b.becomes(t, "resynchronised", labtest.Redundant)
	check(t, w.lab.FailDisk(t.Context(), b.host, false))
	b.writes(t)
	b.becomes(t, "without its disk", func(s escache.VolumeStatus) bool { return s.DiskState == "Diskless" })
	if v := w.volume(t, b.volume); !slices.Equal(v.Status.Outdated, []string{partner}) {
		t.Errorf("nobody could change it, and outdated is %q", v.Status.Outdated)
	}
	goOn()
	w.waitForVolume(t, b.volume, "has the dead copy on record in its place", func(v *cacheVolume) error {
		if !slices.Equal(v.Status.Outdated, []string{b.host}) {
			return fmt.Errorf("outdated: %q", v.Status.Outdated)
		}
		return nil
	})
	// The host is lost. Its disk is itself again after a reboot, with old data.
	b.writes(t)
	w.losePower(t, b.host, b.name)
	old := b.host
	w.powerOn(t, old)
	b.name, b.host = "disk-heir", partner
	b.claimPod(t, partner)
	b.same(t, b.name, b.sums)
	if n := b.count(t, b.name); n < b.acked {
		t.Errorf("the count is %d on %s, and %d was acknowledged", n, partner, b.acked)
	}
	b.removePod(t, b.name, b.volume)
}

// becomes waits until the holder's escached says so.
func (b *busy) becomes(t *testing.T, what string, wanted func(escache.VolumeStatus) bool) {
	t.Helper()
	labtest.WaitForCommand(t, "volume "+b.volume+" is "+what+" on "+b.host, podTime, func(context.Context) error {
		if s := b.onHost(t, b.host, b.volume); !wanted(s) {
			return fmt.Errorf("it is %+v", s)
		}
		return nil
	})
}
