package nodegroup

import (
	"context"
	"errors"
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
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	"github.com/escache/escache-csi/api/escache"
	"github.com/escache/escache-csi/api/v1alpha1"
	"github.com/escache/escache-csi/internal/controller/reservation"
	"github.com/escache/escache-csi/internal/controller/volumes"
	"github.com/escache/escache-csi/internal/operation"
	"github.com/escache/escache-csi/internal/placement"
)

// bench is a reconciler with hosts that say what a test wants.
type bench struct {
	t      *testing.T
	now    time.Time
	writes int
	hosts  map[string]*escache.Node
	api    client.Client
	book   *reservation.Book
	guard  *Guard
	events *events.FakeRecorder
	r      *Reconciler

	asking    func(node string)                   // before a host answers
	removing  func(context.Context, string) error // instead of DeleteReplica
	dirty     []string                            // hosts that do not remove a replica but with discard
	discarded []string                            // hosts
	upTo      []int64                             // the epochs up to which
	notes     map[volumes.ImageRef]volumes.Note   // of the images that are there
	released  bool                                // all of them
	deleted   string                              // when all of their volumes were
	silent    error                               // what Ceph answers instead
	broken    string                              // a cluster that refuses everything
	asked     int                                 // how often
}

func (b *bench) Node(_ context.Context, node string) (*escache.Node, error) {
	if b.asking != nil {
		b.asking(node)
	}
	if h := b.hosts[node]; h != nil {
		copied := *h
		return &copied, nil
	}
	return nil, errors.New("connection refused")
}

func (b *bench) DeleteReplica(ctx context.Context, node string, _ escache.VolumeRef) error {
	if b.removing != nil {
		return b.removing(ctx, node)
	}
	if slices.Contains(b.dirty, node) {
		return &escache.Problem{Code: escache.CodeDirty}
	}
	return nil
}

func (b *bench) DiscardReplica(_ context.Context, node string, _ escache.VolumeRef, upTo int64) error {
	b.discarded, b.upTo = append(b.discarded, node), append(b.upTo, upTo)
	return nil
}

func (b *bench) Noted(_ context.Context, image volumes.ImageRef) (volumes.Note, error) {
	b.asked++
	note, there := b.notes[image]
	if !there && b.silent == nil {
		return note, volumes.ErrNotFound
	}
	return note, b.silent
}

func (b *bench) Find(_ context.Context, clusterID, pool, image string) ([]volumes.Found, error) {
	b.asked++
	if b.broken != "" && (clusterID == "" || clusterID == b.broken) {
		return nil, volumes.ErrRefused
	}
	var out []volumes.Found
	for ref, note := range b.notes {
		if (clusterID == "" || ref.ClusterID == clusterID) && ref.Pool == pool && ref.Image == image {
			out = append(out, volumes.Found{ImageRef: ref, Note: note, Released: b.released, Deleted: b.deleted})
		}
	}
	return out, b.silent
}

func newBench(t *testing.T, objects ...client.Object) *bench {
	t.Helper()
	scheme := runtime.NewScheme()
	for _, add := range []func(*runtime.Scheme) error{corev1.AddToScheme, v1alpha1.AddToScheme} {
		if err := add(scheme); err != nil {
			t.Fatal(err)
		}
	}
	b := &bench{t: t, now: time.Unix(1_800_000_000, 0), hosts: map[string]*escache.Node{}, events: events.NewFakeRecorder(100)}
	b.notes = map[volumes.ImageRef]volumes.Note{}
	b.api = fake.NewClientBuilder().WithScheme(scheme).WithStatusSubresource(&v1alpha1.NodeGroup{}).WithObjects(objects...).
		WithIndex(&v1alpha1.CacheVolume{}, GroupField, GroupOf).
		WithInterceptorFuncs(interceptor.Funcs{
			SubResourcePatch: func(ctx context.Context, c client.Client, sub string, o client.Object, p client.Patch, opts ...client.SubResourcePatchOption) error {
				b.writes++
				return c.Status().Patch(ctx, o, p, opts...)
			},
		}).Build()
	b.book = reservation.NewBook(reservation.Slots{
		Ports: reservation.Range{First: 7800, Last: 7899}, Minors: reservation.Range{First: 0, Last: 99},
	})
	b.guard = NewGuard(b.api, b.api, b.book)
	b.r = New(Config{
		Client: b.api, Live: b.api, Hosts: b, Images: b, Book: b.book, Guard: b.guard, Locks: operation.NewLocks(time.Now), Events: b.events,
		Log: slog.New(slog.DiscardHandler),
		Now: func() time.Time { return b.now }, Poll: 5 * time.Second, Patience: time.Second, Quiet: 10 * time.Second, Parallel: 1,
	})
	b.join("n1", "n2", "n3")
	return b
}

