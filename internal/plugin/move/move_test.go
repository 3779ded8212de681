package move

import (
	"bytes"
	"context"
	"errors"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/escache/escache-csi/api/v1alpha1"
	"github.com/escache/escache-csi/internal/plugin/failure"
	"github.com/escache/escache-csi/internal/plugin/plugintest"
	"github.com/escache/escache-csi/internal/records/remedy"
	"github.com/escache/escache-csi/internal/records/trouble"
)

// controller plays csi-controller until the test ends. It moves volumes that no node has, and refuses or
// leaves what the test says. It returns how many were under way at once at most.
func controller(t *testing.T, api client.Client, refused ...string) (most *atomic.Int32) {
	t.Helper()
	most = &atomic.Int32{}
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		for ctx.Err() == nil {
			all := &v1alpha1.CacheVolumeList{}
			_ = api.List(ctx, all)
			asked := slices.DeleteFunc(all.Items, func(v v1alpha1.CacheVolume) bool { return v.Spec.MoveTo == nil })
			free := slices.DeleteFunc(slices.Clone(asked), func(v v1alpha1.CacheVolume) bool { return v.Status.AttachedNode != "" })
			most.Store(max(most.Load(), int32(len(free))))
			for i := range asked {
				carryOut(ctx, api, &asked[i], slices.Contains(refused, asked[i].Name))
			}
			time.Sleep(50 * time.Millisecond)
		}
	}()
	t.Cleanup(func() { cancel(); <-ended })
	return most
}

func carryOut(ctx context.Context, api client.Client, v *v1alpha1.CacheVolume, refused bool) {
	condition := metav1.Condition{Type: v1alpha1.ConditionMoving, Status: metav1.ConditionFalse, ObservedGeneration: v.Generation}
	switch {
	case v.Status.AttachedNode != "":
		condition.Reason, condition.Message = v1alpha1.ReasonMoveAttached, "detached first"
	case refused:
		condition.Reason, condition.Message = v1alpha1.ReasonMoveRefused, "somebody keeps it"
	default:
		g := &v1alpha1.NodeGroup{}
		_ = api.Get(ctx, client.ObjectKey{Name: v.Spec.MoveTo.Group}, g)
		first := int(v.Name[len(v.Name)-1]) % len(g.Spec.Nodes)
		v.Spec.Replicas = []string{g.Spec.Nodes[first], g.Spec.Nodes[(first+1)%len(g.Spec.Nodes)]}
		v.Spec.Group, v.Spec.MoveTo = g.Name, nil
		_ = api.Update(ctx, v)
		return
	}
	meta.SetStatusCondition(&v.Status.Conditions, condition)
	_ = api.Update(ctx, v)
}

// planned is what rebalance prints. It prints its plan first, when it has looked at all volumes.
type planned struct {
	bytes.Buffer

	once sync.Once
	then func()
}

func (p *planned) Write(text []byte) (int, error) {
	p.once.Do(p.then)
	return p.Buffer.Write(text)
}

func applied(t *testing.T, api client.Client, f rebalanceFlags) (string, error) {
	t.Helper()
	return appliedThen(t, api, f, func() {})
}

// appliedThen calls then when the plan is made, and nothing has been asked for yet.
func appliedThen(t *testing.T, api client.Client, f rebalanceFlags, then func()) (string, error) {
	t.Helper()
	out := &planned{then: then}
	c := plugintest.Console(out, time.Now)
	f.apply = true
	if f.parallel == 0 {
		f.parallel = 2
	}
	if f.timeout == 0 {
		f.timeout = time.Minute
	}
	err := runRebalance(t.Context(), c, api, f)
	return strings.Join(strings.Fields(out.String()), " "), err
}

func volumesIn(t *testing.T, api client.Client, group string) (n int) {
	t.Helper()
	all := &v1alpha1.CacheVolumeList{}
	plugintest.Must(t, api.List(t.Context(), all))
	for i := range all.Items {
		if v := &all.Items[i]; strings.HasPrefix(v.Name, "v") && v.Spec.Group == group {
			n++
		}
	}
	return n
}

func attach(t *testing.T, api client.Client, name string) {
	t.Helper()
	v := &v1alpha1.CacheVolume{}
	plugintest.Must(t, api.Get(t.Context(), client.ObjectKey{Name: name}, v))
	v.Status.AttachedNode, v.Status.Epoch, v.Status.Authority = v.Spec.Replicas[0], 1, v1alpha1.AuthorityCache
	plugintest.Must(t, api.Update(t.Context(), v))
}

func TestRebalanceMovesSomeAtATime(t *testing.T) {
	api := filledGroups(t, 9)
	most := controller(t, api)
	text, err := applied(t, api, rebalanceFlags{parallel: 4})
	plugintest.Must(t, err)
	plugintest.Says(t, text, "from group old to fresh", "in group fresh", "6 moved")
	if n := volumesIn(t, api, "fresh"); n != 6 || most.Load() > 4 {
		t.Errorf("%d volumes are in the new group, %d moved at once", n, most.Load())
	}
}

