package repair_test

import (
	"context"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/tools/events"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	"github.com/escache/escache-csi/api/escache"
	"github.com/escache/escache-csi/api/v1alpha1"
	"github.com/escache/escache-csi/internal/controller/drain"
	"github.com/escache/escache-csi/internal/controller/hosts"
	"github.com/escache/escache-csi/internal/controller/linkkey"
	"github.com/escache/escache-csi/internal/controller/nodegroup"
	"github.com/escache/escache-csi/internal/controller/repair"
	"github.com/escache/escache-csi/internal/controller/reservation"
	"github.com/escache/escache-csi/internal/controller/volumes"
	"github.com/escache/escache-csi/internal/operation"
	"github.com/escache/escache-csi/test/hosttest"
)

const mib = 1 << 20

// world is a group of hosts that speak the API, n1 and so on, with volumes that are attached.
type world struct {
	t      *testing.T
	now    time.Time
	api    client.Client
	fleet  *hosttest.Fleet
	groups *nodegroup.Reconciler
	repair *repair.Repairer
	drain  *drain.Drainer
	events *events.FakeRecorder
	policy repair.Policy
	notes  notes
}

// notes are those in the images' metadata, by volume.
type notes struct {
	volumes.Images

	of map[string]volumes.Note
}

func (n notes) Noted(_ context.Context, image volumes.ImageRef) (volumes.Note, error) {
	return n.of[image.Image], nil
}

func (n notes) Find(_ context.Context, _, pool, image string) ([]volumes.Found, error) {
	return []volumes.Found{{ImageRef: volumes.ImageRef{Pool: pool, Image: image}, Note: n.of[image]}}, nil
}

func newNotes() notes { return notes{of: map[string]volumes.Note{}} }

func (n notes) Note(_ context.Context, _ volumes.ImageRef, note volumes.Note) error {
	n.of[note.Volume] = note
	return nil
}

// newWorld is three hosts, with volumes attached to n1 whose partner is n2.
func newWorld(t *testing.T, volumes ...string) *world {
	t.Helper()
	var all []attached
	for _, name := range volumes {
		all = append(all, attached{name, "n1", "n2"})
	}
	return newGroup(t, 3, all...)
}

// attached is a volume that is attached to its holder.
type attached struct{ name, holder, partner string }

func newGroup(t *testing.T, size int, volumes ...attached) *world {
	t.Helper()
	var nodes []string
	for i := range size {
		nodes = append(nodes, fmt.Sprintf("n%d", i+1))
	}
	scheme := runtime.NewScheme()
	check(t, corev1.AddToScheme(scheme))
	check(t, v1alpha1.AddToScheme(scheme))
	w := &world{t: t, now: time.Now().Truncate(time.Second), fleet: hosttest.Start(t, 1024*mib, nodes...), notes: newNotes()}
	w.policy = repair.Policy{After: time.Minute, Drain: true, Patience: time.Hour, Parallel: 4}
	objects := []client.Object{
		&v1alpha1.NodeGroup{ObjectMeta: metav1.ObjectMeta{Name: "g"}, Spec: v1alpha1.NodeGroupSpec{Nodes: nodes}},
	}
	for _, node := range nodes {
		objects = append(objects, w.fleet.Node(node))
	}
	for i, is := range volumes {
		v := &v1alpha1.CacheVolume{ObjectMeta: metav1.ObjectMeta{Name: is.name}}
		v.Spec = v1alpha1.CacheVolumeSpec{
			ClusterID: "c", Pool: "rbd", Image: is.name, SizeBytes: 64 * mib, CacheBytes: 64 * mib, CacheMode: v1alpha1.CacheModeWriteback,
			Group: "g", Replicas: []string{is.holder, is.partner}, Port: int32(7800 + i), Minor: int32(100 + i),
		}
		v.Status = v1alpha1.CacheVolumeStatus{
			Phase: v1alpha1.VolumeReady, AttachedNode: is.holder, Epoch: 1, Authority: v1alpha1.AuthorityCache, ImageID: "id",
		}
		objects = append(objects, v)
	}
	w.api = fake.NewClientBuilder().WithScheme(scheme).WithStatusSubresource(&v1alpha1.NodeGroup{}, &v1alpha1.CacheVolume{}).
		WithIndex(&v1alpha1.CacheVolume{}, nodegroup.GroupField, nodegroup.GroupOf).WithObjects(objects...).Build()
	w.restart()
	for _, is := range volumes {
		v := w.volume(is.name)
		request := escache.ReplicaRequest{
			VolumeRef: ref(is.name), ImageID: "id", SizeBytes: v.Spec.SizeBytes, CacheBytes: v.Spec.CacheBytes,
			Port: int(v.Spec.Port), Minor: int(v.Spec.Minor),
		}
		for _, node := range v.Spec.Replicas {
			address := w.fleet.Node(node).Status.Addresses[0].Address
			request.Nodes = append(request.Nodes, escache.ReplicaNode{Name: node, Address: address})
		}
		for _, node := range v.Spec.Replicas {
			check(t, w.fleet.Hosts[node].Lay(request))
		}
		w.fleet.Hosts[is.holder].Stage(ref(is.name), "10.0.0.1:0/1", 1, escache.ModeWriteback)
		w.fleet.Hosts[is.holder].Write(ref(is.name), 0)
	}
	w.poll()
	return w
}

