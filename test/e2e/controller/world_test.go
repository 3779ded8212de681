//go:build e2e

// Package controller shows csi-controller, as the binary it is, with a real Ceph, a real Kubernetes
// API server and CSI's real sidecars, all on loopback. Only the hosts are played: they speak the
// escache HTTP API and have no disks behind it.
package controller

import (
	"bytes"
	"context"
	"crypto/rand"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/ceph/go-ceph/rados"
	"github.com/ceph/go-ceph/rbd"
	"github.com/go-logr/logr"
	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	clientgoscheme "k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/tools/clientcmd"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/log"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/escache/escache-csi/api/v1alpha1"
	"github.com/escache/escache-csi/test/cephtest"
	"github.com/escache/escache-csi/test/hosttest"
	"github.com/escache/escache-csi/test/kubetest"
)

const (
	gib       = 1 << 30
	clusterID = "lab"
	checkout  = "../../.."
)

// world is everything around the driver. One is started for all tests; each leaves it as it was.
type world struct {
	ceph  *cephtest.Cluster
	admin *rados.Conn
	kube  *kubetest.ControlPlane
	api   client.WithWatch
	fleet *hosttest.Fleet

	account kubetest.Account // that the chart gives csi-controller and the sidecars
	binary  string           // csi-controller with crash points
	cephDir string
	linkKey string // file of what the secrets of replication links are derived from
}

// controllerCaps are those that docs/security.md tells to give csi-controller, and no more.
var controllerCaps = map[string]string{
	"mon": `profile rbd, allow command "osd blocklist", allow command "osd pool application get", allow command "df"`,
	"osd": "profile rbd pool=rbd, profile rbd pool=fast, profile rbd pool=small",
}

var nodes = []string{"n1", "n2", "n3", "n4", "n5", "n6"}

func start(t *testing.T) *world {
	t.Helper()
	log.SetLogger(logr.Discard())
	w := &world{ceph: cephtest.Start(t), kube: kubetest.StartAudited(t), fleet: hosttest.Start(t, 100*gib, nodes...), cephDir: t.TempDir()}
	w.linkKey = filepath.Join(t.TempDir(), "link-key")
	must(t, os.WriteFile(w.linkKey, []byte(rand.Text()+rand.Text()), 0o600))
	w.admin = w.connectCeph(t)
	t.Cleanup(w.admin.Shutdown)
	w.binary = build(t)
	w.addCluster(t, clusterID, w.ceph.Conf(), w.ceph.User(t, "client.escache-controller", controllerCaps))
	w.admit(t)
	for i, group := range []string{"g1", "g2"} {
		w.addGroup(t, group, nodes[3*i:3*i+3])
	}
	return w
}

// admit has the API server know the driver's objects and the account that the chart gives it.
func (w *world) admit(t *testing.T) {
	t.Helper()
	w.kube.Snapshots(t)
	w.kubectl(t, "", "apply", "-f", filepath.Join(checkout, "charts/escache-csi/crds"))
	w.kubectl(t, "", "wait", "--for=condition=Established", "--timeout=60s", "crd/cachevolumes.escache.io", "crd/nodegroups.escache.io",
		"crd/cachesnapshots.escache.io", "crd/readonlyvolumes.escache.io", "crd/cacheadoptions.escache.io")
	w.account = w.kube.ChartAccount(t, checkout, "controller", "page.enabled=true", "controller.recovery.uncachedFallback=true",
		"snapshots.enabled=true", "snapshots.groups.enabled=true")
	w.api = w.connect(t)
}

// build makes the binary. Its tags are those of the installed librbd.
func build(t *testing.T) string {
	t.Helper()
	tags, err := exec.Command(filepath.Join(checkout, "hack/ceph-tags.sh")).Output()
	must(t, err)
	path := filepath.Join(t.TempDir(), "csi-controller")
	command := exec.Command("go", "build", "-tags", strings.TrimSpace(string(tags))+" crashpoint", "-o", path, "./cmd/csi-controller")
	command.Dir = checkout
	if out, err := command.CombinedOutput(); err != nil {
		t.Fatalf("build csi-controller: %v\n%s", err, out)
	}
	return path
}

