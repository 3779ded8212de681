//go:build e2e

package chart

import (
	"context"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"encoding/base64"
	"encoding/json"
	"encoding/pem"
	"errors"
	"fmt"
	"maps"
	"os"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	storagev1 "k8s.io/api/storage/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/escache/escache-csi/test/internal/page"
	"github.com/escache/escache-csi/test/labtest"
)

// faults does, one after the other, what each alert is for that peerLoss has not done, and undoes
// it.
func faults(t *testing.T, w *world) {
	before := w.quiet(t)
	for _, fault := range []struct {
		name string
		run  func(*testing.T, *world, figures)
	}{
		{"a volume is drained and stays so", drained},
		{"Ceph is stalled under a writer", stalled},
		{"Ceph refuses writes", refused},
		{"hosts are full", full},
		{"an image has no record", orphan},
		{"no csi-controller runs", noLeader},
		{"csi-node is gone from a host", unwatched},
		{"two csi-controllers lead", splitLeadership},
		{"a host loses its peer, and nobody can grant that it goes on", frozen},
		{"a volume is taken from a dead host", fenced},
		{"a record is older than the disks", behind},
		{"csi-node has another version", otherVersion},
		{"a host has no memory for its largest cache", shortOfMemory},
		{"csi-controller's certificate ends soon", certificateEnds},
	} {
		if !t.Run(fault.name, func(t *testing.T) {
			fault.run(t, w, before)
			before = w.quiet(t)
			w.steps.Mark(fault.name + ": raised, and over")
		}) {
			return
		}
	}
	w.goesOn(t, "first", w.count(t, "first"))
	w.hasNotFailed(t, "first")
}

// escache runs the plugin.
func (w *world) escache(t *testing.T, args ...string) (string, error) {
	t.Helper()
	return w.try(t.Context(), "", "bin/kubectl-escache", append(args, "--kubeconfig", os.Getenv("KUBECONFIG"))...)
}

func (w *world) endFlushes(t *testing.T) {
	t.Helper()
	w.kubectl(t, "delete", "cacheflushes", "--all", fmt.Sprintf("--timeout=%s", commandTime))
}

// dirtying leaves something that Ceph does not have.
const dirtying = "dd if=/dev/urandom of=/data/file bs=1M count=8 conv=fsync; " + idle

func drained(t *testing.T, w *world, before figures) {
	_, err := w.escache(t, "flush", "first", "--drain")
	check(t, err)
	w.raises(t, before, "EscacheDrained")
	w.endFlushes(t)
}

func stalled(t *testing.T, w *world, before figures) {
	check(t, w.lab.StallCeph(t.Context()))
	// More than the cache holds.
	w.kubectl(t, "exec", "first", "--", "sh", "-c", "dd if=/dev/zero of=/data/big bs=1M count=80 conv=fsync >/dev/null 2>&1 &")
	_, err := w.escache(t, "flush", "first")
	check(t, err)
	w.raisesAmong(t, before, usual, "EscacheCacheNearlyFull", "EscacheFlushStuck")
	w.raisesAmong(t, before, 13*time.Hour, "EscacheDirtyTooOld")
	check(t, w.lab.ResumeCeph(t.Context()))
	w.endFlushes(t)
	w.goesOn(t, "first", w.count(t, "first"))
}

// refused lets first rest: what it has on the way to Ceph would fail with the one volume that is to
// fail.
func refused(t *testing.T, w *world, before figures) {
	w.hasNotFailed(t, "first")
	w.removePod(t, "first", w.volume(t, "first"))
	w.pod(t, "refused", "second", "n2", dirtying)
	w.running(t, "refused")
	ceph := labtest.Open(t)
	ceph.RefuseWrites(t)
	if said, err := w.escache(t, "flush", "second", "--wait", "--timeout=30s"); err == nil {
		t.Errorf("flushed: %s", said)
	}
	w.raisesAmong(t, before, usual, "EscacheCacheError")
	ceph.TakeWrites(t)
	w.removePod(t, "refused", w.volume(t, "second"))
	w.endFlushes(t)
	w.pod(t, "first", "first", "n1", writing)
	w.running(t, "first")
}

func full(t *testing.T, w *world, before figures) {
	hosts := []string{"n2", "n3"} // a volume needs two
	for _, h := range hosts {
		check(t, w.lab.Fill(t.Context(), h, false))
	}
	w.raises(t, before, "EscacheGroupWithoutRoom")
	for _, h := range hosts {
		check(t, w.lab.Fill(t.Context(), h, true))
	}
}

func orphan(t *testing.T, w *world, before figures) {
	const image = "fast/escache-orphan"
	_, err := w.try(t.Context(), "", "rbd", "create", "--size", "1M", image)
	check(t, err)
	w.raises(t, before, "EscacheOrphans")
	_, err = w.try(t.Context(), "", "rbd", "rm", image)
	check(t, err)
}

