package csitest

import (
	"context"
	"log/slog"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/tools/events"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	"github.com/escache/escache-csi/api/v1alpha1"
	service "github.com/escache/escache-csi/internal/controller/csi"
	"github.com/escache/escache-csi/internal/controller/csi/snapshots"
	"github.com/escache/escache-csi/internal/controller/hosts"
	"github.com/escache/escache-csi/internal/controller/linkkey"
	"github.com/escache/escache-csi/internal/controller/nodegroup"
	"github.com/escache/escache-csi/internal/controller/reservation"
	"github.com/escache/escache-csi/internal/controller/volumes"
	"github.com/escache/escache-csi/internal/operation"
	"github.com/escache/escache-csi/test/hosttest"
)

// GiB is 2^30 bytes.
const GiB = 1 << 30

// World is a service with one group of three hosts, g1: n1, n2 and n3, a node n9 of no group, and more
// such nodes where a test wants them.
type World struct {
	T       *testing.T
	API     client.Client
	Cached  client.Client // API itself, where a test does not have it lag behind
	Fleet   *hosttest.Fleet
	Images  *Images
	Book    *reservation.Book
	Links   *linkkey.Key
	Service *service.Service
	Locks   *operation.Locks
	Locked  *volumes.Locked
	Groups  *nodegroup.Reconciler
	// NoFallback: the cluster has uncachedFallback off. It counts from the next Restart.
	NoFallback bool
}

// New starts the service, its API server in memory, and the hosts n1, n2, n3, n9 and those named.
func New(t *testing.T, more ...string) *World {
	t.Helper()
	names := append([]string{"n1", "n2", "n3", "n9"}, more...)
	scheme := runtime.NewScheme()
	Must(t, corev1.AddToScheme(scheme))
	Must(t, storagev1.AddToScheme(scheme))
	Must(t, v1alpha1.AddToScheme(scheme))
	w := &World{T: t, Links: Key(t, "the key of the Kubernetes cluster"), Images: NewImages(), Fleet: hosttest.Start(t, 100*GiB, names...)}
	group := &v1alpha1.NodeGroup{ObjectMeta: metav1.ObjectMeta{Name: "g1"}, Spec: v1alpha1.NodeGroupSpec{Nodes: []string{"n1", "n2", "n3"}}}
	w.API = fake.NewClientBuilder().WithScheme(scheme).
		WithStatusSubresource(&v1alpha1.NodeGroup{}, &v1alpha1.CacheVolume{}, &v1alpha1.CacheSnapshot{}, &v1alpha1.ReadOnlyVolume{}).
		WithIndex(&v1alpha1.CacheSnapshot{}, snapshots.VolumeField, snapshots.VolumeOf).
		WithIndex(&v1alpha1.CacheVolume{}, volumes.CloneSource, volumes.CloneSourceOf).
		WithIndex(&v1alpha1.CacheVolume{}, nodegroup.GroupField, nodegroup.GroupOf).
		WithObjects(group).Build()
	for _, name := range names {
		Must(t, w.API.Create(t.Context(), w.Fleet.Node(name)))
	}
	w.Cached = w.API
	w.Restart()
	return w
}

// Restart makes a new service that knows nothing but what is on record, as another process would.
func (w *World) Restart() {
	log, h := w.log(), w.Hosts()
	w.Locks = operation.NewLocks(time.Now)
	w.Book = reservation.NewBook(reservation.Slots{
		Ports: reservation.Range{First: 7800, Last: 8799}, Minors: reservation.Range{First: 100, Last: 1099},
	})
	Must(w.T, nodegroup.Rebuild(context.Background(), w.API, w.Book))
	guard := nodegroup.NewGuard(w.API, w.API, w.Book)
	w.Groups = nodegroup.New(nodegroup.Config{
		Client: w.API, Live: w.API, Hosts: h, Images: w.Images, Book: w.Book, Guard: guard, Locks: w.Locks,
		Events: events.NewFakeRecorder(1000), Log: log, Now: time.Now,
		Poll: time.Second, Patience: 10 * time.Second, Quiet: time.Second, Parallel: 1,
	})
	steps := volumes.NewSteps(volumes.Config{
		Cached: w.Cached, Live: w.API, Images: w.Images, Hosts: h, Book: w.Book, Log: log, Now: time.Now,
		Events: events.NewFakeRecorder(1000), Groups: guard, Links: w.Links,
	})
	w.Service = service.NewService(service.Config{Steps: steps, Operations: w.Locks, ImagePrefix: "escache-",
		UncachedFallback: !w.NoFallback})
	w.Locked = volumes.NewLocked(steps, w.Locks)
	w.Poll()
}

