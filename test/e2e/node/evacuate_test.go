//go:build e2e

package node

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"slices"
	"strings"
	"testing"
	"text/tabwriter"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/escache/escache-csi/api/v1alpha1"
	"github.com/escache/escache-csi/test/labtest"
)

const (
	crowdName = "crowd"
	// crowdAcks is a directory of the host in which each pod of the crowd notes what its volume has
	// acknowledged, and a write that failed.
	crowdAcks = "/run/e2e-acks"
	// crowdMiB is what each pod makes dirty at once; below the mark from which a cache of 64 MiB
	// writes back by itself.
	crowdMiB = 12
)

// crowdWriter counts in its volume, each count synced before it is noted outside; it goes on where
// it was after a move. Whoever reads a count finds one that is whole. A write that fails is noted
// before the container ends.
const crowdWriter = `trap 'exit 0' TERM
n=$(cat /data/n 2>/dev/null || echo 0)
while dd if=/dev/zero of=/data/block bs=4k count=4 conv=fsync 2>/dev/null &&
  echo $((n=n+1)) > /data/new && sync /data/new && mv /data/new /data/n && sync /data; do
  echo $n > /acks/new-$POD; mv /acks/new-$POD /acks/$POD; sleep 1
done
echo "$POD after $n" >> /acks/FAILED; exit 1`

func crowdObject(t *testing.T, pods int) string {
	t.Helper()
	script, err := json.Marshal(crowdWriter)
	check(t, err)
	return fmt.Sprintf(`
apiVersion: apps/v1
kind: StatefulSet
metadata: {name: %[1]s, namespace: %[2]s}
spec:
  serviceName: %[1]s
  replicas: %[3]d
  podManagementPolicy: Parallel
  selector: {matchLabels: {app: %[1]s}}
  template:
    metadata: {labels: {app: %[1]s}}
    spec:
      terminationGracePeriodSeconds: 5
      hostNetwork: true
      automountServiceAccountToken: false
      containers:
      - name: c
        image: %[4]s
        imagePullPolicy: Never
        env: [{name: POD, valueFrom: {fieldRef: {fieldPath: metadata.name}}}]
        command: [sh, -c, %[5]s]
        volumeMounts: [{name: data, mountPath: /data}, {name: acks, mountPath: /acks}]
      volumes: [{name: acks, hostPath: {path: %[6]s, type: DirectoryOrCreate}}]
  volumeClaimTemplates:
  - metadata: {name: data}
    spec: {accessModes: [ReadWriteOnce], storageClassName: e2e-node-crowd, resources: {requests: {storage: 128Mi}}}
`, crowdName, namespace, pods, image, script, crowdAcks)
}

// crowd is many pods that write on one host, and what moving them away took.
type crowd struct {
	*world

	pods int
	host string
}

// round is one emptying of the host.
type round struct {
	dirty                                 int64 // before, in bytes
	evacuated, drained, detached, running time.Duration
	written                               int64 // by the flushes of the unstages, in bytes
	unstages                              histogram
	late, refused                         int // unstages that had to be repeated
}

// TestEvacuate empties a host of pods that write, once as it is and once after `kubectl escache
// evacuate`, and prints what each took.
func TestEvacuate(t *testing.T) {
	w := open(t)
	defer w.cleanUp(t)
	c := &crowd{world: w, pods: labtest.Number(t, "ESCACHE_E2E_PODS", 10), host: w.nodes[0]}
	for _, n := range w.nodes {
		w.shell(t, n, "rm -rf "+crowdAcks) // of an earlier run
	}
	c.cordon(t, c.without(c.host)...)
	w.apply(t, w.class("crowd", "WaitForFirstConsumer", "64Mi", "ext4")+"---\n"+crowdObject(t, c.pods))
	defer func() {
		c.cordon(t)
		ctx := context.WithoutCancel(t.Context())
		if _, err := w.try(ctx, "", "-n", namespace, "delete", "statefulset", crowdName, "--timeout=240s"); err != nil {
			t.Errorf("%v", err)
		}
		_, _ = w.escache(t, "uncordon", c.host)
	}()
	var rounds []round
	for _, evacuate := range []bool{false, true} {
		rounds = append(rounds, c.empty(t, evacuate))
	}
	c.print(rounds[0], rounds[1])
	// Seconds say more of the machine than of the driver; that nothing is left to write does not
	// depend on it.
	if plain, evacuated := rounds[0].written, rounds[1].written; plain < int64(c.pods)*crowdMiB<<20 || evacuated != 0 {
		t.Errorf("%d bytes were written back while the pods left, and %d after the evacuation", plain, evacuated)
	}
	if rounds[1].refused > 0 {
		t.Errorf("after the evacuation %d unstages were refused", rounds[1].refused)
	}
}

