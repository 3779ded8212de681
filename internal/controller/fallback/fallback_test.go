package fallback

import (
	"context"
	"errors"
	"log/slog"
	"maps"
	"slices"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/tools/events"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"

	"github.com/escache/escache-csi/api/v1alpha1"
)

const patience = time.Minute

// world is two groups, a (a1, a2) and b (b1, b2), a node c1 of no group, and a volume of a.
type world struct {
	t      *testing.T
	api    client.Client
	watch  *Watch
	events *events.FakeRecorder
	now    time.Time
	fail   error
}

func newWorld(t *testing.T) *world {
	scheme := runtime.NewScheme()
	for _, add := range []func(*runtime.Scheme) error{corev1.AddToScheme, v1alpha1.AddToScheme} {
		if err := add(scheme); err != nil {
			t.Fatal(err)
		}
	}
	w := &world{t: t, now: time.Unix(1e9, 0)}
	w.api = interceptor.NewClient(fake.NewClientBuilder().WithScheme(scheme).WithStatusSubresource(&v1alpha1.CacheVolume{}, &corev1.Node{}).Build(),
		interceptor.Funcs{List: func(ctx context.Context, c client.WithWatch, list client.ObjectList, o ...client.ListOption) error {
			if w.fail != nil {
				return w.fail
			}
			return c.List(ctx, list, o...)
		}})
	for group, nodes := range map[string][]string{"a": {"a1", "a2"}, "b": {"b1", "b2"}, "": {"c1"}} {
		for _, name := range nodes {
			n := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: name, Labels: map[string]string{"theirs": "stays"}}}
			n.Status.Conditions = []corev1.NodeCondition{{Type: corev1.NodeReady, Status: corev1.ConditionTrue}}
			w.create(n)
		}
		if group != "" {
			w.create(&v1alpha1.NodeGroup{ObjectMeta: metav1.ObjectMeta{Name: group}, Spec: v1alpha1.NodeGroupSpec{Nodes: nodes}})
		}
	}
	v := &v1alpha1.CacheVolume{ObjectMeta: metav1.ObjectMeta{Name: "v"}}
	v.Spec.Group, v.Spec.UncachedFallback = "a", true
	w.create(v)
	w.restart()
	return w
}

func (w *world) restart() {
	w.events = events.NewFakeRecorder(10)
	w.watch = New(Config{
		Client: w.api, Events: w.events, Log: slog.New(slog.DiscardHandler), Now: func() time.Time { return w.now }, Every: time.Second, Patience: patience,
	})
}

func (w *world) create(o client.Object) {
	w.t.Helper()
	if err := w.api.Create(context.Background(), o); err != nil {
		w.t.Fatal(err)
	}
}

func (w *world) node(name string, change func(*corev1.Node)) {
	w.t.Helper()
	n := &corev1.Node{}
	if err := w.api.Get(context.Background(), client.ObjectKey{Name: name}, n); err != nil {
		w.t.Fatal(err)
	}
	change(n)
	status := n.Status
	if err := w.api.Update(context.Background(), n); err != nil {
		w.t.Fatal(err)
	}
	n.Status = status
	if err := w.api.Status().Update(context.Background(), n); err != nil {
		w.t.Fatal(err)
	}
}

func cordon(on bool) func(*corev1.Node) { return func(n *corev1.Node) { n.Spec.Unschedulable = on } }

func (w *world) volume(change func(*v1alpha1.CacheVolume)) {
	w.t.Helper()
	v := &v1alpha1.CacheVolume{}
	if err := w.api.Get(context.Background(), client.ObjectKey{Name: "v"}, v); err != nil {
		w.t.Fatal(err)
	}
	change(v)
	status := v.Status
	if err := w.api.Update(context.Background(), v); err != nil {
		w.t.Fatal(err)
	}
	v.Status = status
	if err := w.api.Status().Update(context.Background(), v); err != nil {
		w.t.Fatal(err)
	}
}

// labelled polls after a time, and returns the nodes that volumes of a may be on then.
func (w *world) labelled(after time.Duration) []string {
	w.t.Helper()
	w.now = w.now.Add(after)
	if err := w.watch.Poll(context.Background()); err != nil {
		w.t.Fatal(err)
	}
	nodes := &corev1.NodeList{}
	if err := w.api.List(context.Background(), nodes); err != nil {
		w.t.Fatal(err)
	}
	var out []string
	for _, n := range nodes.Items {
		if n.Labels["theirs"] != "stays" {
			w.t.Errorf("%s has lost a label: %v", n.Name, n.Labels)
		}
		if n.Labels["a.uncached.escache.io/allowed"] == "true" {
			out = append(out, n.Name)
		}
	}
	return out
}

