//go:build e2e

package operators

import (
	"os"
	"os/exec"
	"path/filepath"
	"testing"

	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// benchmark goes as far as is possible without kubelets: the real controllers make pod and claim, and say
// why both wait.
func (w *world) benchmark(t *testing.T) {
	for name, policy := range map[string]corev1.PersistentVolumeReclaimPolicy{
		"slow": corev1.PersistentVolumeReclaimDelete, "kept": corev1.PersistentVolumeReclaimRetain,
	} {
		must(t, w.api.Create(t.Context(), &storagev1.StorageClass{
			ObjectMeta: metav1.ObjectMeta{Name: name}, Provisioner: "example.com/none", ReclaimPolicy: &policy,
		}))
	}
	must(t, w.api.Create(t.Context(), &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{
		Name: "bench", Labels: map[string]string{"pod-security.kubernetes.io/enforce": "restricted"},
	}}))
	here := []string{"bench", "-n", "bench", "--image=example.com/csi-node:1", "--storage-class=slow"}
	with := func(more ...string) []string { return append(append([]string{}, here...), more...) }

	says(t, w.escache(t, 1, with("--compare=kept")...), "kept has the reclaim policy Retain")
	says(t, w.escache(t, 1, with("--compare=zz")...), "no StorageClass zz")
	nobody := filepath.Join(t.TempDir(), "nobody.kubeconfig")
	must(t, os.WriteFile(nobody, w.kube.UserKubeconfig(t, "nobody"), 0o600))
	says(t, w.as(t, nobody, "", 1, here...), "forbidden", "Ask an administrator")
	w.benchLeftNothing(t)

	// The API server takes what the dry run prints.
	path := filepath.Join(t.TempDir(), "job.yaml")
	must(t, os.WriteFile(path, []byte(w.escache(t, 0, with("--dry-run")...)), 0o600))
	says(t, w.kubectl(t, "create", "--dry-run=server", "-f", path), "created (server dry run)")

	says(t, w.escache(t, 3, with("--timeout=8s")...), "has not started within 8s")
	w.benchLeftNothing(t)

	window := openWindow(t, "bench", 80, 24, w.plugin(t)+" --kubeconfig "+w.kube.Kubeconfig()+" bench -n bench --image=example.com/csi-node:1 --storage-class=slow")
	window.wait("waiting: claim", "StorageClass slow")
	window.interrupt()
	window.wait("error: interrupted", "exit 3")
	w.benchLeftNothing(t)
}

func (w *world) benchLeftNothing(t *testing.T) {
	t.Helper()
	if left := w.kubectl(t, "-n", "bench", "get", "jobs,pods,pvc", "-o", "name"); left != "" {
		t.Errorf("it has left %s", left)
	}
}

// plugin builds kubectl-escache, and returns its path.
func (w *world) plugin(t *testing.T) string {
	t.Helper()
	binary := filepath.Join(t.TempDir(), "kubectl-escache")
	build := exec.CommandContext(t.Context(), "go", "build", "-o", binary, "./cmd/kubectl-escache")
	build.Dir = checkout
	build.Env = append(os.Environ(), "CGO_ENABLED=0")
	if out, err := build.CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	return binary
}
