//go:build e2e

package node

import (
	"context"
	"fmt"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/escache/escache-csi/internal/authority"
	"github.com/escache/escache-csi/test/labtest"
)

// writing ends, and its pod with it, at the first write that fails. Whoever reads the count finds
// one that is whole; that everything below it is on disk is known.
const writing = `n=0
while dd if=/dev/zero of=/data/block bs=4k count=16 conv=fsync 2>/dev/null &&
  echo $((n=n+1)) > /data/new && sync /data/new && mv /data/new /data/n && sync /data; do sleep 0.1; done
echo FAILED; exit 1`

func (w *world) count(t *testing.T, pod string) int {
	t.Helper()
	n, err := strconv.Atoi(w.in(t, pod, "cat /data/n"))
	check(t, err)
	return n
}

// goesOn waits until the pod's writer has got further.
func (w *world) goesOn(t *testing.T, pod string, from int) {
	t.Helper()
	labtest.WaitForCommand(t, "the writer of "+pod+" goes on", commandTime, func(ctx context.Context) error {
		out, err := w.try(ctx, "", "-n", namespace, "exec", pod, "--", "cat", "/data/n")
		if err != nil {
			return err
		}
		if n, err := strconv.Atoi(out); err != nil || n <= from {
			return fmt.Errorf("at %q: %w", out, err)
		}
		return nil
	})
}

// written is a count that is on disk, and not only to be read.
func (w *world) written(t *testing.T, pod string) int {
	t.Helper()
	w.goesOn(t, pod, 3)
	n := w.count(t, pod)
	w.goesOn(t, pod, n)
	return n
}

// kill ends a service of a host and waits until its keeper has started another.
func (w *world) kill(t *testing.T, node, service string) time.Duration {
	t.Helper()
	file := "/run/lab/services/" + service + ".pid"
	old := w.shell(t, node, "cat "+file)
	begin := time.Now()
	w.shell(t, node, "kill -9 "+old)
	w.back(t, node, service, old)
	return time.Since(begin)
}

func (w *world) back(t *testing.T, node, service, old string) {
	t.Helper()
	labtest.WaitForCommand(t, "a new "+service+" on "+node, commandTime, func(ctx context.Context) error {
		pid, err := w.lab.Shell(ctx, node, "p=$(cat /run/lab/services/"+service+".pid) && kill -0 $p && echo $p")
		if err == nil && strings.TrimSpace(pid) == old {
			err = fmt.Errorf("process %s has not gone", old)
		}
		return err
	})
}

// restarts kills every service that a volume in use depends on.
func restarts(t *testing.T, w *world) {
	volume := w.claim(t, "busy", "e2e-node-ext4", "Filesystem", "256Mi")
	node := w.nodes[0]
	w.pod(t, "busy", node, "busy", "Filesystem", writing)
	w.goesOn(t, "busy", 0)
	for _, service := range []string{"csi-node", "escached", "kubelet", "csi-node"} {
		from := w.count(t, "busy")
		t.Logf("%s is back after %s", service, w.kill(t, node, service))
		w.goesOn(t, "busy", from)
	}
	labtest.WaitForCommand(t, "the kubelet knows the driver", commandTime, func(ctx context.Context) error {
		out, err := w.try(ctx, "", "get", "csinode", node, "-o", "jsonpath={.spec.drivers[*].name}")
		if err == nil && !strings.Contains(out, "csi.escache.io") {
			err = fmt.Errorf("drivers %q", out)
		}
		return err
	})
	if phase := w.kubectl(t, "get", "pod", "busy", "-o", "jsonpath={.status.phase}"); phase != "Running" {
		t.Errorf("the pod is %s", phase)
	}
	if out := w.kubectl(t, "logs", "busy"); strings.Contains(out, "FAILED") {
		t.Error("a write has failed")
	}
	w.removePod(t, "busy", volume)
}

