//go:build e2e

package operators

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/escache/escache-csi/api/v1alpha1"
	"github.com/escache/escache-csi/internal/pause"
	"github.com/escache/escache-csi/test/kubetest"
)

const driverNamespace = "escache-system"

// preflight checks a cluster before the chart is installed, and after. The chart's objects are real, and so are
// Kubernetes' controllers; the kubelets of the hosts are played.
func (w *world) preflight(t *testing.T) {
	out := w.escache(t, 1, "preflight")
	crds, err := filepath.Glob(filepath.Join(checkout, "charts/escache-csi/crds/*.yaml"))
	if err != nil || len(crds) == 0 {
		t.Fatalf("CRDs: %v, %v", crds, err)
	}
	says(t, out, fmt.Sprint(len(crds), " of escache.io/v1alpha1"), "there is no CSIDriver csi.escache.io", "namespace escache-system has none", "-> install the chart",
		"host n1", "csi-node has not registered there", "kubectl label node n1")
	for line := range strings.Lines(out) {
		if n := len([]rune(strings.TrimSuffix(line, "\n"))); n > 80 {
			t.Errorf("%d columns: %s", n, line)
		}
	}
	nobody := filepath.Join(t.TempDir(), "nobody.kubeconfig")
	must(t, os.WriteFile(nobody, w.kube.UserKubeconfig(t, "nobody"), 0o600))
	says(t, w.as(t, nobody, "", 1, "preflight"), "forbidden", "ask an administrator")

	w.installChart(t)
	w.registered(t)
	says(t, w.escache(t, 1, "preflight"), "0 of 2 pods are ready", "no node has the label", "Secret escache-ceph-node",
		"it is not there, and the pods of", "need its keyring")
	w.playKubelets(t)
	for _, name := range []string{"escache-ceph-controller", "escache-ceph-node"} {
		w.kubectl(t, "-n", driverNamespace, "create", "secret", "generic", name, "--from-literal=keyring=x")
	}
	out = w.escache(t, 0, "preflight", "--group=rack1")
	says(t, out, "all 2 pods are ready", "the test leads", "group rack1", "3 hosts, takes new volumes", "StorageClass escache", "pool fast",
		"the certificate of csi-controller ends", "on, with the VolumeSnapshotClass escache", "ok")

	list := struct {
		Failed int `json:"failed"`
	}{Failed: -1}
	must(t, json.Unmarshal([]byte(w.escache(t, 0, "preflight", "-o", "json")), &list))
	if list.Failed != 0 {
		t.Errorf("%d failures", list.Failed)
	}
	w.asHelmTest(t)

	w.kubectl(t, "patch", "crd", "nodegroups.escache.io", "--type=json", "-p",
		`[{"op":"remove","path":"/spec/versions/0/schema/openAPIV3Schema/properties/spec/properties/cordonedNodes"}]`)
	says(t, w.escache(t, 1, "preflight"), "CRD nodegroups", "older than this program", "spec.cordonedNodes", "helm show crds")
	w.kubectl(t, "apply", "--server-side", "--force-conflicts", "-f", filepath.Join(checkout, "charts/escache-csi/crds"))
	w.escache(t, 0, "preflight")
}

// installChart applies what Helm makes of the chart, until the test is over.
func (w *world) installChart(t *testing.T) {
	t.Helper()
	render := exec.CommandContext(t.Context(), kubetest.Tools(t, "helm")["helm"], "template", "escache", filepath.Join(checkout, "charts/escache-csi"),
		"--namespace", driverNamespace, "--no-hooks", "--set",
		"ceph.clusterID=lab,ceph.monitors={127.0.0.1},storageClasses[0].name=escache,storageClasses[0].pool=fast,snapshots.enabled=true")
	text, err := render.Output()
	must(t, err)
	space := filepath.Join(t.TempDir(), "namespace.yaml") // it stays, as for other tests
	must(t, os.WriteFile(space, []byte("apiVersion: v1\nkind: Namespace\nmetadata: {name: "+driverNamespace+"}\n"), 0o600))
	w.kubectl(t, "apply", "-f", space)
	t.Cleanup(func() { // no kubelet ends them
		w.afterwards(t, "-n", driverNamespace, "delete", "pods", "--all", "--force", "--grace-period=0")
		for _, name := range preflightHosts {
			w.afterwards(t, "label", "node", name, "escache.io/host-")
			w.afterwards(t, "patch", "node", name, "--subresource=status", "--type=merge", "-p", room("null"))
		}
	})
	kinds := filepath.Join(t.TempDir(), "kinds.yaml") // they stay too: an API server may take minutes to delete a kind
	must(t, os.WriteFile(kinds, []byte(snapshotKinds()), 0o600))
	w.kubectl(t, "apply", "-f", kinds)
	w.kubectl(t, "wait", "--for=condition=Established", "--timeout=60s", "crd", "--all")
	objects := filepath.Join(t.TempDir(), "objects.yaml")
	must(t, os.WriteFile(objects, text, 0o600))
	w.kubectl(t, "apply", "-f", objects)
	t.Cleanup(func() { w.afterwards(t, "delete", "--ignore-not-found", "-f", objects) })
}

