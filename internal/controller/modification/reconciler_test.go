package modification

import (
	"context"
	"log/slog"
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

	"github.com/escache/escache-csi/api/escache"
	"github.com/escache/escache-csi/api/v1alpha1"
	"github.com/escache/escache-csi/internal/cachevolume"
	"github.com/escache/escache-csi/internal/controller/drain"
	"github.com/escache/escache-csi/internal/controller/hosts"
	"github.com/escache/escache-csi/internal/operation"
	"github.com/escache/escache-csi/test/hosttest"
)

// world is a reconciler with one volume, v, whose replicas are on the played hosts n1 and n2.
type world struct {
	t       *testing.T
	api     client.Client
	fleet   *hosttest.Fleet
	locks   *operation.Locks
	drainer *drain.Drainer
	r       *Reconciler
	events  *events.FakeRecorder
	// lost makes writes of a status fail.
	lost error
}

var tuned = v1alpha1.CacheOptions{HighWatermark: 60, LowWatermark: 40, MaxDirtyAgeSeconds: 30}

func newWorld(t *testing.T) *world {
	t.Helper()
	scheme := runtime.NewScheme()
	must(t, corev1.AddToScheme(scheme))
	must(t, v1alpha1.AddToScheme(scheme))
	w := &world{t: t, fleet: hosttest.Start(t, 1<<40, "n1", "n2"), locks: operation.NewLocks(time.Now)}
	w.api = fake.NewClientBuilder().WithScheme(scheme).WithStatusSubresource(&v1alpha1.CacheVolume{}).
		WithInterceptorFuncs(interceptor.Funcs{
			SubResourceUpdate: func(ctx context.Context, c client.Client, sub string, o client.Object, opts ...client.SubResourceUpdateOption) error {
				if w.lost != nil {
					return w.lost
				}
				return c.SubResource(sub).Update(ctx, o, opts...)
			},
		}).
		WithObjects(w.fleet.Node("n1"), w.fleet.Node("n2")).Build()
	log := slog.New(slog.NewTextHandler(t.Output(), nil))
	h := hosts.New(w.api, w.api, hosts.Options{Port: w.fleet.Port, RepeatAfter: time.Millisecond, Log: log})
	w.drainer = drain.New(drain.Config{Client: w.api, Live: w.api, Hosts: h, Locks: w.locks, Now: time.Now})
	w.events = events.NewFakeRecorder(10)
	w.r = New(Config{Client: w.api, Live: w.api, Drainer: w.drainer, Events: w.events, Log: log, Again: time.Second, Longest: time.Minute, Parallel: 1})
	v := &v1alpha1.CacheVolume{ObjectMeta: metav1.ObjectMeta{Name: "v"}, Spec: v1alpha1.CacheVolumeSpec{
		ClusterID: "c", Pool: "rbd", Image: "v", SizeBytes: 1 << 30, CacheBytes: 1 << 30, Group: "g1", Replicas: []string{"n1", "n2"},
		CacheMode: v1alpha1.CacheModeWriteback,
	}}
	must(t, w.api.Create(t.Context(), v))
	w.attach(3)
	for _, node := range v.Spec.Replicas {
		must(t, w.fleet.Hosts[node].Lay(escache.ReplicaRequest{
			VolumeRef: cachevolume.Ref(v), SizeBytes: 1 << 30, CacheBytes: 1 << 30, Port: 7800, Minor: 100,
		}))
	}
	w.stage(3)
	return w
}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

func (w *world) volume() *v1alpha1.CacheVolume {
	w.t.Helper()
	v := &v1alpha1.CacheVolume{}
	must(w.t, w.api.Get(w.t.Context(), client.ObjectKey{Name: "v"}, v))
	return v
}

func (w *world) status(change func(*v1alpha1.CacheVolumeStatus)) {
	w.t.Helper()
	v := w.volume()
	change(&v.Status)
	must(w.t, w.api.Status().Update(w.t.Context(), v))
}

