//go:build e2e

package node

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"k8s.io/client-go/tools/clientcmd"

	"github.com/escache/escache-csi/api/v1alpha1"
	"github.com/escache/escache-csi/internal/node/kube"
	"github.com/escache/escache-csi/test/lab/labclient"
	"github.com/escache/escache-csi/test/labtest"
)

const (
	namespace = "e2e-node"
	group     = "e2e-node"
	image     = "lab.escache.io/busybox:1"

	// podTime bounds getting a pod to run on emulated hosts that share two processors with
	// everything else.
	podTime     = 4 * time.Minute
	commandTime = 2 * time.Minute
)

// world is the lab and what is in its Kubernetes.
type world struct {
	lab   *labclient.Client
	api   *kube.Client
	nodes []string
	fsid  string
}

func open(t *testing.T) *world {
	t.Helper()
	client, err := labclient.Inside()
	check(t, err)
	status, err := client.Status(t.Context())
	check(t, err)
	config, err := clientcmd.BuildConfigFromFlags("", os.Getenv("KUBECONFIG"))
	check(t, err)
	api, err := kube.New(config)
	check(t, err)
	w := &world{lab: client, api: api, fsid: os.Getenv("LAB_CEPH_FSID")}
	for _, n := range status.Nodes {
		w.nodes = append(w.nodes, n.Name)
	}
	if len(w.nodes) != 3 || w.fsid == "" {
		t.Fatalf("the lab has nodes %q and Ceph %q; these tests need three and one", w.nodes, w.fsid)
	}
	ready := false
	defer func() {
		if !ready {
			labtest.SaveLogs(t, client)
		}
	}()
	// A node is in one group only, and another suite may have left its own.
	w.kubectl(t, "delete", "nodegroups", "--field-selector=metadata.name!="+group, "--timeout=120s")
	w.apply(t, fmt.Sprintf(`
apiVersion: v1
kind: Namespace
metadata: {name: %s}
---
apiVersion: escache.io/v1alpha1
kind: NodeGroup
metadata: {name: %s}
spec: {nodes: [%s]}
`, namespace, group, strings.Join(w.nodes, ", "))+w.class("ext4", "Immediate", "64Mi", "ext4")+w.class("xfs", "Immediate", "64Mi", "xfs"))
	labtest.WaitForCommand(t, "all kubelets know the nodes' group", commandTime, func(ctx context.Context) error {
		for _, n := range w.nodes {
			if got, err := w.try(ctx, "", "get", "node", n, "-o", `jsonpath={.metadata.labels.topology\.escache\.io/group}`); err != nil || got != group {
				return fmt.Errorf("%s has group %q: %w", n, got, err)
			}
		}
		return nil
	})
	w.ready(t)
	ready = true
	return w
}

// class is the StorageClass e2e-node-NAME.
func (w *world) class(name, binding, cacheSize, fsType string) string {
	return fmt.Sprintf(`
---
apiVersion: storage.k8s.io/v1
kind: StorageClass
metadata: {name: e2e-node-%s}
provisioner: csi.escache.io
allowVolumeExpansion: true
volumeBindingMode: %s
parameters: {clusterID: %q, pool: rbd, cacheSize: %s, cacheEngine: %s, csi.storage.k8s.io/fstype: %s}
`, name, binding, w.fsid, cacheSize, labtest.ClassEngine(), fsType)
}

// ready waits until volumes can be placed on all three hosts.
func (w *world) ready(t *testing.T) {
	t.Helper()
	labtest.WaitForCommand(t, "all three hosts are ready", commandTime, func(ctx context.Context) error {
		got, err := w.try(ctx, "", "get", "nodegroup", group, "-o", "jsonpath={.status.summary.ready}")
		if err == nil && got != "3/3" {
			err = fmt.Errorf("%q are", got)
		}
		return err
	})
}