// join adds healthy hosts to the Kubernetes cluster.
func (b *bench) join(nodes ...string) {
	b.t.Helper()
	for _, n := range nodes {
		b.must(b.api.Create(b.t.Context(), &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: n}}))
		b.hosts[n] = &escache.Node{Name: n, Version: "v1", Healthy: true, CacheCapacityBytes: 1000, CacheFreeBytes: 1000}
	}
}

func group(name string, age time.Duration, nodes ...string) *v1alpha1.NodeGroup {
	return &v1alpha1.NodeGroup{
		ObjectMeta: metav1.ObjectMeta{Name: name, CreationTimestamp: metav1.NewTime(time.Unix(1_700_000_000, 0).Add(-age))},
		Spec:       v1alpha1.NodeGroupSpec{Nodes: nodes},
	}
}

// poll polls a group once, and then cleans it up.
func (b *bench) poll(name string) v1alpha1.NodeGroupStatus {
	b.t.Helper()
	key := client.ObjectKey{Name: name}
	for _, do := range []reconcile.Func{b.r.Reconcile, b.r.CleanUp} {
		if _, err := do(b.t.Context(), ctrl.Request{NamespacedName: key}); err != nil {
			b.t.Fatal(err)
		}
	}
	g := &v1alpha1.NodeGroup{}
	if err := b.api.Get(b.t.Context(), key, g); err != nil {
		b.t.Fatal(err)
	}
	return g.Status
}

func (b *bench) event() string {
	select {
	case e := <-b.events.Events:
		return e
	default:
		return ""
	}
}

func TestStatusIsWrittenOnlyWhenItChanges(t *testing.T) {
	b := newBench(t, group("g", 0, "n1", "n2", "n3"))
	for _, step := range []struct {
		what   string
		after  time.Duration
		change func()
		writes int
	}{
		{"first poll", 0, func() {}, 1},
		{"nothing new", 5 * time.Second, func() {}, 0},
		{"dirty bytes soon after", 4 * time.Second, func() { b.hosts["n1"].DirtyBytes = 5 }, 0},
		{"dirty bytes ten seconds after", time.Second, func() { b.hosts["n1"].DirtyBytes = 6 }, 1},
		{"a host falls ill", time.Second, func() { b.hosts["n1"].Healthy = false }, 1},
		{"it stays ill", time.Second, func() {}, 0},
		{"it recovers", time.Second, func() { b.hosts["n1"].Healthy = true }, 1},
		{"it gets another certificate", time.Second, func() { b.hosts["n1"].CertificateEnd = new(b.now) }, 1},
		{"what the memory allows goes up and down", 11 * time.Second, func() { b.hosts["n1"].ConnectableBytes = new(int64) }, 0},
		{"nothing for long", 48 * time.Second, func() {}, 0},
		{"a minute: still seen", time.Second, func() {}, 1},
	} {
		b.now = b.now.Add(step.after)
		step.change()
		b.writes = 0
		b.poll("g")
		if b.writes != step.writes {
			t.Errorf("%s: %d writes, want %d", step.what, b.writes, step.writes)
		}
	}
	if m := b.poll("g").Members; m[0].CertificateEnd == nil || m[1].CertificateEnd != nil {
		t.Errorf("the ends of the certificates: %+v", m)
	}
}

