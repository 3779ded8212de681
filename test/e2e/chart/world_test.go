//go:build e2e

package chart

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/escache/escache-csi/test/lab/labclient"
	"github.com/escache/escache-csi/test/labtest"
)

const (
	// These are what docs/install.md calls them.
	namespace = "escache-system"
	release   = "escache"
	group     = "rack-1"
	class     = "escache"

	// podTime bounds getting pods to run on emulated hosts that share two processors with
	// everything else.
	podTime     = 10 * time.Minute
	commandTime = 3 * time.Minute
)

// world is the lab, what is in its Kubernetes, and the values of the release.
type world struct {
	lab     *labclient.Client
	hosts   []*labtest.Host
	values  string   // file
	targets []target // what Prometheus would ask
	steps   *labtest.Timeline
}

func open(t *testing.T) *world {
	t.Helper()
	client, err := labclient.Inside()
	check(t, err)
	return &world{lab: client, hosts: labtest.Open(t).Hosts, values: filepath.Join(t.TempDir(), "values.yaml"), steps: labtest.NewTimeline()}
}

func check(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// try runs a command inside the lab and returns what it printed.
func (w *world) try(ctx context.Context, in, name string, args ...string) (string, error) {
	ctx, cancel := context.WithTimeout(ctx, podTime+commandTime)
	defer cancel()
	cmd := exec.CommandContext(ctx, name, args...)
	home := filepath.Dir(w.values)
	cmd.Env = append(os.Environ(), "HELM_CACHE_HOME="+home, "HELM_CONFIG_HOME="+home, "HELM_DATA_HOME="+home)
	cmd.Stdin = strings.NewReader(in)
	return labtest.Output(cmd)
}

func (w *world) kubectl(t *testing.T, args ...string) string {
	t.Helper()
	out, err := w.try(t.Context(), "", "kubectl", args...)
	check(t, err)
	return out
}

func (w *world) apply(t *testing.T, objects string) {
	t.Helper()
	_, err := w.try(t.Context(), objects, "kubectl", "apply", "-f", "-")
	check(t, err)
}

func (w *world) shell(t *testing.T, host, script string) string {
	t.Helper()
	return labtest.Shell(t, w.lab, host, script, commandTime)
}

// sees waits until kubectl prints what is wanted.
func (w *world) sees(t *testing.T, want string, args ...string) {
	t.Helper()
	labtest.WaitForCommand(t, fmt.Sprintf("kubectl %s prints %q", strings.Join(args, " "), want), podTime, func(ctx context.Context) error {
		got, err := w.try(ctx, "", "kubectl", args...)
		if err == nil && got != want {
			err = fmt.Errorf("it prints %q", got)
		}
		return err
	})
}

// ready waits until volumes can be placed on all three hosts.
func (w *world) ready(t *testing.T) {
	t.Helper()
	w.sees(t, "3/3", "get", "nodegroup", group, "-o", "jsonpath={.status.summary.ready}")
}

// claim makes a claim, and a pod on a host that runs a script with its volume.
func (w *world) claim(t *testing.T, name, host, script string) {
	t.Helper()
	w.claimOf(t, name, class)
	w.pod(t, name, name, host, script)
}

// claimOf makes a claim of a StorageClass.
func (w *world) claimOf(t *testing.T, name, class string) {
	t.Helper()
	w.apply(t, fmt.Sprintf(`
apiVersion: v1
kind: PersistentVolumeClaim
metadata: {name: %s}
spec: {accessModes: [ReadWriteOnce], storageClassName: %s, resources: {requests: {storage: 256Mi}}}
`, name, class))
}

func (w *world) pod(t *testing.T, name, claim, host, script string) {
	t.Helper()
	w.apply(t, labtest.Pod{Name: name, Host: host, Claim: claim, Script: script}.Object(t))
}

func (w *world) running(t *testing.T, pod string) {
	t.Helper()
	w.kubectl(t, "wait", "--for=condition=Ready", "pod/"+pod, fmt.Sprintf("--timeout=%s", podTime))
}

// volume is the CacheVolume of a claim.
func (w *world) volume(t *testing.T, claim string) string {
	t.Helper()
	return labtest.VolumeOf(func(args ...string) string { return w.kubectl(t, args...) }, claim)
}

// removePod deletes a pod and waits until its volume is written back and attached nowhere.
func (w *world) removePod(t *testing.T, pod, volume string) {
	t.Helper()
	w.kubectl(t, "delete", "pod", pod, "--wait=true", fmt.Sprintf("--timeout=%s", podTime))
	w.sees(t, "", "get", "cachevolume", volume, "-o", "jsonpath={.status.attachedNode}")
}

// say shows, after a failure, what the driver's pods have to say.
func (w *world) say(t *testing.T) {
	if !t.Failed() {
		return
	}
	ctx := context.WithoutCancel(t.Context())
	for _, args := range [][]string{
		{"get", "pods", "-A", "-o", "wide"}, {"get", "nodegroups,cachevolumes,pvc,volumeattachments,csinodes,csistoragecapacities", "-A", "-o", "wide"},
		{"get", "events", "-A", "--sort-by=.lastTimestamp"},
		{"-n", namespace, "logs", "-l", "app.kubernetes.io/name=escache-csi", "--all-containers", "--prefix", "--tail=25", "--max-log-requests=30"},
	} {
		out, err := w.try(ctx, "", "kubectl", args...)
		t.Logf("kubectl %s: %v\n%s", strings.Join(args, " "), err, out)
	}
	for _, h := range w.hosts {
		out, err := w.lab.Shell(ctx, h.Name, "dmesg | tail -n 15; cat /proc/drbd; dmsetup status --noflush; free -m; df -h / /run; "+
			"grep '^E' /var/log/kubelet.log | tail -n 15; tail -n 15 /run/escache/fence-peer.log; true")
		t.Logf("%s: %v\n%s", h.Name, err, out)
	}
}