// TestAGroupIsEmptied: one volume is attached, and waits; one cannot move.
func TestAGroupIsEmptied(t *testing.T) {
	api := filledGroups(t, 4)
	attach(t, api, "v1")
	_, err := applied(t, api, rebalanceFlags{empty: "old"})
	if err == nil || !strings.Contains(err.Error(), "kubectl escache cordon old") || volumesIn(t, api, "old") != 4 {
		t.Fatalf("it was emptied although new volumes come: %v", err)
	}
	g := &v1alpha1.NodeGroup{}
	plugintest.Must(t, api.Get(t.Context(), client.ObjectKey{Name: "old"}, g))
	g.Spec.Cordoned = true
	plugintest.Must(t, api.Update(t.Context(), g))
	controller(t, api, "v2")
	text, err := applied(t, api, rebalanceFlags{empty: "old"})
	if err == nil || !strings.Contains(err.Error(), "not moved: v2") {
		t.Errorf("got %v", err)
	}
	plugintest.Says(t, text, "v2: refused, and nothing was changed: somebody keeps it", "These move when they are detached: v1")
	v := &v1alpha1.CacheVolume{}
	plugintest.Must(t, api.Get(t.Context(), client.ObjectKey{Name: "v2"}, v))
	if v.Spec.MoveTo != nil || volumesIn(t, api, "old") != 2 {
		t.Errorf("%d volumes are left, v2 has %+v", volumesIn(t, api, "old"), v.Spec.MoveTo)
	}
}

// TestARebalanceGoesOnWhereItWas: it was interrupted.
func TestARebalanceGoesOnWhereItWas(t *testing.T) {
	api := filledGroups(t, 9)
	_, err := applied(t, api, rebalanceFlags{timeout: 100 * time.Millisecond})
	if !errors.Is(err, failure.ErrTimeUp) || !strings.Contains(err.Error(), "0 moved, 2 under way, 4 not asked for yet") {
		t.Fatalf("got %v", err)
	}
	// Before that it could end the two moves that are under way, and the plan would not have them.
	text, err := appliedThen(t, api, rebalanceFlags{}, func() { controller(t, api) })
	plugintest.Must(t, err)
	plugintest.Says(t, text, "6 moved")
	if n := volumesIn(t, api, "fresh"); n != 6 {
		t.Errorf("%d volumes are in the new group:\n%s", n, text)
	}
}

func moveTo(t *testing.T, api client.Client, name string, f moveFlags) (string, error) {
	t.Helper()
	var out bytes.Buffer
	c := plugintest.Console(&out, time.Now)
	err := runMove(t.Context(), c, api, name, f)
	return out.String(), err
}

func TestMoveAsksForOneVolume(t *testing.T) {
	pv := &corev1.PersistentVolume{ObjectMeta: metav1.ObjectMeta{Name: "tied"}}
	pv.Spec.CSI = &corev1.CSIPersistentVolumeSource{Driver: v1alpha1.DriverName, VolumeHandle: "v1"}
	pv.Spec.StorageClassName = "old-only"
	class := &storagev1.StorageClass{ObjectMeta: metav1.ObjectMeta{Name: "old-only"}, Parameters: map[string]string{"nodeGroups": "old"}}
	api := filledGroups(t, 3, pv, class)
	for _, tc := range []struct{ volume, group, says string }{
		{"zz", "fresh", "no CacheVolume zz"}, {"v0", "zz", "no NodeGroup zz"},
	} {
		if _, err := moveTo(t, api, tc.volume, moveFlags{group: tc.group}); err == nil || !strings.Contains(err.Error(), tc.says) {
			t.Errorf("%+v: got %v", tc, err)
		}
	}
	text, err := moveTo(t, api, "v0", moveFlags{group: "old"})
	plugintest.Must(t, err)
	plugintest.Says(t, text, "is in group old already")
	text, err = moveTo(t, api, "v1", moveFlags{group: "fresh"})
	plugintest.Must(t, err)
	plugintest.Says(t, text, "StorageClass old-only places volumes in these groups only: old", "goes to group fresh when it is detached")
	v := &v1alpha1.CacheVolume{}
	plugintest.Must(t, api.Get(t.Context(), client.ObjectKey{Name: "v1"}, v))
	if v.Spec.MoveTo == nil || v.Spec.MoveTo.Group != "fresh" {
		t.Fatalf("not asked for: %+v", v.Spec)
	}
	plugintest.Says(t, trouble.Move(v), "it is to go to group fresh: csi-controller has not begun")
	if all := trouble.OfVolume(v, nil, remedy.Escached{}, time.Now()); len(all) != 1 || !strings.Contains(all[0].What, "to go to group fresh") ||
		!strings.Contains(all[0].Todo, "goes on by itself") {
		t.Errorf("status says %+v", all)
	}
	text, err = moveTo(t, api, "v1", moveFlags{cancel: true})
	plugintest.Must(t, err)
	plugintest.Says(t, text, "stays in group old")
	if _, err = moveTo(t, api, "v1", moveFlags{cancel: true}); err == nil {
		t.Error("what nobody has asked for was called off")
	}
	controller(t, api)
	text, err = moveTo(t, api, "v2", moveFlags{group: "fresh", wait: true, timeout: time.Minute})
	plugintest.Must(t, err)
	plugintest.Says(t, text, "v2: from group old to fresh", "v2: in group fresh")
}