func (w *World) log() *slog.Logger { return slog.New(slog.NewTextHandler(w.T.Output(), nil)) }

// Hosts are the connections to the hosts of the fleet. Calls to one that is down are repeated at once.
func (w *World) Hosts() *hosts.Hosts {
	return hosts.New(w.API, w.API, hosts.Options{Port: w.Fleet.Port, RepeatAfter: time.Millisecond, Log: w.log()})
}

// Key returns the key of replication links that a text makes.
func Key(t *testing.T, text string) *linkkey.Key {
	t.Helper()
	k, err := linkkey.New("test", []byte(text))
	Must(t, err)
	return k
}

// Poll asks the hosts of the group g1 once, and has their stale replicas removed.
func (w *World) Poll() {
	w.T.Helper()
	w.poll("g1")
}

func (w *World) poll(group string) {
	w.T.Helper()
	request := ctrl.Request{NamespacedName: client.ObjectKey{Name: group}}
	for _, do := range []reconcile.Func{w.Groups.Reconcile, w.Groups.CleanUp} {
		_, err := do(context.Background(), request)
		Must(w.T, err)
	}
}

// Volume reads a volume's record.
func (w *World) Volume(id string) *v1alpha1.CacheVolume {
	w.T.Helper()
	v := &v1alpha1.CacheVolume{}
	Must(w.T, w.API.Get(context.Background(), client.ObjectKey{Name: id}, v))
	return v
}

// Host returns a host of the fleet.
func (w *World) Host(name string) *hosttest.Host { return w.Fleet.Hosts[name] }

// Taint says of a node that it is out of service: Kubernetes has given it up.
func (w *World) Taint(name string) {
	w.T.Helper()
	n := &corev1.Node{}
	Must(w.T, w.API.Get(context.Background(), client.ObjectKey{Name: name}, n))
	n.Spec.Taints = []corev1.Taint{{Key: corev1.TaintNodeOutOfService, Value: "nodeshutdown", Effect: corev1.TaintEffectNoExecute}}
	Must(w.T, w.API.Update(context.Background(), n))
}

// Empty fails unless nothing of any volume is left.
func (w *World) Empty() {
	w.T.Helper()
	all := &v1alpha1.CacheVolumeList{}
	Must(w.T, w.API.List(context.Background(), all))
	if len(all.Items) > 0 || len(w.Images.Sizes) > 0 || w.Fleet.Replicas() > 0 {
		w.T.Errorf("left: %d records, images %v, %d replicas", len(all.Items), w.Images.Sizes, w.Fleet.Replicas())
	}
	for _, u := range w.Book.Usage() {
		if u.Volumes > 0 || u.AllocatedBytes > 0 {
			w.T.Errorf("still reserved: %+v", u)
		}
	}
}

// Group reads the NodeGroup g1.
func (w *World) Group() (*v1alpha1.NodeGroup, error) {
	g := &v1alpha1.NodeGroup{}
	return g, w.API.Get(context.Background(), client.ObjectKey{Name: "g1"}, g)
}

// Reinstall starts a host again under its name, with an empty volume group.
func (w *World) Reinstall(name string) {
	w.T.Helper()
	w.Host(name).Forget()
	w.Host(name).Restart(w.T)
	n := &corev1.Node{}
	Must(w.T, w.API.Get(context.Background(), client.ObjectKey{Name: name}, n))
	n.Spec.Taints = nil
	Must(w.T, w.API.Update(context.Background(), n))
	w.Poll()
}

// PollBoth is Poll for the groups g1 and g2.
func (w *World) PollBoth() {
	w.T.Helper()
	w.poll("g1")
	w.poll("g2")
}

// Gone reports whether a volume has no record any more.
func (w *World) Gone(id string) bool {
	return apierrors.IsNotFound(w.API.Get(context.Background(), client.ObjectKey{Name: id}, &v1alpha1.CacheVolume{}))
}

// CacheSizes are the sizes of the volume's copies, by host.
func (w *World) CacheSizes(v *v1alpha1.CacheVolume) map[string]int64 {
	out := map[string]int64{}
	for name, h := range w.Fleet.Hosts {
		if h.Has(Ref(v)) {
			out[name] = h.Status(Ref(v)).CacheBytes
		}
	}
	return out
}