func (w *world) connect(t *testing.T) client.WithWatch {
	t.Helper()
	scheme := runtime.NewScheme()
	must(t, clientgoscheme.AddToScheme(scheme))
	must(t, v1alpha1.AddToScheme(scheme))
	config, err := clientcmd.BuildConfigFromFlags("", w.kube.Kubeconfig())
	must(t, err)
	config.QPS = -1
	api, err := client.NewWithWatch(config, client.Options{Scheme: scheme})
	must(t, err)
	return api
}

// addCluster configures a Ceph cluster for the driver.
func (w *world) addCluster(t *testing.T, id, conf, keyring string) {
	t.Helper()
	dir := filepath.Join(w.cephDir, id)
	must(t, os.MkdirAll(dir, 0o700))
	for from, to := range map[string]string{conf: "ceph.conf", keyring: "keyring"} {
		text, err := os.ReadFile(from)
		must(t, err)
		must(t, os.WriteFile(filepath.Join(dir, to+".new"), text, 0o600))
		must(t, os.Rename(filepath.Join(dir, to+".new"), filepath.Join(dir, to)))
	}
}

// addGroup makes nodes, as a kubelet with the driver's node service on it would, and a group of
// them.
func (w *world) addGroup(t *testing.T, group string, members []string) {
	t.Helper()
	ctx := t.Context()
	for _, name := range members {
		n := w.fleet.Node(name)
		n.Labels = map[string]string{v1alpha1.TopologyKey: group}
		status := n.Status
		must(t, w.api.Create(ctx, n))
		made := n.DeepCopy()
		n.Status = status
		must(t, w.api.Status().Patch(ctx, n, client.MergeFrom(made))) // Kubernetes' own controllers change it meanwhile
		must(t, w.api.Create(ctx, &storagev1.CSINode{
			ObjectMeta: metav1.ObjectMeta{Name: name},
			Spec: storagev1.CSINodeSpec{Drivers: []storagev1.CSINodeDriver{{
				Name: v1alpha1.DriverName, NodeID: name, TopologyKeys: []string{v1alpha1.TopologyKey},
			}}},
		}))
	}
	must(t, w.api.Create(ctx, &v1alpha1.NodeGroup{
		ObjectMeta: metav1.ObjectMeta{Name: group}, Spec: v1alpha1.NodeGroupSpec{Nodes: members},
	}))
}

func (w *world) kubectl(t *testing.T, stdin string, args ...string) string {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), 2*time.Minute)
	defer cancel()
	command := exec.CommandContext(ctx, w.kube.Kubectl(), append([]string{"--kubeconfig", w.kube.Kubeconfig()}, args...)...)
	command.Stdin = strings.NewReader(stdin)
	var out, complaints bytes.Buffer
	command.Stdout, command.Stderr = &out, &complaints
	if err := command.Run(); err != nil {
		t.Fatalf("kubectl %s: %v\n%s%s", strings.Join(args, " "), err, out.String(), complaints.String())
	}
	return out.String()
}

func (w *world) rbd(t *testing.T, args ...string) string {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	out, err := exec.CommandContext(ctx, "rbd", append([]string{"-c", w.ceph.Conf()}, args...)...).CombinedOutput()
	if err != nil {
		t.Fatalf("rbd %s: %v\n%s", strings.Join(args, " "), err, out)
	}
	return string(out)
}

// images are the names of all images, in the trash too.
func (w *world) images(t *testing.T) []string {
	t.Helper()
	var names []string
	for _, pool := range []string{"rbd", "fast"} {
		io, err := w.admin.OpenIOContext(pool)
		must(t, err)
		images, err := rbd.GetImageNames(io)
		must(t, err)
		trash, err := rbd.GetTrashList(io)
		must(t, err)
		io.Destroy()
		names = append(names, images...)
		for _, image := range trash {
			names = append(names, "trash:"+image.Name)
		}
	}
	return names
}

