package cacheflush

import (
	"context"
	"fmt"
	"log/slog"
	"sync"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/tools/events"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"

	"github.com/escache/escache-csi/api/escache"
	"github.com/escache/escache-csi/api/escache/escachetest"
	"github.com/escache/escache-csi/api/v1alpha1"
	"github.com/escache/escache-csi/internal/cachevolume"
	"github.com/escache/escache-csi/internal/controller/drain"
	"github.com/escache/escache-csi/internal/controller/hosts"
	"github.com/escache/escache-csi/internal/controller/reservation"
	"github.com/escache/escache-csi/internal/controller/volumes"
	"github.com/escache/escache-csi/internal/operation"
	"github.com/escache/escache-csi/test/hosttest"
)

const mib = 1 << 20

// world is a reconciler with one group of three played hosts, n1, n2 and n3.
type world struct {
	t      *testing.T
	api    client.Client
	fleet  *hosttest.Fleet
	events *events.FakeRecorder
	r      *Reconciler

	mu    sync.Mutex
	later time.Duration // how far the clock is ahead
	port  int
}

func newWorld(t *testing.T) *world {
	t.Helper()
	scheme := runtime.NewScheme()
	must(t, corev1.AddToScheme(scheme))
	must(t, v1alpha1.AddToScheme(scheme))
	w := &world{t: t, fleet: hosttest.Start(t, 1<<40, "n1", "n2", "n3"), events: events.NewFakeRecorder(1000)}
	group := &v1alpha1.NodeGroup{ObjectMeta: metav1.ObjectMeta{Name: "g1"}, Spec: v1alpha1.NodeGroupSpec{Nodes: []string{"n1", "n2", "n3"}}}
	w.api = fake.NewClientBuilder().WithScheme(scheme).
		WithStatusSubresource(&v1alpha1.CacheFlush{}, &v1alpha1.CacheVolume{}).
		WithObjects(w.fleet.Node("n1"), w.fleet.Node("n2"), w.fleet.Node("n3"), group).Build()
	w.restart()
	return w
}

func (w *world) now() time.Time {
	w.mu.Lock()
	defer w.mu.Unlock()
	return time.Now().Add(w.later)
}

func (w *world) wait(d time.Duration) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.later += d
}

// restart makes a new reconciler that knows nothing but what is on record, as another process
// would.
func (w *world) restart() {
	log := slog.New(slog.NewTextHandler(w.t.Output(), nil))
	h := hosts.New(w.api, w.api, hosts.Options{Port: w.fleet.Port, RepeatAfter: time.Millisecond, Log: log})
	locks := operation.NewLocks(time.Now)
	steps := volumes.NewSteps(volumes.Config{
		Cached: w.api, Live: w.api, Images: images{}, Hosts: h, Events: w.events, Log: log, Now: w.now,
		Book: reservation.NewBook(reservation.Slots{}),
	})
	w.r = New(Config{
		Client: w.api, Live: w.api, Hosts: h, Events: w.events, Log: log, Now: w.now, Flusher: volumes.NewLocked(steps, locks),
		Drain: drain.New(drain.Config{Client: w.api, Live: w.api, Hosts: h, Locks: locks, Now: w.now}),
		Pass:  time.Second, Verify: 10 * time.Second, Parallel: 4, Volumes: 16,
	})
}

// images is a Ceph whose images have no metadata. Nothing else of it is asked for.
type images struct{ volumes.Images }

func (images) Noted(context.Context, volumes.ImageRef) (volumes.Note, error) {
	return volumes.Note{}, nil
}

func (images) Note(context.Context, volumes.ImageRef, volumes.Note) error { return nil }

// attach makes a volume that is connected on a node with so much dirty.
func (w *world) attach(name, node string, dirty int64) *v1alpha1.CacheVolume {
	w.t.Helper()
	partner := "n3"
	if node == partner {
		partner = "n1"
	}
	v := &v1alpha1.CacheVolume{ObjectMeta: metav1.ObjectMeta{Name: name}, Spec: v1alpha1.CacheVolumeSpec{
		ClusterID: "c", Pool: "rbd", Image: name, SizeBytes: 1 << 30, CacheBytes: 1 << 30, Group: "g1", Replicas: []string{node, partner},
		CacheMode: v1alpha1.CacheModeWriteback,
	}}
	must(w.t, w.api.Create(w.t.Context(), v))
	v.Status = v1alpha1.CacheVolumeStatus{
		Phase: v1alpha1.VolumeReady, Authority: v1alpha1.AuthorityCache, AttachedNode: node, Epoch: 3, DirtyBytes: dirty,
	}
	must(w.t, w.api.Status().Update(w.t.Context(), v))
	w.lay(v, node, 3, dirty)
	return v
}

