package failover

import (
	"context"
	"errors"
	"log/slog"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/tools/events"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"

	"github.com/escache/escache-csi/api/escache"
	"github.com/escache/escache-csi/api/v1alpha1"
)

// bench is one group, n1 to n3, that share volumes.
type bench struct {
	t      *testing.T
	now    time.Time
	api    client.Client
	silent map[string]bool
	links  escache.LinkState // of n2 and n3 to n1
	events *events.FakeRecorder
	watch  *Watch
}

func (b *bench) Node(_ context.Context, node string) (*escache.Node, error) {
	if b.silent[node] {
		return nil, errors.New("no route")
	}
	return &escache.Node{Name: node}, nil
}

func (b *bench) Volumes(_ context.Context, node string) ([]escache.VolumeStatus, error) {
	if b.silent[node] {
		return nil, errors.New("no route")
	}
	return []escache.VolumeStatus{{Peers: []escache.Peer{{Name: "n1", ConnectionState: b.links}}}}, nil
}

func newBench(t *testing.T) *bench {
	t.Helper()
	scheme := runtime.NewScheme()
	for _, add := range []func(*runtime.Scheme) error{corev1.AddToScheme, v1alpha1.AddToScheme} {
		if err := add(scheme); err != nil {
			t.Fatal(err)
		}
	}
	group := &v1alpha1.NodeGroup{ObjectMeta: metav1.ObjectMeta{Name: "g"}, Spec: v1alpha1.NodeGroupSpec{Nodes: []string{"n1", "n2", "n3"}}}
	volume := &v1alpha1.CacheVolume{ObjectMeta: metav1.ObjectMeta{Name: "v"}}
	volume.Status.AttachedNode = "n1"
	objects := []client.Object{group, volume}
	for _, name := range group.Spec.Nodes {
		n := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: name}}
		n.Status.Conditions = []corev1.NodeCondition{{Type: corev1.NodeReady, Status: corev1.ConditionTrue}}
		objects = append(objects, n)
	}
	b := &bench{
		t: t, now: time.Unix(1_800_000_000, 0), silent: map[string]bool{}, links: "Connected", events: events.NewFakeRecorder(100),
		api: fake.NewClientBuilder().WithScheme(scheme).WithStatusSubresource(&corev1.Node{}, &v1alpha1.CacheVolume{}).WithObjects(objects...).Build(),
	}
	b.restart()
	return b
}

func (b *bench) restart() {
	b.watch = New(Config{
		Policy: Policy{After: time.Minute}, Client: b.api, Live: b.api, Hosts: b, Events: b.events, Log: slog.New(slog.DiscardHandler),
		Now: func() time.Time { return b.now }, Every: 5 * time.Second, Ask: time.Second,
	})
}

// poll polls every five seconds for that long.
func (b *bench) poll(long time.Duration) {
	b.t.Helper()
	for end := b.now.Add(long); !b.now.After(end); b.now = b.now.Add(5 * time.Second) {
		if err := b.watch.Poll(b.t.Context()); err != nil {
			b.t.Fatal(err)
		}
	}
}

func (b *bench) node(name string) *corev1.Node {
	b.t.Helper()
	n := &corev1.Node{}
	if err := b.api.Get(b.t.Context(), client.ObjectKey{Name: name}, n); err != nil {
		b.t.Fatal(err)
	}
	return n
}

func (b *bench) kill(name string, is bool) {
	b.t.Helper()
	b.silent[name] = is
	n := b.node(name)
	n.Status.Conditions[0].Status = map[bool]corev1.ConditionStatus{true: corev1.ConditionUnknown, false: corev1.ConditionTrue}[is]
	if err := b.api.Status().Update(b.t.Context(), n); err != nil {
		b.t.Fatal(err)
	}
}

func (b *bench) said() (all []string) {
	for len(b.events.Events) > 0 {
		all = append(all, <-b.events.Events)
	}
	return all
}