// connectCeph gives a test its own connection to Ceph: running rbd each time it looks for what is
// left would be most of its work.
func (w *world) connectCeph(t *testing.T) *rados.Conn {
	t.Helper()
	conn, err := rados.NewConnWithUser("admin")
	must(t, err)
	must(t, conn.ReadConfigFile(w.ceph.Conf()))
	must(t, conn.SetConfigOption("rbd_cache", "false"))
	must(t, conn.Connect())
	return conn
}

func (w *world) volumes(t *testing.T) []v1alpha1.CacheVolume {
	t.Helper()
	all := &v1alpha1.CacheVolumeList{}
	must(t, w.api.List(context.Background(), all))
	return all.Items
}

func (w *world) snapshots(t *testing.T) []v1alpha1.CacheSnapshot {
	t.Helper()
	all := &v1alpha1.CacheSnapshotList{}
	must(t, w.api.List(context.Background(), all))
	return all.Items
}

// emptied is when the trash is empty at the latest. It is emptied in the background, and an image that was busy,
// such as the parent of one that is just deleted, is tried again after a minute.
const emptied = 2 * time.Minute

// oneImage waits until the clones of an image are gone: while a clone is removed for good, Ceph has its source open.
func (w *world) oneImage(t *testing.T) {
	t.Helper()
	eventually(t, emptied, func() bool { return len(w.images(t)) == 1 }, func() string { return fmt.Sprint(w.images(t)) })
}

// empty waits until nothing of any volume is left anywhere.
func (w *world) empty(t *testing.T) {
	t.Helper()
	left := ""
	eventually(t, emptied, func() bool {
		left = ""
		for _, v := range w.volumes(t) {
			left += " record " + v.Name
		}
		for _, s := range w.snapshots(t) {
			left += " snapshot " + s.Name
		}
		for _, v := range w.readOnly(t) {
			left += " read-only " + v.Name
		}
		left += strings.Join(w.images(t), " ")
		if n := w.fleet.Replicas(); n > 0 {
			left += fmt.Sprintf(" %d replicas", n)
		}
		pvs := &corev1.PersistentVolumeList{}
		must(t, w.api.List(context.Background(), pvs))
		for _, pv := range pvs.Items {
			left += " pv " + pv.Name
		}
		return left == ""
	}, func() string { return "left behind: " + left })
}

// purge removes by force whatever a failed test has left.
func (w *world) purge(t *testing.T) {
	w.remove(&v1alpha1.CacheVolumeList{}, &v1alpha1.CacheSnapshotList{}, &v1alpha1.ReadOnlyVolumeList{})
	for _, pool := range []string{"rbd", "fast"} {
		for image := range strings.FieldsSeq(w.rbd(t, "ls", pool)) {
			_ = exec.Command("rbd", "-c", w.ceph.Conf(), "snap", "purge", "--no-progress", pool+"/"+image).Run()
			_ = exec.Command("rbd", "-c", w.ceph.Conf(), "rm", "--no-progress", pool+"/"+image).Run()
		}
		_ = exec.Command("rbd", "-c", w.ceph.Conf(), "trash", "purge", "--no-progress", pool).Run()
	}
	w.remove(&corev1.PersistentVolumeClaimList{}, &corev1.PersistentVolumeList{})
	_, _ = w.try("", "taint", "node", "--all", "node.kubernetes.io/out-of-service-")
	for _, h := range w.fleet.Hosts {
		h.Stop()
		h.Restart(t)
		h.Forget()
	}
}

// remove removes all objects of these kinds, without waiting for whom their finalizers name.
func (w *world) remove(kinds ...client.ObjectList) {
	for _, list := range kinds {
		_ = w.api.List(context.Background(), list)
		_ = meta.EachListItem(list, func(item runtime.Object) error {
			o := item.(client.Object)
			_ = w.api.Delete(context.Background(), o)
			_ = w.api.Patch(context.Background(), o, client.RawPatch(types.MergePatchType, []byte(`{"metadata":{"finalizers":null}}`)))
			return nil
		})
	}
}

func eventually(t *testing.T, within time.Duration, ok func() bool, why func() string) {
	t.Helper()
	for end := time.Now().Add(within); !ok(); time.Sleep(50 * time.Millisecond) {
		if time.Now().After(end) {
			t.Fatalf("not within %s: %s", within, why())
		}
	}
}

func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}