func noLeader(t *testing.T, w *world, before figures) {
	w.kubectl(t, "-n", namespace, "scale", "deployment/escache-controller", "--replicas=0")
	w.raises(t, before, "EscacheNoLeader")
	w.kubectl(t, "-n", namespace, "scale", "deployment/escache-controller", "--replicas=2")
	w.rolledOut(t)
}

// unwatched keeps csi-node off a host whose escached goes on.
func unwatched(t *testing.T, w *world, before figures) {
	const elsewhere = `{"spec":{"template":{"spec":{"affinity":{"nodeAffinity":{"requiredDuringSchedulingIgnoredDuringExecution":` +
		`{"nodeSelectorTerms":[{"matchExpressions":[{"key":"kubernetes.io/hostname","operator":"NotIn","values":["n3"]}]}]}}}}}}}`
	w.kubectl(t, "-n", namespace, "patch", "daemonset/escache-node", "--type=merge", "--patch", elsewhere)
	w.raises(t, before, "EscacheHostUnwatched")
	w.kubectl(t, "-n", namespace, "rollout", "undo", "daemonset/escache-node")
	w.rolledOut(t)
}

// splitLeadership takes the lease away, until it is not the leader but the other one that makes it
// again: the former leader tries to renew its own for renewDeadline, and then ends.
func splitLeadership(t *testing.T, w *world, before figures) {
	var now figures // of that moment: the former leader ends soon after
	labtest.WaitForCommand(t, "two lead", podTime, func(ctx context.Context) (err error) {
		leads := 0.0
		now, err = w.scrape(ctx)
		for series, value := range now {
			if strings.HasPrefix(series, "leader_election_master_status{") {
				leads += value
			}
		}
		switch {
		case err != nil:
			return err
		case leads > 1:
			return nil
		}
		_, err = w.try(ctx, "", "kubectl", "-n", namespace, "delete", "lease", "escache-csi-controller", "--ignore-not-found")
		return errors.Join(fmt.Errorf("%.0f do", leads), err)
	})
	got, err := w.alerts(t.Context(), t.TempDir(), usual, before, now)
	check(t, err)
	if !slices.Contains(got, "EscacheSplitLeadership") {
		t.Errorf("the alerts %q are raised", got)
	}
	w.rolledOut(t)
}

func frozen(t *testing.T, w *world, before figures) {
	volume := w.volume(t, "first")
	peer := w.peer(t, volume, "n1")
	check(t, w.lab.StopAPIServer(t.Context()))
	check(t, w.lab.PowerOff(t.Context(), peer))
	w.raisesAmong(t, before, usual, "EscacheIOSuspended", "EscacheNoLeader")
	now, _ := w.scrape(t.Context())
	if got, err := w.alerts(t.Context(), t.TempDir(), usual, before, now); err != nil || slices.Contains(got, "EscacheCacheError") {
		t.Errorf("the alerts %q are raised: %v", got, err)
	}
	check(t, w.lab.StartAPIServer(t.Context()))
	w.sees(t, peer, "get", "cachevolume", volume, "-o", "jsonpath={.status.outdated[*]}")
	w.goesOn(t, "first", w.count(t, "first"))
	check(t, w.lab.PowerOn(t.Context(), peer))
	w.isWhole(t, volume)
}

func fenced(t *testing.T, w *world, before figures) {
	w.claim(t, "fenced", "n3", dirtying)
	w.running(t, "fenced")
	volume := w.volume(t, "fenced")
	check(t, w.lab.PowerOff(t.Context(), "n3"))
	w.kubectl(t, "wait", "--for=condition=Ready=Unknown", "node/n3", fmt.Sprintf("--timeout=%s", podTime))
	const taint = "node.kubernetes.io/out-of-service"
	w.kubectl(t, "taint", "node", "n3", taint+"=nodeshutdown:NoExecute")
	w.sees(t, "", "get", "cachevolume", volume, "-o", "jsonpath={.status.attachedNode}")
	w.raisesAmong(t, before, usual, "EscacheHostFenced", "EscacheHostWithoutEscached")
	check(t, w.lab.PowerOn(t.Context(), "n3"))
	w.kubectl(t, "wait", "--for=condition=Ready", "node/n3", fmt.Sprintf("--timeout=%s", podTime))
	w.kubectl(t, "taint", "node", "n3", taint+"-")
	w.isWhole(t, volume)
}

// behind sets a record back by one attachment, and then does what docs/restore-etcd.md says.
func behind(t *testing.T, w *world, before figures) {
	doc := page.Read(t, "docs/restore-etcd.md")
	volume := w.volume(t, "second")
	epoch, err := strconv.Atoi(w.kubectl(t, "get", "cachevolume", volume, "-o", "jsonpath={.status.epoch}"))
	check(t, err)
	w.kubectl(t, "patch", "cachevolume", volume, "--subresource=status", "--type=merge", "-p", fmt.Sprintf(`{"status":{"epoch":%d}}`, epoch-1))
	w.pod(t, "behind", "second", "n2", idle)
	w.raises(t, before, "EscacheRecordBehindDisks")
	w.kubectl(t, "delete", "pod", "behind", "--wait=true", fmt.Sprintf("--timeout=%s", podTime))
	for _, how := range []string{"--dry-run", "--apply"} {
		command := strings.Fields(doc.Line(t, "   kubectl escache adopt --all "+how))
		said, err := w.escache(t, command[2:]...)
		check(t, err)
		t.Log(said)
	}
	w.pod(t, "behind", "second", "n2", idle)
	w.running(t, "behind")
	w.removePod(t, "behind", volume)
}