func TestDeadNodeIsTaintedAndReleasedWhenItIsBack(t *testing.T) {
	b := newBench(t)
	b.kill("n1", true)
	b.links = "WFConnection"
	b.poll(50 * time.Second)
	if outOfService(b.node("n1")) {
		t.Fatal("tainted before its time")
	}
	b.poll(15 * time.Second)
	if n := b.node("n1"); !outOfService(n) || !ours(n) {
		t.Fatalf("not tainted: %+v %+v", n.Spec.Taints, n.Annotations)
	}
	if said := strings.Join(b.said(), "\n"); strings.Count(said, "TaintedOutOfService") != 1 || !strings.Contains(said, "replication links") {
		t.Errorf("said %s", said)
	}
	b.restart() // another leader knows the taint by the annotation
	b.kill("n1", false)
	b.poll(time.Minute)
	if !outOfService(b.node("n1")) {
		t.Fatal("released with a volume on record there")
	}
	v := &v1alpha1.CacheVolume{ObjectMeta: metav1.ObjectMeta{Name: "v"}}
	if err := b.api.Get(t.Context(), client.ObjectKeyFromObject(v), v); err != nil {
		t.Fatal(err)
	}
	v.Status.AttachedNode = "n2"
	if err := b.api.Status().Update(t.Context(), v); err != nil {
		t.Fatal(err)
	}
	b.poll(5 * time.Second)
	if n := b.node("n1"); outOfService(n) || n.Annotations[AnnotationTaintedSince] != "" {
		t.Errorf("not released: %+v", n.Spec.Taints)
	}
}

func TestProofHasToHoldWithoutABreak(t *testing.T) {
	for name, interrupt := range map[string]func(b *bench){
		"escached answers once":       func(b *bench) { b.silent["n1"] = false; b.poll(0); b.silent["n1"] = true },
		"a link is up once":           func(b *bench) { b.links = "Connected"; b.poll(0); b.links = "WFConnection" },
		"another leader takes over":   func(b *bench) { b.restart() },
		"the process is paused":       func(b *bench) { b.now = b.now.Add(time.Hour) },
		"Kubernetes says Ready, once": func(b *bench) { b.kill("n1", false); b.silent["n1"] = true; b.poll(0); b.kill("n1", true) },
	} {
		t.Run(name, func(t *testing.T) {
			b := newBench(t)
			b.kill("n1", true)
			b.links = "WFConnection"
			b.poll(55 * time.Second)
			interrupt(b)
			b.poll(30 * time.Second)
			if outOfService(b.node("n1")) {
				t.Error("tainted")
			}
		})
	}
}

func TestStandingDownIsSaidOnceForAReason(t *testing.T) {
	b := newBench(t)
	b.kill("n1", true)
	b.poll(5 * time.Minute)
	if said := b.said(); len(said) != 1 || !strings.Contains(said[0], "links to it are up on n2 and n3") {
		t.Errorf("said %q", said)
	}
	for range 3 { // what comes and goes is said once, too
		b.silent["n2"] = true
		b.poll(time.Minute)
		b.silent["n2"] = false
		b.poll(time.Minute)
	}
	if said := b.said(); len(said) != 1 || !strings.Contains(said[0], "cut off") {
		t.Errorf("said %q", said)
	}
	b.kill("n1", false)
	b.poll(time.Minute)
	b.kill("n1", true)
	b.poll(time.Minute)
	if said := b.said(); len(said) != 1 {
		t.Errorf("the next time: said %q", said)
	}
	if outOfService(b.node("n1")) {
		t.Error("tainted")
	}
}

func TestTaintOfOthersIsNeverTouched(t *testing.T) {
	b := newBench(t)
	n := b.node("n1")
	n.Spec.Taints = []corev1.Taint{{Key: corev1.TaintNodeOutOfService, Value: taintValue, Effect: corev1.TaintEffectNoExecute}}
	n.Annotations = map[string]string{AnnotationTaintedSince: b.now.Format(time.RFC3339)} // left by an earlier one of ours
	if err := b.api.Update(t.Context(), n); err != nil {
		t.Fatal(err)
	}
	v := &v1alpha1.CacheVolume{ObjectMeta: metav1.ObjectMeta{Name: "v"}}
	if err := b.api.Delete(t.Context(), v); err != nil {
		t.Fatal(err)
	}
	b.poll(5 * time.Minute)
	if !outOfService(b.node("n1")) {
		t.Error("removed")
	}
}