// kubectl get shows a list as JSON.
func TestTheSummaryNamesTheNodesInOneText(t *testing.T) {
	b := newBench(t, group("g", 0, "n1", "n2", "n3"))
	if got := b.poll("g").Summary; got.Nodes != "n1,n2,n3" || got.Ready != "3/3" {
		t.Errorf("%+v", got)
	}
}

func TestSilentMemberWasSeenWhenItLastAnswered(t *testing.T) {
	b := newBench(t, group("g", 0, "n1", "n2", "n3"))
	b.poll("g")
	b.now = b.now.Add(50 * time.Second)
	answered := metav1.NewTime(b.now)
	if s := b.poll("g"); s.Members[1].LastSeen.Equal(&answered) {
		t.Fatal("it was written only to say that the host is still seen")
	}
	delete(b.hosts, "n2")
	for _, after := range []time.Duration{5 * time.Second, 2 * time.Minute} {
		b.now = b.now.Add(after)
		if s := b.poll("g"); !s.Members[1].LastSeen.Equal(&answered) {
			t.Errorf("last seen %s, it answered last at %s", s.Members[1].LastSeen, answered)
		}
	}
}

func TestWhatIsWrongWithAMemberIsSaid(t *testing.T) {
	for name, tc := range map[string]struct {
		break_ func(*bench)
		says   string
		event  string
	}{
		"no answer":    {func(b *bench) { delete(b.hosts, "n2") }, "connection refused", reasonUnreachable},
		"sick":         {func(b *bench) { b.hosts["n2"].Healthy, b.hosts["n2"].Reasons = false, []string{"no DRBD"} }, "no DRBD", reasonUnhealthy},
		"another host": {func(b *bench) { b.hosts["n2"].Name = "n7" }, `says it is node "n7"`, reasonImpostor},
		"no such node": {func(b *bench) {
			_ = b.api.Delete(b.t.Context(), &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "n2"}})
		}, "no node n2", reasonUnknown},
		"nothing at all": {func(*bench) {}, "", "MemberReady"},
	} {
		t.Run(name, func(t *testing.T) {
			b := newBench(t, group("g", 0, "n1", "n2", "n3"))
			tc.break_(b)
			s := b.poll("g")
			degraded := meta.FindStatusCondition(s.Conditions, v1alpha1.GroupDegraded)
			if ok := degraded.Status == metav1.ConditionFalse; ok != (tc.says == "") || !strings.Contains(degraded.Message, tc.says) {
				t.Errorf("degraded: %+v", degraded)
			}
			if !meta.IsStatusConditionTrue(s.Conditions, v1alpha1.GroupReady) {
				t.Errorf("two members are enough: %+v", s.Conditions)
			}
			if b.book.Ready("g", "n2") != (tc.says == "") || !b.book.Ready("g", "n1") {
				t.Error("placement thinks otherwise")
			}
			found := false
			for e := b.event(); e != ""; e = b.event() {
				found = found || strings.Contains(e, tc.event)
			}
			if !found {
				t.Errorf("no event %s", tc.event)
			}
		})
	}
}

func TestNodeBelongsToTheOldestGroup(t *testing.T) {
	b := newBench(t, group("young", 0, "n1", "n2", "n3"), group("old", time.Hour, "n1", "n8", "n9"))
	if s := b.poll("young"); s.Members[0].Ready || !strings.Contains(s.Members[0].Message, "older group old") || !s.Members[1].Ready {
		t.Errorf("young: %+v", s.Members)
	}
	if s := b.poll("old"); !s.Members[0].Ready {
		t.Errorf("old: %+v", s.Members)
	}
	if err := b.api.Delete(t.Context(), group("old", 0)); err != nil {
		t.Fatal(err)
	}
	if _, err := b.r.Reconcile(t.Context(), ctrl.Request{NamespacedName: client.ObjectKey{Name: "old"}}); err != nil {
		t.Fatal(err)
	}
	if s := b.poll("young"); !s.Members[0].Ready || !b.book.Ready("young", "n1") {
		t.Errorf("young, alone: %+v", s.Members)
	}
}

