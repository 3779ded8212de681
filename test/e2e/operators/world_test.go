//go:build e2e

// Package operators shows what operators use, against a real Kubernetes API server: kubectl-escache
// and the controllers of CacheFlush and NodeGroup behind it. The hosts are played: they speak the
// escache HTTP API and have no disks behind it.
package operators

import (
	"bytes"
	"context"
	"errors"
	"log/slog"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	storagev1 "k8s.io/api/storage/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	clientgoscheme "k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/tools/clientcmd"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/config"
	"sigs.k8s.io/controller-runtime/pkg/log"
	metricsserver "sigs.k8s.io/controller-runtime/pkg/metrics/server"

	"github.com/go-logr/logr"

	"github.com/escache/escache-csi/api/escache"
	"github.com/escache/escache-csi/api/v1alpha1"
	"github.com/escache/escache-csi/internal/controller/cacheflush"
	"github.com/escache/escache-csi/internal/controller/drain"
	"github.com/escache/escache-csi/internal/controller/hosts"
	"github.com/escache/escache-csi/internal/controller/nodegroup"
	"github.com/escache/escache-csi/internal/controller/reservation"
	"github.com/escache/escache-csi/internal/controller/volumes"
	"github.com/escache/escache-csi/internal/operation"
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
}

func start(t *testing.T) *world {
	t.Helper()
	log.SetLogger(logr.Discard())
	w := &world{root: t, kube: kubetest.StartAudited(t), fleet: hosttest.Start(t, 1<<40, "n1", "n2", "n3", "n4")}
	scheme := runtime.NewScheme()
	must(t, clientgoscheme.AddToScheme(scheme))
	must(t, v1alpha1.AddToScheme(scheme))
	rest, err := clientcmd.BuildConfigFromFlags("", w.kube.Kubeconfig())
	must(t, err)
	w.api, err = client.NewWithWatch(rest, client.Options{Scheme: scheme})
	must(t, err)
	return w
}

// install makes the kinds, the nodes and a group of three of them. csi-node has registered on n4, and n5 to
// n7 have no host behind them.
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

// lead starts the controllers, as a csi-controller that leads.
func (w *world) lead(t *testing.T) {
	t.Helper()
	rest, err := clientcmd.BuildConfigFromFlags("", w.kube.Kubeconfig())
	must(t, err)
	m, err := ctrl.NewManager(rest, ctrl.Options{
		Scheme: w.api.Scheme(), Metrics: metricsserver.Options{BindAddress: "0"}, Controller: config.Controller{SkipNameValidation: new(true)},
	})
	must(t, err)
	logger := slog.New(slog.NewTextHandler(os.Stderr, &slog.HandlerOptions{Level: slog.LevelWarn}))
	h := hosts.New(m.GetClient(), m.GetAPIReader(), hosts.Options{Port: w.fleet.Port, Log: logger})
	locks := operation.NewLocks(time.Now)
	events := m.GetEventRecorder("test")
	book := reservation.NewBook(reservation.Slots{
		Ports: reservation.Range{First: 7800, Last: 8799}, Minors: reservation.Range{First: 100, Last: 1099},
	})
	guard := nodegroup.NewGuard(m.GetClient(), m.GetAPIReader(), book)
	steps := volumes.NewSteps(volumes.Config{
		Cached: m.GetClient(), Live: m.GetAPIReader(), Images: &images{}, Hosts: h, Book: book, Groups: guard, Events: events, Log: logger,
		Now: time.Now,
	})
	must(t, cacheflush.New(cacheflush.Config{
		Client: m.GetClient(), Live: m.GetAPIReader(), Hosts: h, Events: events, Log: logger, Now: time.Now,
		Flusher: volumes.NewLocked(steps, locks),
		Drain:   drain.New(drain.Config{Client: m.GetClient(), Live: m.GetAPIReader(), Hosts: h, Locks: locks, Now: time.Now}),
		Pass:    2 * time.Second, Verify: 3 * time.Second, Parallel: 4, Volumes: 16,
	}).SetupWithManager(m))
	must(t, nodegroup.New(nodegroup.Config{
		Client: m.GetClient(), Live: m.GetAPIReader(), Hosts: h, Locks: locks, Events: events, Log: logger, Now: time.Now,
		Book: book, Guard: guard,
		Poll: time.Second, Patience: time.Second, Quiet: time.Second, Parallel: 1,
	}).SetupWithManager(m))
	ctx, stop := context.WithCancel(context.Background())
	w.stop, w.ended = stop, make(chan struct{})
	go func() {
		defer close(w.ended)
		if err := m.Start(ctx); err != nil {
			t.Error(err)
		}
	}()
	w.root.Cleanup(w.retire) // not of a subtest that starts another leader
}

// images is a Ceph that has of each image what was noted on it last. Nothing else of it is asked for.
type images struct {
	volumes.Images

	notes sync.Map // a volumes.Note by volumes.ImageRef
}

func (i *images) Note(_ context.Context, image volumes.ImageRef, note volumes.Note) error {
	i.notes.Store(image, note)
	return nil
}