// empty gathers the crowd on the host, dirties its caches and drains it.
func (c *crowd) empty(t *testing.T, evacuate bool) round {
	t.Helper()
	c.gather(t)
	var r round
	sums := make([]string, c.pods)
	together(c.pods, func(i int) {
		sums[i] = c.in(t, c.pod(i), fmt.Sprintf("dd if=/dev/urandom of=/data/file bs=1M count=%d conv=fsync 2>/dev/null; md5sum < /data/file", crowdMiB))
	})
	var caches int
	if r.dirty, caches = c.kernelDirty(t, c.host); caches != c.pods || r.dirty < int64(c.pods)*crowdMiB<<20 {
		t.Fatalf("%s has %d caches with %d bytes dirty", c.host, caches, r.dirty)
	}
	if evacuate {
		begin := time.Now()
		said := c.done(t, "evacuate", c.host, "--wait", "--timeout=10m")
		r.evacuated = time.Since(begin)
		t.Logf("kubectl escache evacuate: %s", said)
		c.staysClean(t)
	}
	before, lateBefore, refusedBefore := c.unstages(t)
	written := c.written(t)
	begin := time.Now()
	c.kubectl(t, "drain", c.host, "--ignore-daemonsets", "--delete-emptydir-data", "--timeout=10m")
	r.drained = time.Since(begin)
	labtest.WaitForCommand(t, "all pods of the crowd run elsewhere", manyTime, func(ctx context.Context) error {
		if r.detached == 0 {
			left, err := c.attached(ctx)
			if err != nil || left > 0 {
				return fmt.Errorf("%d volumes are attached to %s: %w", left, c.host, err)
			}
			r.detached = time.Since(begin)
		}
		return c.ready(ctx, func(node string) bool { return node != c.host })
	})
	r.running = time.Since(begin)
	after, late, refused := c.unstages(t)
	r.written = c.written(t) - written
	r.unstages, r.late, r.refused = after.without(before), late-lateBefore, refused-refusedBefore
	if got := r.unstages.count(); got != c.pods {
		t.Errorf("%d volumes were unstaged, there are %d", got, c.pods)
	}
	c.nothingLost(t, sums)
	c.done(t, "uncordon", c.host)
	return r
}

func (*crowd) pod(i int) string { return fmt.Sprintf("%s-%d", crowdName, i) }

// cordon keeps new pods off these hosts, and lets them onto the others.
func (c *crowd) cordon(t *testing.T, hosts ...string) {
	t.Helper()
	for _, n := range c.nodes {
		verb := "uncordon"
		if slices.Contains(hosts, n) {
			verb = "cordon"
		}
		_, err := c.try(context.WithoutCancel(t.Context()), "", verb, n)
		check(t, err)
	}
}

// gather has the whole crowd run on the host.
func (c *crowd) gather(t *testing.T) {
	t.Helper()
	c.cordon(t, c.without(c.host)...)
	c.kubectl(t, "delete", "pod", "-l", "app="+crowdName, "--field-selector=spec.nodeName!="+c.host, "--wait=false")
	took := labtest.WaitForCommand(t, "all pods of the crowd run on "+c.host, manyTime, func(ctx context.Context) error {
		return c.ready(ctx, func(node string) bool { return node == c.host })
	})
	t.Logf("%d pods run on %s after %s", c.pods, c.host, took)
	c.cordon(t)
}

// ready is nil once every pod is Ready on a node that is right.
func (c *crowd) ready(ctx context.Context, right func(node string) bool) error {
	text, err := c.try(ctx, "", "-n", namespace, "get", "pod", "-l", "app="+crowdName, "-o", "json")
	if err != nil {
		return err
	}
	var list corev1.PodList
	if err := json.Unmarshal([]byte(text), &list); err != nil {
		return err
	}
	ready := 0
	for i := range list.Items {
		p := &list.Items[i]
		for _, condition := range p.Status.Conditions {
			if p.DeletionTimestamp == nil && condition.Type == corev1.PodReady && condition.Status == corev1.ConditionTrue && right(p.Spec.NodeName) {
				ready++
			}
		}
	}
	if ready != c.pods {
		return fmt.Errorf("%d of %d pods are", ready, c.pods)
	}
	return nil
}

// attached is how many volumes the host has.
func (c *crowd) attached(ctx context.Context) (int, error) {
	text, err := c.try(ctx, "", "get", "cachevolumes", "-o", "json")
	if err != nil {
		return 0, err
	}
	var list v1alpha1.CacheVolumeList
	err = json.Unmarshal([]byte(text), &list)
	n := 0
	for i := range list.Items {
		if list.Items[i].Status.AttachedNode == c.host {
			n++
		}
	}
	return n, err
}