// TestHostsChangeTheirGroupsAtTheSameTime: each group waits for a host that another one still has, by what was polled before.
func TestHostsChangeTheirGroupsAtTheSameTime(t *testing.T) {
	for name, now := range map[string]map[string][]string{
		"two groups swap hosts":   {"a": {"n1", "n2", "n6"}, "b": {"n4", "n5", "n3"}, "c": {"n7", "n8", "n9"}},
		"three groups pass hosts": {"a": {"n1", "n2", "n6"}, "b": {"n4", "n5", "n9"}, "c": {"n7", "n8", "n3"}},
	} {
		t.Run(name, func(t *testing.T) {
			b := newBench(t,
				group("a", 2*time.Hour, "n1", "n2", "n3"), group("b", time.Hour, "n4", "n5", "n6"), group("c", 0, "n7", "n8", "n9"))
			b.join("n4", "n5", "n6", "n7", "n8", "n9")
			groups := []string{"a", "b", "c"}
			poll := func() {
				for _, g := range groups {
					b.poll(g)
				}
			}
			poll()
			for _, name := range groups {
				g := b.group(name)
				g.Spec.Nodes = now[name]
				b.must(b.api.Update(t.Context(), g))
			}
			delete(b.hosts, "n1")
			poll()
			poll()
			for _, u := range b.book.Usage() {
				var members []string
				for _, m := range u.Members {
					members = append(members, m.Name)
					if ready := m.Name != "n1"; m.Ready != ready || b.book.Ready(u.Group, m.Name) != ready {
						t.Errorf("group %s, host %s: ready %t, want %t", u.Group, m.Name, m.Ready, ready)
					}
				}
				if want := slices.Sorted(slices.Values(now[u.Group])); !slices.Equal(slices.Sorted(slices.Values(members)), want) {
					t.Errorf("group %s has %v, want %v", u.Group, members, want)
				}
			}
		})
	}
}

func TestCordonedGroupIsNotPlacedIn(t *testing.T) {
	g := group("g", 0, "n1", "n2", "n3")
	g.Spec.Cordoned = true
	b := newBench(t, g)
	if s := b.poll("g"); meta.IsStatusConditionTrue(s.Conditions, v1alpha1.GroupReady) {
		t.Errorf("conditions %+v", s.Conditions)
	}
	if _, err := b.book.Reserve("v", 1, "", nil); err == nil {
		t.Error("a volume was placed in it")
	}
}

func TestTheEnginesOfHostsDecideWhereVolumesGo(t *testing.T) {
	b := newBench(t, group("g", 0, "n1", "n2", "n3"))
	both := []escache.Engine{escache.EngineWritecache, escache.EngineLog}
	b.hosts["n2"].Engines = both
	reserve := func(book *reservation.Book, volume string) error {
		r, err := book.Reserve(volume, 10, v1alpha1.CacheEngineLog, nil)
		if err == nil && (r.Primary == "n1" || r.Partner == "n1") {
			t.Errorf("%s went to %+v", volume, r)
		}
		return err
	}
	if m := b.poll("g").Members; len(m[0].Engines) != 0 || !slices.Equal(m[1].Engines, []string{"log"}) {
		t.Errorf("on record are %+v", m)
	}
	if err := reserve(b.book, "v"); !errors.Is(err, placement.ErrNoFit) || !strings.Contains(err.Error(), "n1 without the cache engine log") {
		t.Errorf("only one host has the engine: %v", err)
	}
	b.hosts["n3"].Engines = both
	b.poll("g")
	if err := reserve(b.book, "v"); err != nil {
		t.Error(err)
	}
	// Another csi-controller that takes over knows it from the record.
	after := reservation.NewBook(reservation.Slots{
		Ports: reservation.Range{First: 7800, Last: 7899}, Minors: reservation.Range{First: 0, Last: 99},
	})
	if err := Rebuild(t.Context(), b.api, after); err != nil {
		t.Fatal(err)
	}
	if err := reserve(after, "w"); err != nil {
		t.Error(err)
	}
	b.hosts["n3"].Engines = nil // its kernel module is gone
	b.poll("g")
	if err := reserve(b.book, "x"); !errors.Is(err, placement.ErrNoFit) {
		t.Errorf("a host that has lost the engine: %v", err)
	}
}