// attach records that n1 has the volume.
func (w *world) attach(epoch int64) {
	w.t.Helper()
	w.status(func(s *v1alpha1.CacheVolumeStatus) {
		s.Phase, s.Authority, s.AttachedNode, s.Epoch = v1alpha1.VolumeReady, v1alpha1.AuthorityCache, "n1", epoch
	})
}

// stage connects the volume on n1, in write-back.
func (w *world) stage(epoch int64) {
	w.n1().Stage(w.ref(), "127.0.0.1:0/1", epoch, escache.ModeWriteback)
}

func (w *world) n1() *hosttest.Host     { return w.fleet.Hosts["n1"] }
func (w *world) ref() escache.VolumeRef { return cachevolume.Ref(w.volume()) }

// modify records a change as ControllerModifyVolume does.
func (w *world) modify(mode v1alpha1.CacheMode, o v1alpha1.CacheOptions) {
	w.t.Helper()
	v := w.volume()
	v.Spec.CacheMode, v.Spec.CacheOptions = mode, o
	v.Spec.Modifications++
	v.Generation++
	must(w.t, w.api.Update(w.t.Context(), v))
}

func (w *world) reconcile() (again bool) {
	w.t.Helper()
	result, err := w.r.Reconcile(w.t.Context(), ctrl.Request{NamespacedName: client.ObjectKey{Name: "v"}})
	must(w.t, err)
	return result.RequeueAfter > 0
}

// told fails unless the only new Event says this; empty: unless there is none.
func (w *world) told(says string) {
	w.t.Helper()
	var got []string
	for len(w.events.Events) > 0 {
		got = append(got, <-w.events.Events)
	}
	if says == "" && len(got) == 0 || len(got) == 1 && says != "" && strings.Contains(got[0], says) {
		return
	}
	w.t.Errorf("Events %q, not one with %q", got, says)
}

// has fails unless n1's cache works so, and the record says that it has the newest change.
func (w *world) has(mode escache.Mode, o escache.CacheOptions) {
	w.t.Helper()
	v := w.volume()
	condition := meta.FindStatusCondition(v.Status.Conditions, v1alpha1.ConditionModified)
	if v.ModificationPending() || condition == nil || condition.Status != metav1.ConditionTrue {
		w.t.Errorf("on record is %+v, %+v", v.Status.Applied, condition)
	}
	if status := w.n1().Status(w.ref()); status.Mode != mode || w.n1().Options(w.ref()) != o {
		w.t.Errorf("the cache is in %s with %+v, not %s with %+v", status.Mode, w.n1().Options(w.ref()), mode, o)
	}
}

var onHost = escache.CacheOptions{HighWatermark: 60, LowWatermark: 40, MaxDirtyAgeSeconds: 30}

func TestAChangeReachesTheNodeThatHasTheVolume(t *testing.T) {
	w := newWorld(t)
	for _, step := range []struct {
		mode v1alpha1.CacheMode
		o    v1alpha1.CacheOptions
		want escache.CacheOptions
	}{
		{v1alpha1.CacheModeWriteback, tuned, onHost},
		{v1alpha1.CacheModeWritethrough, tuned, onHost},
		{v1alpha1.CacheModeWriteback, v1alpha1.CacheOptions{}, escache.CacheOptions{}},
	} {
		w.modify(step.mode, step.o)
		for range 2 { // the second time nothing is left to do
			if w.reconcile() {
				t.Errorf("%+v: to be tried again", step)
			}
		}
		w.has(escache.Mode(step.mode), step.want)
		if authority := w.volume().Status.Authority; authority != v1alpha1.AuthorityCache {
			t.Errorf("authority %s", authority)
		}
	}
}

func TestEachAttachmentConfirmsTheChange(t *testing.T) {
	w := newWorld(t)
	w.modify(v1alpha1.CacheModeWriteback, tuned)
	w.reconcile()
	w.attach(4) // the device is still the one of attachment 3
	if !w.volume().ModificationPending() || !w.reconcile() {
		t.Error("what attachment 3 has counts for 4")
	}
	if c := meta.FindStatusCondition(w.volume().Status.Conditions, v1alpha1.ConditionModified); c.Status != metav1.ConditionTrue {
		t.Errorf("an attachment that has just begun is a failure: %+v", c)
	}
	w.stage(4)
	if w.reconcile() {
		t.Error("not applied")
	}
	w.has(escache.ModeWriteback, onHost)
}