func (i *images) Noted(_ context.Context, image volumes.ImageRef) (volumes.Note, error) {
	note, _ := i.notes.Load(image)
	noted, _ := note.(volumes.Note)
	return noted, nil
}

// retire ends the controllers.
func (w *world) retire() {
	w.stop()
	<-w.ended
}

// attach makes a claim in namespace shop, bound to a volume that is connected on a node with so
// much dirty.
func (w *world) attach(t *testing.T, name, node string, dirty int64) {
	t.Helper()
	partner := "n3"
	if node == partner {
		partner = "n1"
	}
	w.port++
	v := &v1alpha1.CacheVolume{
		ObjectMeta: metav1.ObjectMeta{Name: "pvc-" + name, Annotations: map[string]string{v1alpha1.AnnotationClaim: "shop/" + name}},
		Spec: v1alpha1.CacheVolumeSpec{
			ClusterID: "c", Pool: "rbd", Image: "escache-" + name, SizeBytes: 1 << 30, CacheBytes: 1 << 30, Group: "rack1",
			Replicas: []string{node, partner}, CacheMode: v1alpha1.CacheModeWriteback, Port: int32(7800 + w.port), Minor: int32(100 + w.port),
		},
	}
	must(t, w.api.Create(t.Context(), v))
	v.Status = v1alpha1.CacheVolumeStatus{
		Phase: v1alpha1.VolumeReady, Authority: v1alpha1.AuthorityCache, AttachedNode: node, Epoch: 1, DirtyBytes: dirty,
	}
	must(t, w.api.Status().Update(t.Context(), v))
	h := w.fleet.Hosts[node]
	must(t, h.Lay(escache.ReplicaRequest{
		VolumeRef: ref(name), SizeBytes: 1 << 30, CacheBytes: 1 << 30, Port: 7800 + w.port, Minor: 100 + w.port,
	}))
	h.Stage(ref(name), "10.0.0.1:0/1", 1, escache.ModeWriteback)
	h.Write(ref(name), dirty)
	w.link(node, partner, name, true)
	w.bind(t, name)
}

// leave takes a volume from its node by force. It is dirty there, and the other copy is old.
func (w *world) leave(t *testing.T, name, node string) {
	t.Helper()
	w.fleet.Hosts[node].Release(ref(name))
	w.fleet.Hosts[node].Write(ref(name), 20*mib)
	v := w.volume(t, name)
	v.Status.AttachedNode, v.Status.Outdated = "", []string{"n3"}
	must(t, w.api.Status().Update(t.Context(), v))
}

// link plays DRBD's link to a volume's second copy, as the node with the volume sees it.
func (w *world) link(node, partner, name string, up bool) {
	peer := escache.Peer{Name: partner, ConnectionState: escache.LinkWFConnection, DiskState: escache.DiskUnknown}
	if up {
		peer.ConnectionState, peer.DiskState = escache.LinkConnected, escache.DiskUpToDate
	}
	w.fleet.Hosts[node].Change(ref(name), func(s *escache.VolumeStatus) {
		s.Peers, s.DiskState, s.SyncedPercent = []escache.Peer{peer}, escache.DiskUpToDate, 100
	})
}

func (w *world) bind(t *testing.T, name string) {
	t.Helper()
	size := corev1.ResourceList{corev1.ResourceStorage: *quantity(1 << 30)}
	must(t, w.api.Create(t.Context(), &corev1.PersistentVolume{
		ObjectMeta: metav1.ObjectMeta{Name: "pvc-" + name},
		Spec: corev1.PersistentVolumeSpec{
			Capacity: size, AccessModes: []corev1.PersistentVolumeAccessMode{corev1.ReadWriteOnce},
			PersistentVolumeReclaimPolicy: corev1.PersistentVolumeReclaimRetain,
			ClaimRef:                      &corev1.ObjectReference{Namespace: "shop", Name: name},
			PersistentVolumeSource: corev1.PersistentVolumeSource{CSI: &corev1.CSIPersistentVolumeSource{
				Driver: v1alpha1.DriverName, VolumeHandle: "pvc-" + name,
			}},
		},
	}))
	must(t, w.api.Create(t.Context(), &corev1.PersistentVolumeClaim{
		ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: name},
		Spec: corev1.PersistentVolumeClaimSpec{
			AccessModes: []corev1.PersistentVolumeAccessMode{corev1.ReadWriteOnce}, VolumeName: "pvc-" + name, StorageClassName: new(""),
			Resources: corev1.VolumeResourceRequirements{Requests: size},
		},
	}))
}

func ref(name string) escache.VolumeRef {
	return escache.VolumeRef{Pool: "rbd", Image: "escache-" + name}
}

func (w *world) volume(t *testing.T, name string) *v1alpha1.CacheVolume {
	t.Helper()
	v := &v1alpha1.CacheVolume{}
	must(t, w.api.Get(t.Context(), client.ObjectKey{Name: "pvc-" + name}, v))
	return v
}

func (w *world) mode(node, name string) escache.Mode {
	s, _ := w.fleet.Hosts[node].Volume(ref(name))
	return s.Mode
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