// forgotten restarts the kubelet while a volume is unstaged, which takes long because Ceph is stalled. The new kubelet does not know of
// the volume: no pod has it any more.
func forgotten(t *testing.T, w *world) {
	volume := w.claim(t, "forgotten", "e2e-node-ext4", "Filesystem", "256Mi")
	from, to := w.nodes[0], w.nodes[1]
	w.pod(t, "forgotten", from, "forgotten", "Filesystem", writing)
	n := w.written(t, "forgotten")
	check(t, w.lab.StallCeph(t.Context()))
	w.kubectl(t, "delete", "pod", "forgotten", "--wait=true", "--timeout=240s")
	labtest.WaitForCommand(t, "the volume is unmounted on "+from, commandTime, func(ctx context.Context) error {
		_, err := w.lab.Shell(ctx, from, "! grep -q globalmount /proc/mounts")
		return err
	})
	w.kill(t, from, "kubelet")
	labtest.WaitForCommand(t, "csi-node is asked to unstage it", podTime, func(ctx context.Context) error {
		v, err := w.read(ctx, volume)
		if err == nil && !authority.MustUnstage(v, from) {
			err = fmt.Errorf("status %+v", v.Status)
		}
		return err
	})
	check(t, w.lab.ResumeCeph(t.Context()))
	t.Logf("another node has it after %s", w.pod(t, "heir", to, "forgotten", "Filesystem", writingOn))
	if now := w.count(t, "heir"); now < n {
		t.Errorf("the count is %d, and was %d before", now, n)
	}
	w.removePod(t, "heir", volume)
}

// restagedOptions restarts the kubelet while an xfs is mounted whose options the kernel does not show as they were asked
// for. The kubelet stages and publishes each volume of a running pod again.
func restagedOptions(t *testing.T, w *world) {
	node := w.nodes[0]
	w.apply(t, mountedWith(t, w.class("options", "Immediate", "64Mi", "xfs"), "discard noatime,nodiratime"))
	defer func() {
		_, _ = w.try(context.WithoutCancel(t.Context()), "", "delete", "storageclass", "e2e-node-options")
	}()
	volume := w.claim(t, "options", "e2e-node-options", "Filesystem", "512Mi")
	w.pod(t, "options", node, "options", "Filesystem", writing)
	w.goesOn(t, "options", 0)
	if got := w.in(t, "options", "grep ' /data ' /proc/mounts"); !strings.Contains(got, " xfs ") || !strings.Contains(got, "noatime,nodiratime") {
		t.Errorf("mounted: %s", got)
	}
	staged, refused := w.calls(t, node, "NodeStageVolume")
	from := w.count(t, "options")
	t.Logf("the kubelet is back after %s", w.kill(t, node, "kubelet"))
	labtest.WaitForCommand(t, "the volume is staged again", commandTime, func(context.Context) error {
		if again, _ := w.calls(t, node, "NodeStageVolume"); again <= staged {
			return fmt.Errorf("%d calls, as before", again)
		}
		return nil
	})
	if _, now := w.calls(t, node, "NodeStageVolume"); now > refused {
		t.Errorf("csi-node has refused %d calls before the kubelet was restarted, and %d in all", refused, now)
	}
	w.goesOn(t, "options", from)
	w.removePod(t, "options", volume)
}

// calls counts a method's calls on a host: those that ended well, and the others.
func (w *world) calls(t *testing.T, node, method string) (good, bad int) {
	t.Helper()
	for line := range strings.Lines(w.shell(t, node, "wget -q -O - http://127.0.0.1:9810/metrics")) {
		name, rest, _ := strings.Cut(line, "} ")
		if !strings.HasPrefix(name, "escache_node_csi_call_seconds_count{") || !strings.Contains(name, fmt.Sprintf("method=%q", method)) {
			continue
		}
		n, err := strconv.Atoi(strings.TrimSpace(rest))
		check(t, err)
		if strings.Contains(name, `code="OK"`) {
			good += n
		} else {
			bad += n
		}
	}
	return good, bad
}

