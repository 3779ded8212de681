//go:build e2e

// Package operators shows what operators use, against a real Kubernetes API server: kubectl-escache
// and the controllers of CacheFlush and NodeGroup behind it. The hosts are played: they speak the
// escache HTTP API and have no disks behind it.
package operators

import (
	"bytes"
	"context"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	storagev1 "k8s.io/api/storage/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	clientgoscheme "k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/tools/clientcmd"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/log"

	"github.com/go-logr/logr"

	"github.com/escache/escache-csi/api/v1alpha1"
	"github.com/escache/escache-csi/internal/plugin"
	"github.com/escache/escache-csi/test/hosttest"
	"github.com/escache/escache-csi/test/kubetest"
)

const (
	mib      = 1 << 20
	checkout = "../../.."
)

type world struct {
	root  *testing.T
	kube  *kubetest.ControlPlane
	api   client.WithWatch
	fleet *hosttest.Fleet
	port  int
	stop  context.CancelFunc
	ended chan struct{}
	cable cable
}

func start(t *testing.T) *world {
	t.Helper()
	log.SetLogger(logr.Discard())
	w := &world{root: t, kube: kubetest.StartAudited(t), fleet: hosttest.Start(t, 1<<40, "n1", "n2", "n3", "n4", "n5", "n6", "n7")}
	scheme := runtime.NewScheme()
	must(t, clientgoscheme.AddToScheme(scheme))
	must(t, v1alpha1.AddToScheme(scheme))
	rest, err := clientcmd.BuildConfigFromFlags("", w.kube.Kubeconfig())
	must(t, err)
	w.api, err = client.NewWithWatch(rest, client.Options{Scheme: scheme})
	must(t, err)
	return w
}

// install makes the kinds, the nodes and a group of three of them. csi-node has registered on n4.
func (w *world) install(t *testing.T) {
	t.Helper()
	w.kubectl(t, "apply", "-f", filepath.Join(checkout, "charts/escache-csi/crds"))
	w.kubectl(t, "wait", "--for=condition=Established", "--timeout=60s", "crd/cachevolumes.escache.io", "crd/nodegroups.escache.io",
		"crd/cacheflushes.escache.io", "crd/cachediscards.escache.io")
	for _, name := range []string{"n1", "n2", "n3", "n4", "n5", "n6", "n7"} {
		n := w.fleet.Node(name)
		status := n.Status
		must(t, w.api.Create(t.Context(), n))
		made := n.DeepCopy()
		n.Status = status
		must(t, w.api.Status().Patch(t.Context(), n, client.MergeFrom(made)))
	}
	must(t, w.api.Create(t.Context(), &storagev1.CSINode{
		ObjectMeta: metav1.ObjectMeta{Name: "n4"},
		Spec: storagev1.CSINodeSpec{Drivers: []storagev1.CSINodeDriver{{
			Name: v1alpha1.DriverName, NodeID: "n4", Allocatable: &storagev1.VolumeNodeResources{Count: new(int32(64))},
		}}},
	}))
	must(t, w.api.Create(t.Context(), &v1alpha1.NodeGroup{
		ObjectMeta: metav1.ObjectMeta{Name: "rack1"}, Spec: v1alpha1.NodeGroupSpec{Nodes: []string{"n1", "n2", "n3"}},
	}))
	must(t, w.api.Create(t.Context(), &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: "shop"}}))
}

// beat says that a node lives, as its kubelet would.
func (w *world) beat(t *testing.T, name string) {
	t.Helper()
	n := &corev1.Node{}
	must(t, w.api.Get(t.Context(), client.ObjectKey{Name: name}, n))
	n.Status.Conditions = []corev1.NodeCondition{{
		Type: corev1.NodeReady, Status: corev1.ConditionTrue, LastHeartbeatTime: metav1.Now(), LastTransitionTime: metav1.Now(),
	}}
	before := n.DeepCopy()
	before.Status.Conditions = nil
	must(t, w.api.Status().Patch(t.Context(), n, client.MergeFrom(before)))
}

func (w *world) kubectl(t *testing.T, args ...string) string {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
	defer cancel()
	out, err := exec.CommandContext(ctx, w.kube.Kubectl(), append([]string{"--kubeconfig", w.kube.Kubeconfig()}, args...)...).Output()
	if exit := new(exec.ExitError); errors.As(err, &exit) {
		t.Fatalf("kubectl %s: %v\n%s", strings.Join(args, " "), err, exit.Stderr)
	}
	return string(out)
}

// run runs a program, and returns what it prints.
func (w *world) run(t *testing.T, program string, args ...string) []byte {
	t.Helper()
	out, err := exec.CommandContext(t.Context(), program, args...).Output()
	if exit := new(exec.ExitError); errors.As(err, &exit) {
		t.Fatalf("%s %s: %v\n%s", program, strings.Join(args, " "), err, exit.Stderr)
	}
	must(t, err)
	return out
}

// escache runs kubectl escache as the administrator, and wants that exit code.
func (w *world) escache(t *testing.T, exit int, args ...string) string {
	t.Helper()
	return w.as(t, w.kube.Kubeconfig(), "", exit, args...)
}

// as runs kubectl escache with a kubeconfig and what is typed.
func (w *world) as(t *testing.T, kubeconfig, typed string, exit int, args ...string) string {
	t.Helper()
	var out, complaints bytes.Buffer
	got := plugin.Run("test", append(args, "--kubeconfig", kubeconfig), strings.NewReader(typed), &out, &complaints)
	if got != exit {
		t.Fatalf("kubectl escache %s: exit %d, want %d\n%s%s", strings.Join(args, " "), got, exit, out.String(), complaints.String())
	}
	if strings.Contains(complaints.String(), "goroutine") {
		t.Errorf("a stack trace:\n%s", complaints.String())
	}
	return out.String() + complaints.String()
}

// stranger is the kubeconfig of a user who may read claims and nothing else.
func (w *world) stranger(t *testing.T) string {
	t.Helper()
	role := metav1.ObjectMeta{Name: "stranger"}
	must(t, w.api.Create(t.Context(), &rbacv1.ClusterRole{ObjectMeta: role, Rules: []rbacv1.PolicyRule{{
		APIGroups: []string{""}, Resources: []string{"persistentvolumeclaims"}, Verbs: []string{"get"},
	}}}))
	must(t, w.api.Create(t.Context(), &rbacv1.ClusterRoleBinding{
		ObjectMeta: role, RoleRef: rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "ClusterRole", Name: "stranger"},
		Subjects: []rbacv1.Subject{{APIGroup: rbacv1.GroupName, Kind: "User", Name: "stranger"}},
	}))
	path := filepath.Join(t.TempDir(), "stranger.kubeconfig")
	must(t, os.WriteFile(path, w.kube.UserKubeconfig(t, "stranger"), 0o600))
	return path
}

func says(t *testing.T, text string, words ...string) {
	t.Helper()
	for _, word := range words {
		if !strings.Contains(text, word) {
			t.Errorf("it does not say %q:\n%s", word, text)
		}
	}
}

func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}