func check(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// try runs kubectl as the administrator, for podTime where the context has no end of its own.
func (w *world) try(ctx context.Context, in string, args ...string) (string, error) {
	if _, ends := ctx.Deadline(); !ends {
		bounded, cancel := context.WithTimeout(ctx, podTime)
		defer cancel()
		ctx = bounded
	}
	cmd := exec.CommandContext(ctx, filepath.Join(os.Getenv(labclient.EnvBin), "kubectl"), args...)
	cmd.Stdin = strings.NewReader(in)
	return labtest.Output(cmd)
}

func (w *world) kubectl(t *testing.T, args ...string) string {
	t.Helper()
	out, err := w.try(t.Context(), "", append([]string{"-n", namespace}, args...)...)
	check(t, err)
	return out
}

func (w *world) apply(t *testing.T, objects string) {
	t.Helper()
	_, err := w.try(t.Context(), objects, "apply", "-f", "-")
	check(t, err)
}

// shell runs a script on a host.
func (w *world) shell(t *testing.T, node, script string) string {
	t.Helper()
	return labtest.Shell(t, w.lab, node, script, commandTime)
}

func claimObject(name, class, mode, size string) string {
	return fmt.Sprintf(`
apiVersion: v1
kind: PersistentVolumeClaim
metadata: {name: %s, namespace: %s}
spec: {accessModes: [ReadWriteOnce], volumeMode: %s, storageClassName: %s, resources: {requests: {storage: %s}}}
`, name, namespace, mode, class, size)
}

// claim makes a claim and waits until it is bound; it returns the volume's name.
func (w *world) claim(t *testing.T, name, class, mode, size string) string {
	t.Helper()
	w.apply(t, claimObject(name, class, mode, size))
	w.kubectl(t, "wait", "--for=jsonpath={.status.phase}=Bound", "pvc/"+name, "--timeout=120s")
	return w.volumeOf(t, name)
}

func (w *world) volumeOf(t *testing.T, claim string) string {
	t.Helper()
	return labtest.VolumeOf(func(args ...string) string { return w.kubectl(t, args...) }, claim)
}

func podObject(t *testing.T, name, node, claim, mode, script string) string {
	t.Helper()
	return labtest.Pod{
		Name: name, Namespace: namespace, Host: node, Claim: claim, Script: script, Block: mode == "Block", HostNetwork: true,
	}.Object(t)
}

// pod runs a script in a pod on a node and waits until the pod runs. It returns how long that took.
func (w *world) pod(t *testing.T, name, node, claim, mode, script string) time.Duration {
	t.Helper()
	begin := time.Now()
	w.apply(t, podObject(t, name, node, claim, mode, script))
	w.running(t, name)
	return time.Since(begin)
}

func (w *world) running(t *testing.T, pod string) {
	t.Helper()
	if _, err := w.try(t.Context(), "", "-n", namespace, "wait", "--for=condition=Ready", "pod/"+pod, fmt.Sprintf("--timeout=%s", podTime)); err != nil {
		events, _ := w.try(t.Context(), "", "-n", namespace, "get", "events", "--sort-by=.lastTimestamp")
		volumes, _ := w.try(t.Context(), "", "get", "cachevolumes", "-o", "wide")
		t.Fatalf("%v\n%s\n%s", err, events, volumes)
	}
}

// in runs a script in a pod.
func (w *world) in(t *testing.T, pod, script string) string {
	t.Helper()
	return w.kubectl(t, "exec", pod, "--", "sh", "-c", script)
}

// removePod deletes a pod and waits until the volume is attached nowhere. It returns how long both
// took.
func (w *world) removePod(t *testing.T, pod, volume string) time.Duration {
	t.Helper()
	begin := time.Now()
	w.kubectl(t, "delete", "pod", pod, "--wait=true", "--timeout=240s")
	labtest.WaitForCommand(t, "volume "+volume+" is attached nowhere", podTime, func(ctx context.Context) error {
		v, err := w.read(ctx, volume)
		if err == nil && v.Status.AttachedNode != "" {
			err = fmt.Errorf("it is attached to %s", v.Status.AttachedNode)
		}
		return err
	})
	return time.Since(begin)
}

func (w *world) read(ctx context.Context, volume string) (*v1alpha1.CacheVolume, error) {
	return w.api.Volume(ctx, volume)
}

func (w *world) volume(t *testing.T, name string) *v1alpha1.CacheVolume {
	t.Helper()
	v, err := w.read(t.Context(), name)
	check(t, err)
	return v
}

// cleanUp removes pods and claims, and waits until no volume is left. After a failure it keeps the
// logs.
func (w *world) cleanUp(t *testing.T) {
	ctx := context.WithoutCancel(t.Context())
	if t.Failed() {
		labtest.SaveLogs(t, w.lab)
	}
	w.mend(t)
	if _, err := w.try(ctx, "", "-n", namespace, "delete", "pod,pvc,volumegroupsnapshot,volumesnapshot", "--all", "--timeout=240s"); err != nil {
		t.Errorf("%v", err)
	}
	deadline := time.Now().Add(podTime)
	for {
		out, err := w.try(ctx, "", "get", "cachevolumes,readonlyvolumes,volumeattachments", "-o", "name")
		if err == nil && out == "" {
			return
		}
		if time.Now().After(deadline) {
			t.Errorf("left behind: %s %v", out, err)
			return
		}
		time.Sleep(time.Second)
	}
}