const crashDir = "/run/escache-crashpoints"

// killedAtEveryStep has csi-node kill itself at each crash point while a pod comes and goes: each
// time the pod runs in the end, with its data.
func killedAtEveryStep(t *testing.T, w *world) {
	node := w.nodes[1]
	w.shell(t, node, "mkdir -p "+crashDir+"; rm -f "+crashDir+"/*")
	defer w.shell(t, node, "rm -rf "+crashDir)
	pid := func() string { return w.shell(t, node, "cat /run/lab/services/csi-node.pid") }
	for i, point := range []string{
		"node_stage/compared", "node_stage/connected", "node_stage/record_written", "node_stage/filesystem_made", "node_stage/record_closed",
		"node_stage/mounted",
	} {
		name := fmt.Sprintf("crash-%d", i)
		volume := w.claim(t, name, "e2e-node-ext4", "Filesystem", "128Mi")
		old := pid()
		w.shell(t, node, "echo "+point+" > "+crashDir+"/at")
		took := w.pod(t, name, node, name, "Filesystem", forever)
		if got := pid(); got == old {
			t.Errorf("%s was not reached", point)
		}
		w.in(t, name, "echo data > /data/file; sync /data/file")
		if record := w.volume(t, volume).Annotations["escache.io/filesystem"]; !strings.Contains(record, `"formatted"`) {
			t.Errorf("%s: record %s", point, record)
		}
		t.Logf("killed at %s: running after %s", point, took)
		w.removePod(t, name, volume)
	}
	for i, point := range []string{"node_unstage/unmounted", "node_unstage/flushed", "node_unstage/stopped"} {
		claim := fmt.Sprintf("crash-%d", i)
		volume := w.volumeOf(t, claim)
		w.pod(t, "leaving", node, claim, "Filesystem", forever)
		old := pid()
		w.shell(t, node, "echo "+point+" > "+crashDir+"/at")
		took := w.removePod(t, "leaving", volume)
		if got := pid(); got == old {
			t.Errorf("%s was not reached", point)
		}
		t.Logf("killed at %s: detached after %s", point, took)
		w.pod(t, "looking", w.nodes[2], claim, "Filesystem", forever)
		if got := w.in(t, "looking", "cat /data/file"); got != "data" {
			t.Errorf("killed at %s: the data is %q", point, got)
		}
		w.removePod(t, "looking", volume)
	}
}

// reboot takes a host's power away under a writer. The pod's object stays, so the kubelet starts it
// again, which needs the volume staged again.
func reboot(t *testing.T, w *world) {
	volume := w.claim(t, "power", "e2e-node-ext4", "Filesystem", "256Mi")
	node := w.nodes[0]
	w.pod(t, "power", node, "power", "Filesystem", strings.Replace(writing, "n=0", "n=$(cat /data/n 2>/dev/null || echo 0)", 1))
	from := w.written(t, "power")
	check(t, w.lab.PowerOff(t.Context(), node))
	begin := time.Now()
	check(t, w.lab.PowerOn(t.Context(), node))
	t.Logf("%s is on again after %s", node, time.Since(begin))
	// A pod that is never restarted has failed with its host; another one takes its place on the
	// same host, as a controller would do.
	w.kubectl(t, "delete", "pod", "power", "--grace-period=0", "--force", "--wait=false")
	labtest.WaitForCommand(t, "the old pod is gone", podTime, func(ctx context.Context) error {
		out, err := w.try(ctx, "", "-n", namespace, "get", "pod", "-o", "name")
		if err == nil && out != "" {
			err = fmt.Errorf("there is %s", out)
		}
		return err
	})
	w.pod(t, "power-again", node, "power", "Filesystem", forever)
	if got := w.count(t, "power-again"); got < from {
		t.Errorf("the count is %d, and %d was written before the power went", got, from)
	}
	t.Logf("staged again after %s", time.Since(begin))
	w.removePod(t, "power-again", volume)
}