// restart makes everything again that a process has in its memory.
func (w *world) restart() {
	log := slog.New(slog.NewTextHandler(w.t.Output(), nil))
	h := hosts.New(w.api, w.api, hosts.Options{Port: w.fleet.Port, RepeatAfter: time.Millisecond, Log: log})
	locks := operation.NewLocks(func() time.Time { return w.now })
	clock := func() time.Time { return w.now }
	book := reservation.NewBook(reservation.Slots{
		Ports: reservation.Range{First: 7800, Last: 8799}, Minors: reservation.Range{First: 100, Last: 1099},
	})
	check(w.t, nodegroup.Rebuild(w.t.Context(), w.api, book))
	guard := nodegroup.NewGuard(w.api, w.api, book)
	w.groups = nodegroup.New(nodegroup.Config{
		Client: w.api, Live: w.api, Hosts: h, Images: w.notes, Book: book, Guard: guard, Locks: locks,
		Events: events.NewFakeRecorder(1000), Log: log, Now: clock,
		Poll: time.Second, Patience: 10 * time.Second, Quiet: time.Second, Parallel: 1,
	})
	links, err := linkkey.New("test", []byte("the key of the Kubernetes cluster"))
	check(w.t, err)
	steps := volumes.NewSteps(volumes.Config{
		Cached: w.api, Live: w.api, Images: w.notes, Hosts: h, Book: book, Groups: guard, Links: links, Events: events.NewFakeRecorder(1000), Log: log, Now: clock,
	})
	w.drain = drain.New(drain.Config{Client: w.api, Live: w.api, Hosts: h, Locks: locks, Now: clock})
	w.events = events.NewFakeRecorder(1000)
	w.repair = repair.New(repair.Config{
		Policy: w.policy,
		Client: w.api, Live: w.api, Volumes: volumes.NewLocked(steps, locks), Drainer: w.drain, Hosts: h, Locks: locks, Events: w.events, Log: log,
		Now: clock, Every: time.Second, Longest: time.Minute, Ask: 10 * time.Second,
	})
}

// poll polls the hosts and takes repairs a step further, five seconds after the last time.
func (w *world) poll() {
	w.t.Helper()
	w.now = w.now.Add(5 * time.Second)
	for _, do := range []reconcile.Func{w.groups.Reconcile, w.groups.CleanUp} {
		_, err := do(w.t.Context(), ctrl.Request{NamespacedName: client.ObjectKey{Name: "g"}})
		check(w.t, err)
	}
	check(w.t, w.repair.Poll(w.t.Context()))
}