// lay puts a connected replica on a host.
func (w *world) lay(v *v1alpha1.CacheVolume, node string, epoch, dirty int64) {
	w.t.Helper()
	h := w.fleet.Hosts[node]
	w.port++
	must(w.t, h.Lay(escache.ReplicaRequest{VolumeRef: cachevolume.Ref(v), CacheBytes: 1 << 30, SizeBytes: 1 << 30, Port: w.port, Minor: w.port}))
	h.Stage(cachevolume.Ref(v), "10.0.0.1:0/1", epoch, escache.ModeWriteback)
	h.Write(cachevolume.Ref(v), dirty)
}

func (w *world) volume(name string) *v1alpha1.CacheVolume {
	w.t.Helper()
	v := &v1alpha1.CacheVolume{}
	must(w.t, w.api.Get(w.t.Context(), client.ObjectKey{Name: name}, v))
	return v
}

// on is what the host says of a volume.
func (w *world) on(node, volume string) escache.VolumeStatus {
	s := w.fleet.Hosts[node].Status(escache.VolumeRef{Pool: "rbd", Image: volume})
	return s
}

func (w *world) load(node, volume string, traffic escachetest.Traffic) {
	w.fleet.Hosts[node].Load(escache.VolumeRef{Pool: "rbd", Image: volume}, traffic)
}

// flush makes a CacheFlush named f, with the defaults that the API server would fill in.
func (w *world) flush(spec v1alpha1.CacheFlushSpec) {
	w.t.Helper()
	if spec.Mode == "" {
		spec.Mode = v1alpha1.FlushModeFlush
	}
	if spec.TimeoutSeconds == 0 {
		spec.TimeoutSeconds = 3600
	}
	must(w.t, w.api.Create(w.t.Context(), &v1alpha1.CacheFlush{ObjectMeta: metav1.ObjectMeta{Name: "f", UID: "f"}, Spec: spec}))
}

// pass has the reconciler work once, and returns what is on record then; nil once it is gone.
func (w *world) pass() *v1alpha1.CacheFlush {
	w.t.Helper()
	_, err := w.r.Reconcile(w.t.Context(), ctrl.Request{NamespacedName: client.ObjectKey{Name: "f"}})
	must(w.t, err)
	return w.record()
}

func (w *world) record() *v1alpha1.CacheFlush {
	w.t.Helper()
	f := &v1alpha1.CacheFlush{}
	err := w.api.Get(w.t.Context(), client.ObjectKey{Name: "f"}, f)
	if apierrors.IsNotFound(err) {
		return nil
	}
	must(w.t, err)
	return f
}

// until passes until the phase is reached.
func (w *world) until(phase v1alpha1.FlushPhase) *v1alpha1.CacheFlush {
	w.t.Helper()
	var f *v1alpha1.CacheFlush
	for range 15 {
		if f = w.pass(); f.Status.Phase == phase {
			return f
		}
	}
	w.t.Fatalf("not %s: %+v", phase, f.Status)
	return nil
}

func (w *world) remove() {
	w.t.Helper()
	must(w.t, w.api.Delete(w.t.Context(), &v1alpha1.CacheFlush{ObjectMeta: metav1.ObjectMeta{Name: "f"}}))
}

func of(t *testing.T, f *v1alpha1.CacheFlush, volume string) v1alpha1.FlushedVolume {
	t.Helper()
	for _, v := range f.Status.Volumes {
		if v.Name == volume {
			return v
		}
	}
	t.Fatalf("no volume %s in %+v", volume, f.Status.Volumes)
	return v1alpha1.FlushedVolume{}
}

func complete(f *v1alpha1.CacheFlush) string {
	c := meta.FindStatusCondition(f.Status.Conditions, v1alpha1.FlushConditionComplete)
	if c == nil {
		return ""
	}
	return fmt.Sprintf("%s %s: %s", c.Status, c.Reason, c.Message)
}

func (w *world) claim(namespace, name, volume, driver string) {
	w.t.Helper()
	must(w.t, w.api.Create(w.t.Context(), &corev1.PersistentVolumeClaim{
		ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name}, Spec: corev1.PersistentVolumeClaimSpec{VolumeName: "pv-" + volume},
	}))
	must(w.t, w.api.Create(w.t.Context(), &corev1.PersistentVolume{
		ObjectMeta: metav1.ObjectMeta{Name: "pv-" + volume},
		Spec: corev1.PersistentVolumeSpec{PersistentVolumeSource: corev1.PersistentVolumeSource{
			CSI: &corev1.CSIPersistentVolumeSource{Driver: driver, VolumeHandle: volume},
		}, ClaimRef: &corev1.ObjectReference{Namespace: namespace, Name: name}},
	}))
}

func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}