// afterwards runs kubectl when the test is over.
func (w *world) afterwards(t *testing.T, args ...string) {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), 2*time.Minute)
	defer cancel()
	if out, err := exec.CommandContext(ctx, w.kube.Kubectl(), append([]string{"--kubeconfig", w.kube.Kubeconfig()}, args...)...).CombinedOutput(); err != nil {
		t.Errorf("kubectl %s: %v\n%s", strings.Join(args, " "), err, out)
	}
}

// snapshotKinds are those of the snapshot-controller's project, by name only.
func snapshotKinds() string {
	var text strings.Builder
	for kind, scope := range map[string]string{"VolumeSnapshot": "Namespaced", "VolumeSnapshotContent": "Cluster", "VolumeSnapshotClass": "Cluster"} {
		plural := strings.ToLower(kind) + map[bool]string{true: "es", false: "s"}[strings.HasSuffix(kind, "s")]
		fmt.Fprintf(&text, `---
apiVersion: apiextensions.k8s.io/v1
kind: CustomResourceDefinition
metadata: {name: %[2]s.snapshot.storage.k8s.io, annotations: {api-approved.kubernetes.io: "https://github.com/kubernetes-csi/external-snapshotter"}}
spec:
  group: snapshot.storage.k8s.io
  scope: %[3]s
  names: {kind: %[1]s, plural: %[2]s}
  versions:
    - {name: v1, served: true, storage: true, schema: {openAPIV3Schema: {type: object, x-kubernetes-preserve-unknown-fields: true}}}
`, kind, plural, scope)
	}
	return text.String()
}

// registered has csi-node registered on the hosts of the group, and lets them replicate over addresses that are
// no loopback, which the hosts that are played listen on.
func (w *world) registered(t *testing.T) {
	t.Helper()
	for i, name := range preflightHosts {
		drivers := &storagev1.CSINode{ObjectMeta: metav1.ObjectMeta{Name: name}}
		drivers.Spec.Drivers = []storagev1.CSINodeDriver{{Name: v1alpha1.DriverName, NodeID: name}}
		must(t, w.api.Create(t.Context(), drivers))
		w.kubectl(t, "annotate", "node", name, fmt.Sprintf("%s=192.0.2.%d", v1alpha1.AnnotationReplicationAddress, i+1))
		t.Cleanup(func() { // the test's own context has ended by then
			node := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: name}}
			patch := fmt.Sprintf(`{"metadata":{"annotations":{%q:null}}}`, v1alpha1.AnnotationReplicationAddress)
			must(t, w.api.Delete(context.Background(), drivers))
			must(t, w.api.Patch(context.Background(), node, client.RawPatch(types.MergePatchType, []byte(patch))))
		})
	}
}

var preflightHosts = []string{"n1", "n2", "n3"}

// playKubelets labels the hosts, and plays their kubelets until the test is over. It returns once the chart's
// pods are ready.
func (w *world) playKubelets(t *testing.T) {
	t.Helper()
	for _, name := range preflightHosts {
		w.kubectl(t, "label", "node", name, "escache.io/host=true")
		w.kubectl(t, "patch", "node", name, "--subresource=status", "--type=merge", "-p", room(`{"cpu":"8","memory":"32Gi","pods":"110"}`))
	}
	w.kubectl(t, "apply", "--server-side", "--force-conflicts", "-f", leaseFile(t))
	ctx, stop := context.WithCancel(context.WithoutCancel(t.Context()))
	ended := make(chan struct{})
	t.Cleanup(func() { stop(); <-ended })
	go func() {
		defer close(ended)
		for pause.For(ctx, 500*time.Millisecond) == nil {
			if err := w.kubelets(ctx); err != nil && ctx.Err() == nil {
				t.Error(err)
			}
		}
	}()
	for deadline := time.Now().Add(3 * time.Minute); !w.chartRuns(t); time.Sleep(500 * time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatalf("the pods did not become ready:\n%s", w.kubectl(t, "-n", driverNamespace, "get", "events"))
		}
	}
}