func (w *world) volume(name string) *v1alpha1.CacheVolume {
	w.t.Helper()
	v := &v1alpha1.CacheVolume{}
	check(w.t, w.api.Get(w.t.Context(), client.ObjectKey{Name: name}, v))
	if want := strings.Join(v.Status.Outdated, ","); v.Status.Summary.Outdated != want {
		w.t.Errorf("kubectl get shows %q as the outdated nodes of %s, not %q", v.Status.Summary.Outdated, v.Name, want)
	}
	return v
}

// lose stops n2's host for so long, and has the holder put its copies on record as outdated.
func (w *world) lose(long time.Duration, volumes ...string) {
	w.t.Helper()
	w.fleet.Hosts["n2"].Stop()
	for _, name := range volumes {
		v := w.volume(name)
		v.Status.Outdated = []string{"n2"}
		v.Status.Summarize()
		check(w.t, w.api.Status().Update(w.t.Context(), v))
	}
	w.poll()
	w.now = w.now.Add(long)
}

// at fails unless the volume's condition says so.
func (w *world) at(name, reason, says string) {
	w.t.Helper()
	c := meta.FindStatusCondition(w.volume(name).Status.Conditions, v1alpha1.ConditionRepairing)
	if c == nil || c.Reason != reason || !strings.Contains(c.Message, says) {
		w.t.Fatalf("%s: want %s %q, got %+v", name, reason, says, c)
	}
}

func TestADrainSaysHowFastItIsAndWhenItEnds(t *testing.T) {
	w := newWorld(t, "v")
	holder := w.fleet.Hosts["n1"]
	holder.Write(ref("v"), 100<<20)
	w.lose(30*time.Second, "v")
	w.now = w.now.Add(time.Minute)
	w.poll()
	w.poll()
	w.at("v", "Draining", "100Mi are left")
	w.now = w.now.Add(20 * time.Second)
	holder.Write(ref("v"), 60<<20)
	w.poll()
	w.at("v", "Draining", "60Mi are left, 1.6Mi/s, 38s remaining")
}

func ref(name string) escache.VolumeRef { return escache.VolumeRef{Pool: "rbd", Image: name} }

