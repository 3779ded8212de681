package csi_test

import (
	"cmp"
	"context"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/grpc/codes"
	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"k8s.io/client-go/tools/events"
	ctrl "sigs.k8s.io/controller-runtime"

	"github.com/escache/escache-csi/api/escache"
	"github.com/escache/escache-csi/api/v1alpha1"
	"github.com/escache/escache-csi/internal/cachevolume"
	service "github.com/escache/escache-csi/internal/controller/csi"
	"github.com/escache/escache-csi/internal/controller/hosts"
	"github.com/escache/escache-csi/internal/controller/linkkey"
	"github.com/escache/escache-csi/internal/controller/nodegroup"
	"github.com/escache/escache-csi/internal/controller/reservation"
	"github.com/escache/escache-csi/internal/controller/volumes"
	"github.com/escache/escache-csi/internal/operation"
	"github.com/escache/escache-csi/test/hosttest"
)

const gib = 1 << 30

// world is a service with one group of three hosts, g1: n1, n2 and n3, a node n9 of no group, and more
// such nodes where a test wants them.
type world struct {
	t       *testing.T
	api     client.Client
	cached  client.Client // api itself, where a test does not have it lag behind
	fleet   *hosttest.Fleet
	images  *fakeImages
	book    *reservation.Book
	links   *linkkey.Key
	service *service.Service
	locks   *operation.Locks
	locked  *volumes.Locked
	groups  *nodegroup.Reconciler
	// noFallback: the cluster has uncachedFallback off.
	noFallback bool
}

func newWorld(t *testing.T, more ...string) *world {
	t.Helper()
	names := append([]string{"n1", "n2", "n3", "n9"}, more...)
	scheme := runtime.NewScheme()
	must(t, corev1.AddToScheme(scheme))
	must(t, storagev1.AddToScheme(scheme))
	must(t, v1alpha1.AddToScheme(scheme))
	w := &world{t: t, links: key(t, "the key of the Kubernetes cluster"), images: newFakeImages(), fleet: hosttest.Start(t, 100*gib, names...)}
	group := &v1alpha1.NodeGroup{ObjectMeta: metav1.ObjectMeta{Name: "g1"}, Spec: v1alpha1.NodeGroupSpec{Nodes: []string{"n1", "n2", "n3"}}}
	w.api = fake.NewClientBuilder().WithScheme(scheme).
		WithStatusSubresource(&v1alpha1.NodeGroup{}, &v1alpha1.CacheVolume{}, &v1alpha1.CacheSnapshot{}, &v1alpha1.ReadOnlyVolume{}).
		WithIndex(&v1alpha1.CacheSnapshot{}, "spec.volume", service.VolumeOfSnapshot).
		WithIndex(&v1alpha1.CacheVolume{}, volumes.CloneSource, volumes.CloneSourceOf).
		WithIndex(&v1alpha1.CacheVolume{}, nodegroup.GroupField, nodegroup.GroupOf).
		WithObjects(group).Build()
	for _, name := range names {
		must(t, w.api.Create(t.Context(), w.fleet.Node(name)))
	}
	w.cached = w.api
	w.restart()
	return w
}

// restart makes a new service that knows nothing but what is on record, as another process would.
func (w *world) restart() {
	log, h := w.log(), w.hosts()
	w.locks = operation.NewLocks(time.Now)
	w.book = reservation.NewBook(reservation.Slots{
		Ports: reservation.Range{First: 7800, Last: 8799}, Minors: reservation.Range{First: 100, Last: 1099},
	})
	must(w.t, nodegroup.Rebuild(context.Background(), w.api, w.book))
	guard := nodegroup.NewGuard(w.api, w.api, w.book)
	w.groups = nodegroup.New(nodegroup.Config{
		Client: w.api, Live: w.api, Hosts: h, Book: w.book, Guard: guard, Locks: w.locks, Events: events.NewFakeRecorder(1000), Log: log, Now: time.Now,
		Poll: time.Second, Patience: 10 * time.Second, Quiet: time.Second, Parallel: 1,
	})
	steps := volumes.NewSteps(volumes.Config{
		Cached: w.cached, Live: w.api, Images: w.images, Hosts: h, Book: w.book, Log: log, Now: time.Now,
		Events: events.NewFakeRecorder(1000), Groups: guard, Links: w.links,
	})
	w.service = service.NewService(service.Config{Steps: steps, Operations: w.locks, ImagePrefix: "escache-", UncachedFallback: !w.noFallback})
	w.locked = volumes.NewLocked(steps, w.locks)
	w.poll()
}

func (w *world) log() *slog.Logger { return slog.New(slog.NewTextHandler(w.t.Output(), nil)) }