func TestWhatAHostSaysOfItsMemoryCountsUntilItFallsSilent(t *testing.T) {
	b := newBench(t, group("g", 0, "n1", "n2", "n3"))
	connectable := int64(500)
	b.hosts["n1"].ConnectableBytes, b.hosts["n1"].ConnectedBytes, b.hosts["n1"].CacheMemoryBytes = &connectable, 200, 4
	m := b.poll("g").Members[0]
	if m.ConnectableBytes == nil || *m.ConnectableBytes != 500 || m.ConnectedBytes != 200 || m.CacheMemoryBytes != 4 {
		t.Errorf("on record is %+v", m)
	}
	says := func(book *reservation.Book, node string, bytes int64, known bool) {
		t.Helper()
		if got, is := book.Connectable("g", node); got != bytes || is != known {
			t.Errorf("%s: %d bytes are connectable (%v), want %d (%v)", node, got, is, bytes, known)
		}
	}
	says(b.book, "n1", 300, true)
	says(b.book, "n2", 0, false)
	says(b.book, "unknown", 0, false)
	if _, err := b.book.Reserve("v", 501, "", nil); err != nil {
		t.Errorf("two hosts set no limit: %v", err)
	}
	for _, n := range []string{"n2", "n3"} {
		b.hosts[n].ConnectableBytes = &connectable
	}
	b.poll("g")
	if _, err := b.book.Reserve("w", 501, "", nil); err == nil {
		t.Error("no host has memory for 501 bytes of cache")
	}

	after := reservation.NewBook(reservation.Slots{
		Ports: reservation.Range{First: 7800, Last: 7899}, Minors: reservation.Range{First: 0, Last: 99},
	})
	if err := Rebuild(t.Context(), b.api, after); err != nil {
		t.Fatal(err)
	}
	says(after, "n1", 300, true)

	connectable = 100 // less than is connected
	b.poll("g")
	says(b.book, "n1", 0, true)
	b.hosts["n1"] = nil
	b.poll("g")
	says(b.book, "n1", 0, false)
}

func TestBookIsRebuiltFromRecords(t *testing.T) {
	g := group("g", 0, "n1", "n2", "n3")
	for _, n := range g.Spec.Nodes {
		g.Status.Members = append(g.Status.Members, v1alpha1.NodeGroupMember{Name: n, Ready: true, CacheCapacityBytes: 100})
	}
	v := &v1alpha1.CacheVolume{ObjectMeta: metav1.ObjectMeta{Name: "v"}}
	v.Spec = v1alpha1.CacheVolumeSpec{Group: "g", Replicas: []string{"n1", "n2"}, CacheBytes: 60, Port: 7800}
	b := newBench(t, g, v)
	if err := Rebuild(t.Context(), b.api, b.book); err != nil {
		t.Fatal(err)
	}
	if !b.book.Ready("g", "n1") || !b.book.Well("g", "n1") {
		t.Error("a host that was ready counts as silent")
	}
	if u := b.book.Usage(); len(u) != 1 || u[0].Volumes != 1 || u[0].AllocatedBytes != 120 || u[0].CapacityBytes != 300 {
		t.Errorf("usage %+v", u)
	}
	if _, err := b.book.Reserve("w", 60, "", nil); err == nil {
		t.Error("n1 and n2 have 40 left, and only n3 has 100")
	}
	if r, err := b.book.Reserve("w", 40, "", nil); err != nil || r.Port != 7801 {
		t.Errorf("%+v, %v", r, err)
	}
}