func check(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// TestRepair goes through a whole repair. Before every poll another process takes over, which knows
// only what is on record.
func TestRepair(t *testing.T) {
	w := newWorld(t, "v")
	holder := w.fleet.Hosts["n1"]
	holder.Write(ref("v"), 4096)
	step := func() { w.restart(); w.poll() }
	w.lose(30*time.Second, "v")
	step()
	if w.volume("v").Status.Repair != nil {
		t.Fatal("a repair began before its time")
	}
	w.now = w.now.Add(time.Minute)
	step()
	w.at("v", "Beginning", "node n2 has not answered since")
	step()
	w.at("v", "Draining", "4Ki are left")
	if s := holder.Status(ref("v")); s.Mode != escache.ModeWritethrough {
		t.Errorf("the holder is in mode %s", s.Mode)
	}
	holder.Write(ref("v"), 0)
	step()
	if s := w.volume("v").Status; s.Authority != v1alpha1.AuthorityCeph {
		t.Errorf("drained, and the authority is %s", s.Authority)
	}
	step()
	w.at("v", "Copying", "partners")
	if v := w.volume("v"); !slices.Equal(v.Spec.Replicas, []string{"n1", "n3"}) || !v.Status.IsOutdated("n3") {
		t.Errorf("replicas %v, outdated %v", v.Spec.Replicas, v.Status.Outdated)
	}
	if note := w.notes.of["v"]; !slices.Equal(note.Spec.Replicas, []string{"n1", "n3"}) || note.AttachedNode != "n1" {
		t.Errorf("the image does not know where the copies are: %+v", note)
	}
	holder.Sync(ref("v"), 40)
	w.now = w.now.Add(time.Minute)
	step()
	w.at("v", "Copying", "n1 copies to n3")
	group := &v1alpha1.NodeGroup{}
	check(t, w.api.Get(t.Context(), client.ObjectKey{Name: "g"}, group))
	if c := meta.FindStatusCondition(group.Status.Conditions, v1alpha1.GroupRedundant); c == nil || c.Status != metav1.ConditionFalse ||
		!strings.Contains(c.Message, "volumes in repair: 1 (1 copying)") {
		t.Errorf("the group says %+v", c)
	}
	holder.Sync(ref("v"), 100)
	for range 3 {
		step()
	}
	w.at("v", repair.ReasonNone, "")
	v := w.volume("v")
	if s := v.Status; len(s.Outdated) > 0 || s.Repair != nil || len(s.WriteThrough) > 0 ||
		s.Authority != v1alpha1.AuthorityCache || s.AttachedNode != "n1" {
		t.Errorf("status %+v", s)
	}
	if s := holder.Status(ref("v")); s.Mode != escache.ModeWriteback {
		t.Errorf("the holder is in mode %s", s.Mode)
	}
	w.fleet.Hosts["n2"].Restart(t)
	step()
	if w.fleet.Hosts["n2"].Has(ref("v")) || !w.fleet.Hosts["n3"].Has(ref("v")) {
		t.Errorf("replicas on %v", w.fleet.On(ref("v")))
	}
}

func TestDrainOfSomebodyElseOutlivesTheRepair(t *testing.T) {
	w := newWorld(t, "v")
	_, err := w.drain.Turn(t.Context(), "v", v1alpha1.FlushOwner("mine"))
	check(t, err)
	w.lose(2*time.Minute, "v")
	for range 4 {
		w.poll()
	}
	w.fleet.Hosts["n1"].Sync(ref("v"), 100)
	for range 3 {
		w.poll()
	}
	w.at("v", repair.ReasonNone, "")
	s := w.fleet.Hosts["n1"].Status(ref("v"))
	if v := w.volume("v"); s.Mode != escache.ModeWritethrough || len(v.Status.WriteThrough) != 1 || v.Status.Repair != nil {
		t.Errorf("mode %s, status %+v", s.Mode, v.Status)
	}
}

func TestHostThatIsBackInTimeKeepsItsReplica(t *testing.T) {
	w := newWorld(t, "v")
	w.fleet.Hosts["n1"].Write(ref("v"), 4096)
	w.lose(2*time.Minute, "v")
	for range 2 {
		w.poll()
	}
	w.at("v", "Draining", "")
	w.fleet.Hosts["n2"].Restart(t)
	w.poll()
	w.at("v", "Waiting", "is back")
	v := w.volume("v")
	v.Status.Outdated = nil // what csi-node does once the copy is current
	check(t, w.api.Status().Update(t.Context(), v))
	for range 3 {
		w.poll()
	}
	w.at("v", repair.ReasonNone, "")
	if v := w.volume("v"); !v.Spec.HasReplica("n2") || v.Status.Repair != nil || len(v.Status.WriteThrough) > 0 {
		t.Errorf("replicas %v, status %+v", v.Spec.Replicas, v.Status)
	}
}

func TestOneVolumeIsCopiedAtATimeOnAHost(t *testing.T) {
	w := newWorld(t, "a", "b")
	w.lose(2*time.Minute, "a", "b")
	for range 4 {
		w.poll()
	}
	w.at("a", "Copying", "")
	w.at("b", "Waiting", "copying volume a")
	if !w.volume("b").Spec.HasReplica("n2") {
		t.Error("b was replaced, too")
	}
	w.fleet.Hosts["n1"].Sync(ref("a"), 100)
	for range 3 {
		w.poll()
	}
	w.at("a", repair.ReasonNone, "")
	w.at("b", "Copying", "")
}