func TestAVolumeThatWritesThroughOnRequestStaysSo(t *testing.T) {
	w := newWorld(t)
	const owner = "cacheflush/f"
	_, err := w.drainer.Turn(t.Context(), "v", owner)
	must(t, err)
	drained, _, err := w.drainer.Settle(t.Context(), "v")
	if err != nil || !drained {
		t.Fatal(drained, err)
	}
	w.modify(v1alpha1.CacheModeWriteback, tuned)
	if w.reconcile() {
		t.Error("not applied")
	}
	w.has(escache.ModeWritethrough, onHost)
	must(t, w.drainer.Restore(t.Context(), "v", owner))
	w.has(escache.ModeWriteback, onHost)

	// The volume's own mode becomes write-through meanwhile: Restore leaves it.
	_, err = w.drainer.Turn(t.Context(), "v", owner)
	must(t, err)
	w.modify(v1alpha1.CacheModeWritethrough, tuned)
	w.reconcile()
	must(t, w.drainer.Restore(t.Context(), "v", owner))
	w.has(escache.ModeWritethrough, onHost)
}

func TestAVolumeThatARequestDidNotTurnGetsItsOwnMode(t *testing.T) {
	w := newWorld(t)
	const owner = "cacheflush/f"
	// csi-controller was killed after the request was on record, and before the mode changed.
	w.status(func(s *v1alpha1.CacheVolumeStatus) {
		s.WriteThrough = []v1alpha1.WriteThroughClaim{{Owner: owner, Epoch: s.Epoch}}
	})
	w.modify(v1alpha1.CacheModeWritethrough, tuned)
	w.reconcile()
	must(t, w.drainer.Restore(t.Context(), "v", owner))
	w.has(escache.ModeWritethrough, onHost)
}

func TestNothingIsAskedOfANodeThatShallNotHaveTheChange(t *testing.T) {
	for name, tc := range map[string]struct {
		is    func(*v1alpha1.CacheVolumeStatus)
		again bool
	}{
		"no node has the volume":         {func(s *v1alpha1.CacheVolumeStatus) { s.AttachedNode = "" }, false},
		"it is written back by itself":   {func(s *v1alpha1.CacheVolumeStatus) { s.FlushEpoch = s.Epoch }, true},
		"its attachment is not complete": {func(s *v1alpha1.CacheVolumeStatus) { s.Authority = v1alpha1.AuthorityCeph }, true},
	} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t)
			w.status(tc.is)
			w.modify(v1alpha1.CacheModeWritethrough, tuned)
			if again := w.reconcile(); again != tc.again {
				t.Errorf("tried again: %v", again)
			}
			if s := w.n1().Status(w.ref()); s.Mode != escache.ModeWriteback || w.n1().Options(w.ref()) != (escache.CacheOptions{}) {
				t.Errorf("the cache is in %s with %+v", s.Mode, w.n1().Options(w.ref()))
			}
			if c := meta.FindStatusCondition(w.volume().Status.Conditions, v1alpha1.ConditionModified); c != nil {
				t.Errorf("on record is %+v", c)
			}
		})
	}
}

func TestAVolumeThatIsGoneOrBusyIsNoFailure(t *testing.T) {
	w := newWorld(t)
	w.modify(v1alpha1.CacheModeWriteback, tuned)
	done, err := w.locks.Begin("v", "ControllerExpandVolume")
	must(t, err)
	if !w.reconcile() || len(w.volume().Status.Conditions) > 0 {
		t.Errorf("conditions %+v", w.volume().Status.Conditions)
	}
	done()
	must(t, w.api.Delete(t.Context(), w.volume()))
	if w.reconcile() {
		t.Error("a volume that is gone is tried again")
	}
}