// staysClean looks again and again whether anything is dirty, while the pods write.
func (c *crowd) staysClean(t *testing.T) {
	t.Helper()
	before := c.acks(t, c.host)
	const looks = 10
	for range looks {
		if dirty, caches := c.kernelDirty(t, c.host); dirty != 0 || caches != c.pods {
			t.Errorf("evacuated, and %d bytes are dirty in %d caches", dirty, caches)
		}
		time.Sleep(time.Second)
	}
	after := c.acks(t, c.host)
	for pod, n := range after {
		if n <= before[pod] {
			t.Errorf("%s has written nothing since the evacuation: %d, then %d", pod, before[pod], n)
		}
	}
	t.Logf("dirty was 0 at each of %d looks, while the pods wrote from %v to %v", looks, before, after)
}

// acks is what the pods on a host have noted.
func (c *crowd) acks(t *testing.T, host string) map[string]int {
	t.Helper()
	noted := map[string]int{}
	for line := range strings.Lines(c.shell(t, host, "cd "+crowdAcks+" && grep -H . "+crowdName+"-*")) {
		pod, text, _ := strings.Cut(strings.TrimSpace(line), ":")
		var n int
		if _, err := fmt.Sscan(text, &n); err != nil {
			t.Fatalf("%q: %v", line, err)
		}
		noted[pod] = n
	}
	return noted
}

// nothingLost compares what the pods have now with what was acknowledged to them on the host, and
// looks for writes that failed.
func (c *crowd) nothingLost(t *testing.T, sums []string) {
	t.Helper()
	acks := c.acks(t, c.host)
	if len(acks) != c.pods {
		t.Errorf("%d pods have noted something on %s", len(acks), c.host)
	}
	together(c.pods, func(i int) {
		out := c.in(t, c.pod(i), "md5sum < /data/file; cat /data/n")
		sum, text, _ := strings.Cut(out, "\n")
		var n int
		if _, err := fmt.Sscan(text, &n); err != nil || n < acks[c.pod(i)] || sum != sums[i] {
			t.Errorf("%s has %d and %q after its move; acknowledged were %d and %q", c.pod(i), n, sum, acks[c.pod(i)], sums[i])
		}
	})
	for _, n := range c.nodes {
		if failed := c.shell(t, n, "cat "+crowdAcks+"/FAILED 2>/dev/null || true"); failed != "" {
			t.Errorf("writes failed on %s: %s", n, failed)
		}
		if failed := c.failedIO(t, n); failed != "" {
			t.Errorf("the kernel of %s: %s", n, failed)
		}
	}
}

// written is what flushes on the host have written back so far.
func (c *crowd) written(t *testing.T) (bytes int64) {
	t.Helper()
	for line := range strings.Lines(c.shell(t, c.host, "wget -q -O - http://127.0.0.1:9810/metrics/escached | grep '^escached_flush'")) {
		if !strings.HasPrefix(line, "escached_flushed_bytes_total{") {
			continue // others are there from the start: that a host has written nothing back yet is no error
		}
		_, value, _ := strings.Cut(strings.TrimSpace(line), "} ")
		var n float64
		if _, err := fmt.Sscan(value, &n); err != nil {
			t.Fatalf("%q: %v", line, err)
		}
		bytes += int64(n)
	}
	return bytes
}

func (c *crowd) print(plain, evacuated round) {
	out := tabwriter.NewWriter(os.Stdout, 0, 0, 3, ' ', tabwriter.AlignRight)
	fmt.Fprintf(out, "\n%d pods that write with fsync leave a host, %d MiB dirty each\nas it is\tevacuated before\t\n", c.pods, crowdMiB)
	row := func(what string, value func(round) string) {
		fmt.Fprintf(out, "%s\t%s\t  %s\n", value(plain), value(evacuated), what)
	}
	took := func(of func(round) time.Duration) func(round) string {
		return func(r round) string {
			if of(r) == 0 {
				return "-"
			}
			return fmt.Sprintf("%.1f s", of(r).Seconds())
		}
	}
	within := func(share float64) func(round) string {
		return func(r round) string { return fmt.Sprintf("≤ %g s", r.unstages.quantile(share)) }
	}
	row("dirty on the host at the start", func(r round) string { return v1alpha1.HumanBytes(r.dirty) })
	row("kubectl escache evacuate --wait, while the pods write", took(func(r round) time.Duration { return r.evacuated }))
	row("kubectl drain", took(func(r round) time.Duration { return r.drained }))
	row("… begun → every volume detached from the host", took(func(r round) time.Duration { return r.detached }))
	row("… begun → every pod Ready on another host", took(func(r round) time.Duration { return r.running }))
	row("NodeUnstage of a volume: the middle one", within(0.5)) //nolint:mnd // the median
	row("NodeUnstage of a volume: the slowest", within(1))
	row("volumes that took longer than 1 s", func(r round) string { return fmt.Sprint(r.unstages.above(1)) })
	row("written back to Ceph by these unstages", func(r round) string { return v1alpha1.HumanBytes(r.written) })
	row("unstages that were out of time, and repeated", func(r round) string { return fmt.Sprint(r.late) })
	row("unstages that were refused", func(r round) string { return fmt.Sprint(r.refused) })
	_ = out.Flush()
}