func (w *world) expect(when string, after time.Duration, want ...string) {
	w.t.Helper()
	if got := w.labelled(after); !slices.Equal(got, want) {
		w.t.Errorf("%s: labelled are %q, want %q", when, got, want)
	}
}

func TestPodsMayLeaveAGroupOnlyWhileNoneOfItsHostsTakesPods(t *testing.T) {
	w := newWorld(t)
	w.expect("both hosts take pods", 0)
	w.node("a1", cordon(true))
	w.expect("one takes pods", patience)
	w.expect("still", patience)
	w.node("a2", cordon(true))
	w.expect("none, just now", 0)
	w.expect("none, for a while", patience/2)
	w.expect("none, for long", patience/2, "b1", "b2")
	w.restart()
	w.expect("another leader", 0, "b1", "b2")
	w.node("a1", cordon(false))
	w.expect("one is back", 0)
	if len(w.events.Events) != 2 {
		t.Errorf("%d Events, want one that pods may leave and one that they may not", len(w.events.Events))
	}
	w.node("a1", cordon(true))
	w.expect("gone again: it waits again", 0)
}

func TestWhatKeepsPodsAway(t *testing.T) {
	for name, c := range map[string]struct {
		change func(*corev1.Node)
		leave  bool
	}{
		"not Ready":          {func(n *corev1.Node) { n.Status.Conditions[0].Status = corev1.ConditionUnknown }, true},
		"without conditions": {func(n *corev1.Node) { n.Status.Conditions = nil }, true},
		"out of service": {func(n *corev1.Node) {
			n.Spec.Taints = []corev1.Taint{{Key: corev1.TaintNodeOutOfService, Effect: corev1.TaintEffectNoExecute}}
		}, true},
		"somebody's own taint, which pods may tolerate": {func(n *corev1.Node) {
			n.Spec.Taints = []corev1.Taint{{Key: "storage", Effect: corev1.TaintEffectNoSchedule}}
		}, false},
		"only not preferred": {func(n *corev1.Node) {
			n.Spec.Taints = []corev1.Taint{{Key: "node.kubernetes.io/x", Effect: corev1.TaintEffectPreferNoSchedule}}
		}, false},
	} {
		w := newWorld(t)
		w.node("a1", cordon(true))
		w.node("a2", c.change)
		w.labelled(0)
		if got := len(w.labelled(patience)) > 0; got != c.leave {
			t.Errorf("%s: may leave: %v", name, got)
		}
	}
}

func TestOnlyVolumesThatAllowItOpenAGroup(t *testing.T) {
	w := newWorld(t)
	w.volume(func(v *v1alpha1.CacheVolume) { v.Spec.UncachedFallback = false })
	w.node("a1", cordon(true))
	w.node("a2", cordon(true))
	w.labelled(0)
	w.expect("none takes pods, and none may leave", patience)
}

// The kubelet checks the affinity of a PersistentVolume again when it is restarted.
func TestANodeKeepsTheLabelWhileItHasAVolumeOfTheGroup(t *testing.T) {
	w := newWorld(t)
	w.volume(func(v *v1alpha1.CacheVolume) {
		v.Status.AttachedNode, v.Status.Epoch, v.Status.Uncached = "b1", 3, &v1alpha1.UncachedAttachment{Epoch: 3, HostID: "id"}
	})
	w.expect("its group takes pods", patience, "b1")
	w.node("a1", cordon(true))
	w.node("a2", cordon(true))
	w.expect("its group has just closed", 0, "b1")
	w.expect("its group is closed for long", patience, "b1", "b2")
	w.node("a1", cordon(false))
	w.expect("its group takes pods again", 0, "b1")
	w.volume(func(v *v1alpha1.CacheVolume) { v.Spec.UncachedFallback = false })
	w.expect("it may not leave any more", patience, "b1")
	w.volume(func(v *v1alpha1.CacheVolume) { v.Status.AttachedNode, v.Status.Epoch = "b1", 4 })
	w.expect("it has it in another way", patience)
}

func TestAFailedLookIsABreak(t *testing.T) {
	w := newWorld(t)
	w.node("a1", cordon(true))
	w.node("a2", cordon(true))
	w.labelled(0)
	w.fail = errors.New("no answer")
	if err := w.watch.Poll(t.Context()); err == nil {
		t.Error("the failure is not told")
	}
	w.fail = nil
	w.expect("after a look that failed", patience)
	w.expect("and another wait", patience, "b1", "b2")
}

func TestLabelsOfGroupsThatAreGoneGo(t *testing.T) {
	w := newWorld(t)
	w.node("b1", func(n *corev1.Node) { maps.Copy(n.Labels, map[string]string{v1alpha1.UncachedKey("gone"): "true"}) })
	w.labelled(0)
	w.node("b1", func(n *corev1.Node) {
		if len(n.Labels) != 1 {
			t.Errorf("labels %v", n.Labels)
		}
	})
}