// kubelets says once that the hosts live, and of every pod there that it is ready.
func (w *world) kubelets(ctx context.Context) error {
	for _, name := range preflightHosts {
		alive := fmt.Sprintf(`{"status":{"conditions":[{"type":"Ready","status":"True","lastHeartbeatTime":%q}]}}`, time.Now().UTC().Format(time.RFC3339))
		node := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: name}}
		if err := w.api.Status().Patch(ctx, node, client.RawPatch(types.StrategicMergePatchType, []byte(alive))); err != nil {
			return err
		}
	}
	pods := &corev1.PodList{}
	if err := w.api.List(ctx, pods, client.InNamespace(driverNamespace)); err != nil {
		return err
	}
	for i := range pods.Items {
		pod := &pods.Items[i]
		if pod.Spec.NodeName == "" || !pod.DeletionTimestamp.IsZero() {
			continue
		}
		const runs = `{"status":{"phase":"Running","conditions":[{"type":"Ready","status":"True"}]}}`
		err := w.api.Status().Patch(ctx, pod, client.RawPatch(types.StrategicMergePatchType, []byte(runs)))
		if client.IgnoreNotFound(err) != nil {
			return err
		}
	}
	return nil
}

// chartRuns reports whether every pod of the chart is ready.
func (w *world) chartRuns(t *testing.T) bool {
	t.Helper()
	node, escached, controller := &appsv1.DaemonSet{}, &appsv1.DaemonSet{}, &appsv1.Deployment{}
	for name, o := range map[string]client.Object{"escache-node": node, "escache-escached": escached, "escache-controller": controller} {
		must(t, w.api.Get(t.Context(), client.ObjectKey{Namespace: driverNamespace, Name: name}, o))
	}
	return node.Status.NumberReady == 3 && escached.Status.NumberReady == 3 && controller.Status.ReadyReplicas == 2
}

// room is a patch with what a node has for pods.
func room(resources string) string {
	return fmt.Sprintf(`{"status":{"capacity":%[1]s,"allocatable":%[1]s}}`, resources)
}

// leaseFile has the lease of a csi-controller that leads.
func leaseFile(t *testing.T) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "lease.yaml")
	must(t, os.WriteFile(path, fmt.Appendf(nil, `
apiVersion: coordination.k8s.io/v1
kind: Lease
metadata: {name: escache-csi-controller, namespace: %s}
spec: {holderIdentity: the test, leaseDurationSeconds: 3600, renewTime: %q}
`, driverNamespace, metav1.NowMicro().UTC().Format(metav1.RFC3339Micro)), 0o600))
	return path
}

// asHelmTest runs what `helm test` runs, with the rights that the chart gives it and no others.
func (w *world) asHelmTest(t *testing.T) {
	t.Helper()
	account := w.kube.ChartAccount(t, checkout, "preflight", "snapshots.enabled=true")
	binary := controllerBinary(t)
	run := func(flags ...string) (string, error) {
		args := append([]string{"preflight", "--kubeconfig", account.Kubeconfig, "--driver-namespace", driverNamespace}, flags...)
		out, err := exec.CommandContext(t.Context(), binary, args...).CombinedOutput()
		return string(out), err
	}
	out, err := run()
	if err != nil {
		t.Errorf("csi-controller preflight: %v\n%s", err, out)
	}
	says(t, out, "all 3 pods are ready", "host n3", "this account may not read them", "0.1.0")
	// For each Ceph user it looks for the pools in use. This one has no keyring.
	cephDir := t.TempDir()
	must(t, os.Mkdir(filepath.Join(cephDir, "lab"), 0o700))
	if out, err = run("--ceph-dir", cephDir); err == nil {
		t.Errorf("without a keyring all is well:\n%s", out)
	}
	says(t, out, "Ceph user of csi-controller", "rbd pool=fast")
	w.kube.CheckRights(t, account)
}