// TestAnOldRefusalDoesNotCount: what the move was refused for is over, and csi-controller has not looked since.
func TestAnOldRefusalDoesNotCount(t *testing.T) {
	api := filledGroups(t, 1)
	v := &v1alpha1.CacheVolume{}
	plugintest.Must(t, api.Get(t.Context(), client.ObjectKey{Name: "v0"}, v))
	v.Spec.MoveTo = &v1alpha1.MoveTarget{Group: "fresh"}
	plugintest.Must(t, api.Update(t.Context(), v))
	carryOut(t.Context(), api, v, true)
	go func() {
		time.Sleep(1500 * time.Millisecond)
		_ = api.Get(context.WithoutCancel(t.Context()), client.ObjectKey{Name: "v0"}, v)
		carryOut(context.WithoutCancel(t.Context()), api, v, false)
	}()
	text, err := moveTo(t, api, "v0", moveFlags{group: "fresh", wait: true, timeout: time.Minute})
	plugintest.Must(t, err)
	plugintest.Says(t, text, "v0: in group fresh")
}

// TestOnlyTheOwnRequestIsWithdrawn: a refused one that was there before may be somebody else's.
func TestOnlyTheOwnRequestIsWithdrawn(t *testing.T) {
	for before, says := range map[bool]string{true: "refused, and the request stays, which was there before", false: "refused, and nothing was changed"} {
		api := filledGroups(t, 1)
		if before {
			_, err := moveTo(t, api, "v0", moveFlags{group: "fresh"})
			plugintest.Must(t, err)
		}
		controller(t, api, "v0")
		var out bytes.Buffer
		begin := time.Now()
		fast := plugintest.Console(&out, func() time.Time { return begin.Add(20 * time.Since(begin)) })
		err := runMove(t.Context(), fast, api, "v0", moveFlags{group: "fresh", wait: true, timeout: time.Minute})
		if err == nil || !strings.Contains(err.Error(), "not moved: v0") {
			t.Errorf("before %t: %v", before, err)
		}
		plugintest.Says(t, out.String(), says)
		v := &v1alpha1.CacheVolume{}
		plugintest.Must(t, api.Get(t.Context(), client.ObjectKey{Name: "v0"}, v))
		if (v.Spec.MoveTo != nil) != before {
			t.Errorf("before %t: %+v", before, v.Spec.MoveTo)
		}
	}
}

func TestAVolumeThatIsDeletedHasNotMoved(t *testing.T) {
	api := filledGroups(t, 1)
	attach(t, api, "v0")
	go func() {
		v := &v1alpha1.CacheVolume{}
		for v.Spec.MoveTo == nil && t.Context().Err() == nil {
			time.Sleep(50 * time.Millisecond)
			_ = api.Get(t.Context(), client.ObjectKey{Name: "v0"}, v)
		}
		_ = api.Delete(t.Context(), v)
	}()
	text, err := moveTo(t, api, "v0", moveFlags{group: "fresh", wait: true, timeout: time.Minute})
	if err == nil || !strings.Contains(err.Error(), "was deleted") {
		t.Errorf("%v\n%s", err, text)
	}
}

// TestAMoveWaitsForTheDetachment, and for no other reason is it called off.
func TestAMoveWaitsForTheDetachment(t *testing.T) {
	api := filledGroups(t, 1)
	attach(t, api, "v0")
	controller(t, api)
	text, err := moveTo(t, api, "v0", moveFlags{group: "fresh", wait: true, timeout: 3 * time.Second})
	if !errors.Is(err, failure.ErrTimeUp) {
		t.Errorf("got %v", err)
	}
	plugintest.Says(t, text, "v0: detached first")
	v := &v1alpha1.CacheVolume{}
	plugintest.Must(t, api.Get(t.Context(), client.ObjectKey{Name: "v0"}, v))
	if v.Spec.MoveTo == nil {
		t.Error("the request was taken back")
	}
}

func TestAMoveThatHasBegunIsNotCalledOff(t *testing.T) {
	api := filledGroups(t, 1)
	v := &v1alpha1.CacheVolume{}
	plugintest.Must(t, api.Get(t.Context(), client.ObjectKey{Name: "v0"}, v))
	v.Spec.MoveTo = &v1alpha1.MoveTarget{Group: "fresh"}
	v.Status.Move = &v1alpha1.VolumeMove{Group: "fresh", Replicas: []string{"f1", "f2"}}
	plugintest.Must(t, api.Update(t.Context(), v))
	if _, err := moveTo(t, api, "v0", moveFlags{cancel: true}); !errors.Is(err, errMoveBegun) {
		t.Errorf("got %v", err)
	}
	if _, err := moveTo(t, api, "v0", moveFlags{group: "old"}); !errors.Is(err, errMoving) {
		t.Errorf("got %v", err)
	}
	plugintest.Says(t, trouble.NextStep(v), "on its way to group fresh")
}