// otherVersion replaces csi-node by one that differs in what it says of itself.
func otherVersion(t *testing.T, w *world, before figures) {
	w.kubectl(t, "-n", namespace, "set", "image", "daemonset/escache-node", "csi-node=ghcr.io/escache/csi-node:other")
	w.rolledOut(t)
	w.raises(t, before, "EscacheVersionsDiffer")
	w.kubectl(t, "-n", namespace, "rollout", "undo", "daemonset/escache-node")
	w.rolledOut(t)
}

// shortOfMemory makes a cache on n2 and another host, detaches it, and then takes most of what n2 needs to connect it.
func shortOfMemory(t *testing.T, w *world, before figures) {
	const large, leave = "5Gi", 70 << 20 // a cache of 5 GiB takes about 107 MiB
	var like storagev1.StorageClass
	check(t, json.Unmarshal([]byte(w.kubectl(t, "get", "storageclass", class, "-o", "json")), &like))
	like.ObjectMeta = metav1.ObjectMeta{Name: "large"}
	like.Parameters["cacheSize"] = large
	object, err := json.Marshal(like)
	check(t, err)
	w.apply(t, string(object))
	w.claimOf(t, "large", like.Name)
	w.pod(t, "large", "large", "n2", dirtying)
	w.running(t, "large")
	w.removePod(t, "large", w.volume(t, "large"))

	figure := func(name string) int64 {
		now, err := w.scrape(t.Context())
		check(t, err)
		return int64(now["escached_"+name+`{node="n2"}`])
	}
	take := figure("cache_memory_limit_bytes") - figure("cache_memory_bytes") - leave
	if take <= 0 {
		t.Fatalf("n2 has %d bytes less than what is to be left", -take)
	}
	w.shell(t, "n2", fmt.Sprintf("mkdir /run/hog && mount -t tmpfs -o size=%[1]dM hog /run/hog && dd if=/dev/zero of=/run/hog/file bs=1M count=%[1]d 2>&1",
		take>>20))
	w.raises(t, before, "EscacheHostMemoryShort")
	w.shell(t, "n2", "umount /run/hog && rmdir /run/hog")
	w.kubectl(t, "delete", "pvc/large", "storageclass/large", fmt.Sprintf("--timeout=%s", commandTime))
}

// certificateEnds shows the alert for a certificate that is not due, and that one which is due is renewed without a
// restart.
func certificateEnds(t *testing.T, w *world, before figures) {
	const day, left = 24 * time.Hour, 72 * time.Hour
	pods := w.pods(t)
	w.setCertificate(t, -day, left)
	w.raises(t, before, "EscacheCertificateEnds")
	w.setCertificate(t, -87*day, left)
	labtest.WaitForCommand(t, "csi-controller renews its certificate", podTime, func(context.Context) error {
		if end := w.certificate(t).NotAfter; time.Until(end) < 60*day {
			return fmt.Errorf("it ends at %s", end)
		}
		return nil
	})
	w.quiet(t)
	if now := w.pods(t); !maps.Equal(pods, now) {
		t.Errorf("pods before the renewal %q, after it %q", pods, now)
	}
}

// certificate is that of csi-controller, as the Secret has it.
func (w *world) certificate(t *testing.T) *x509.Certificate {
	t.Helper()
	return parsed(t, w.secret(t, "escache-controller-tls")["tls.crt"])
}

func parsed(t *testing.T, text []byte) *x509.Certificate {
	t.Helper()
	block, _ := pem.Decode(text)
	if block == nil {
		t.Fatalf("no certificate: %q", text)
	}
	certificate, err := x509.ParseCertificate(block.Bytes)
	check(t, err)
	return certificate
}

// setCertificate gives csi-controller's certificate another begin and end, in relation to now.
func (w *world) setCertificate(t *testing.T, begin, end time.Duration) {
	t.Helper()
	authority := w.secret(t, "escache-tls-authority")
	pair, err := tls.X509KeyPair(authority["clients.crt"], authority["clients.key"])
	check(t, err)
	made := w.certificate(t)
	made.NotBefore, made.NotAfter = time.Now().Add(begin), time.Now().Add(end)
	made.SignatureAlgorithm = x509.UnknownSignatureAlgorithm // that of the authority's key
	der, err := x509.CreateCertificate(rand.Reader, made, parsed(t, authority["clients.crt"]), made.PublicKey, pair.PrivateKey)
	check(t, err)
	text := pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der})
	w.kubectl(t, "-n", namespace, "patch", "secret", "escache-controller-tls", "--type=merge", "-p",
		fmt.Sprintf(`{"data":{"tls.crt":%q}}`, base64.StdEncoding.EncodeToString(text)))
}