// hosts are the hosts of the fleet. Calls to one that is down are repeated at once.
func (w *world) hosts() *hosts.Hosts {
	return hosts.New(w.api, w.api, hosts.Options{Port: w.fleet.Port, RepeatAfter: time.Millisecond, Log: w.log()})
}

func key(t *testing.T, text string) *linkkey.Key {
	t.Helper()
	k, err := linkkey.New("test", []byte(text))
	must(t, err)
	return k
}

func (w *world) poll() {
	_, err := w.groups.Reconcile(context.Background(), ctrl.Request{NamespacedName: client.ObjectKey{Name: "g1"}})
	must(w.t, err)
}

func (w *world) volume(id string) *v1alpha1.CacheVolume {
	w.t.Helper()
	v := &v1alpha1.CacheVolume{}
	must(w.t, w.api.Get(context.Background(), client.ObjectKey{Name: id}, v))
	return v
}

func (w *world) create(name string) *v1alpha1.CacheVolume {
	w.t.Helper()
	_, err := w.service.CreateVolume(context.Background(), createRequest(name))
	must(w.t, err)
	return w.volume(name)
}

func (w *world) publish(id, node string) (map[string]string, error) {
	r, err := w.service.ControllerPublishVolume(context.Background(), &csi.ControllerPublishVolumeRequest{
		VolumeId: id, NodeId: node, VolumeCapability: capability(),
	})
	return r.GetPublishContext(), err
}

func (w *world) unpublish(id, node string) error {
	_, err := w.service.ControllerUnpublishVolume(context.Background(), &csi.ControllerUnpublishVolumeRequest{VolumeId: id, NodeId: node})
	return err
}

func (w *world) delete(id string) error {
	_, err := w.service.DeleteVolume(context.Background(), &csi.DeleteVolumeRequest{VolumeId: id})
	return err
}

func (w *world) host(name string) *hosttest.Host { return w.fleet.Hosts[name] }

// other is the group's node that has no replica.
func other(v *v1alpha1.CacheVolume) string {
	for _, n := range []string{"n1", "n2", "n3"} {
		if !v.Spec.HasReplica(n) {
			return n
		}
	}
	return ""
}

func ref(v *v1alpha1.CacheVolume) escache.VolumeRef {
	return cachevolume.Ref(v)
}

func capability() *csi.VolumeCapability {
	return &csi.VolumeCapability{
		AccessType: &csi.VolumeCapability_Mount{Mount: &csi.VolumeCapability_MountVolume{}},
		AccessMode: &csi.VolumeCapability_AccessMode{Mode: csi.VolumeCapability_AccessMode_SINGLE_NODE_WRITER},
	}
}

func createRequest(name string) *csi.CreateVolumeRequest {
	return &csi.CreateVolumeRequest{
		Name: name, CapacityRange: &csi.CapacityRange{RequiredBytes: gib}, VolumeCapabilities: []*csi.VolumeCapability{capability()},
		Parameters: map[string]string{"clusterID": "ceph", "pool": "rbd", "cacheSize": "64Mi"},
	}
}

func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// wants fails unless the error has the code and its text all of the words.
func wants(t *testing.T, err error, code codes.Code, words ...string) {
	t.Helper()
	if got := volumes.Code(err); got != code {
		t.Fatalf("got %s, want %s: %v", got, code, err)
	}
	for _, word := range words {
		if !strings.Contains(fmt.Sprint(err), word) {
			t.Errorf("the error does not say %q: %v", word, err)
		}
	}
}

// fakeImages is Ceph in a map.
type fakeImages struct {
	mu     sync.Mutex
	images map[volumes.ImageRef]int64
	open   map[volumes.ImageRef][]string
	left   map[volumes.ImageRef][]string // who holds the lock without having the image open
	fenced []string
	// blocked are entries of the blocklist that others have made, with their ends.
	blocked   map[string]time.Time
	fail      error // what every call answers
	pool      int64 // size of every pool, unless poolFails
	poolFails error
	asked     func() // is called when somebody asks for the size of a pool
	made      int
	marks     map[volumes.ImageRef]string // the volume of each image that has a mark
	notes     map[volumes.ImageRef]volumes.Note
	released  map[volumes.ImageRef]volumes.Note
	seen      map[volumes.ImageRef]volumes.Inspection // of images that others have made
	foreign   map[volumes.ImageRef]bool               // marked as another Kubernetes cluster's
	kept      map[volumes.ImageRef]string             // for the snapshots of which deleted volume
	taken     map[volumes.SnapshotRef]int             // how often
	clones    map[volumes.ImageRef]string             // of which snapshot
	taking    func(volumes.SnapshotRef)               // while a snapshot is taken
	// refusing is what TakeSnapshot answers if it is an error.
	refusing func(context.Context, volumes.SnapshotRef) error
	creating func(volumes.ImageSpec) error // before an image is made
	keeping  error                         // what Keep answers
	noting   error                         // what Note answers
	reading  error                         // what Noted answers of an image that is there
	// failFence is what Fence answers.
	failFence error
	// fences and lists are how often somebody was fenced, and the blocklist was read.
	fences, lists int
}

func newFakeImages() *fakeImages {
	return &fakeImages{
		pool: 50 * gib, images: map[volumes.ImageRef]int64{}, open: map[volumes.ImageRef][]string{},
		notes: map[volumes.ImageRef]volumes.Note{}, released: map[volumes.ImageRef]volumes.Note{},
		seen:  map[volumes.ImageRef]volumes.Inspection{},
		marks: map[volumes.ImageRef]string{}, foreign: map[volumes.ImageRef]bool{},
		kept:  map[volumes.ImageRef]string{},
		taken: map[volumes.SnapshotRef]int{}, clones: map[volumes.ImageRef]string{},
	}
}

func (f *fakeImages) EnsurePool(_ context.Context, _, pool string, _ bool) error {
	if pool == "absent" {
		return fmt.Errorf("pool %s: %w", pool, volumes.ErrNotFound)
	}
	return f.fail
}

func (f *fakeImages) Create(_ context.Context, spec volumes.ImageSpec) (bool, error) {
	if f.creating != nil {
		if err := f.creating(spec); err != nil {
			return false, err
		}
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.fail != nil {
		return false, f.fail
	}
	if f.foreign[spec.ImageRef] {
		return false, fmt.Errorf("of another Kubernetes cluster: %w", volumes.ErrRefused)
	}
	_, there := f.images[spec.ImageRef]
	if !there {
		f.images[spec.ImageRef] = spec.SizeBytes
		f.marks[spec.ImageRef], f.notes[spec.ImageRef] = spec.Volume, spec.Note
		f.made++
		if spec.From != nil {
			f.clones[spec.ImageRef] = spec.From.Snapshot
		}
	}
	return !there, nil
}

func (f *fakeImages) Mark(_ context.Context, image volumes.ImageRef, volume string) (string, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.foreign[image] {
		return "", fmt.Errorf("of another Kubernetes cluster: %w", volumes.ErrRefused)
	}
	if _, there := f.images[image]; !there {
		return "", volumes.ErrNotFound
	}
	if f.fail == nil {
		f.marks[image] = volume
	}
	return strings.ReplaceAll("idof"+image.Image, "-", ""), f.fail // the API takes letters and digits
}

func (f *fakeImages) Resize(_ context.Context, image volumes.ImageRef, sizeBytes int64) (int64, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.fail == nil {
		f.images[image] = max(f.images[image], sizeBytes)
	}
	return f.images[image], f.fail
}

func (f *fakeImages) Delete(_ context.Context, image volumes.ImageRef) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.fail != nil {
		return f.fail
	}
	for _, client := range f.open[image] {
		if !slices.Contains(f.fenced, client) {
			return fmt.Errorf("in use by %s: %w", client, volumes.ErrRefused)
		}
	}
	if f.foreign[image] {
		return fmt.Errorf("of another Kubernetes cluster: %w", volumes.ErrRefused)
	}
	for ref := range f.taken {
		if ref.ImageRef == image {
			return fmt.Errorf("has the snapshot %s: %w", ref.Snapshot, volumes.ErrRefused)
		}
	}
	delete(f.images, image)
	delete(f.kept, image)
	return nil
}

func (f *fakeImages) Keep(_ context.Context, image volumes.ImageRef, volume string) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	fail := cmp.Or(f.keeping, f.fail)
	if _, there := f.images[image]; there && fail == nil {
		f.kept[image] = volume
	}
	return fail
}

func (f *fakeImages) DeleteKept(ctx context.Context, image volumes.ImageRef, volume string) error {
	f.mu.Lock()
	kept, fail := f.kept[image], f.fail
	f.mu.Unlock()
	if kept != volume {
		return fail
	}
	return f.Delete(ctx, image)
}

func (f *fakeImages) Clients(_ context.Context, image volumes.ImageRef) ([]string, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.open[image], f.fail
}

func (f *fakeImages) PoolBytes(context.Context, string, string) (int64, error) {
	if f.asked != nil {
		f.asked()
	}
	if f.poolFails != nil {
		return 0, f.poolFails
	}
	return f.pool, f.fail
}

func (f *fakeImages) Problems(context.Context) ([]string, bool) {
	if f.fail != nil {
		return []string{f.fail.Error()}, true
	}
	return nil, true
}
