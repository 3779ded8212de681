package move_test

import (
	"context"
	"errors"
	"slices"
	"strings"
	"testing"

	"google.golang.org/grpc/codes"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"

	"github.com/escache/escache-csi/api/escache"
	"github.com/escache/escache-csi/api/v1alpha1"
	"github.com/escache/escache-csi/test/csitest"
)

// TestAMoveGoesOnAfterACrash has csi-controller die before each of its writes.
func TestAMoveGoesOnAfterACrash(t *testing.T) {
	for writes := 0; ; writes++ {
		w := twoGroups(t)
		w.AskMove(moved, "g2")
		died := w.dieAfter(writes)
		for range 5 {
			if !w.turn() {
				break
			}
		}
		w.betweenTwo(writes)
		w.Cached = w.API
		w.Restart()
		w.PollBoth()
		if w.Volume(moved).Status.Move != nil {
			g := &v1alpha1.NodeGroup{}
			csitest.Must(t, w.API.Get(t.Context(), client.ObjectKey{Name: "g2"}, g))
			if !slices.Contains(g.Finalizers, v1alpha1.GroupFinalizer) || w.usage("g2") != 1 {
				t.Errorf("group g2 can go, or has lost its place: %v, %d volumes", g.Finalizers, w.usage("g2"))
			}
		}
		for range 6 {
			if !w.turn() {
				break
			}
		}
		w.isIn("g2")
		if t.Failed() {
			t.Fatalf("after %d writes", writes)
		}
		if !*died {
			if writes < 10 {
				t.Errorf("it makes only %d writes", writes)
			}
			return
		}
	}
}

// betweenTwo looks at what a crash has left.
func (w *world) betweenTwo(writes int) {
	w.T.Helper()
	v, pv := w.Volume(moved), w.pv()
	if pv == nil && (v.Status.Move == nil || v.Status.Move.PersistentVolume == "") {
		w.T.Fatalf("after %d writes nobody knows the PersistentVolume", writes)
	}
	if pv != nil && pv.UID != "first" && v.Status.Move != nil && v.Spec.Group == "g1" &&
		pv.Spec.PersistentVolumeReclaimPolicy != corev1.PersistentVolumeReclaimRetain {
		w.T.Errorf("after %d writes the new PersistentVolume could have the volume deleted", writes)
	}
	if pv != nil && !pv.DeletionTimestamp.IsZero() && pv.Spec.PersistentVolumeReclaimPolicy != corev1.PersistentVolumeReclaimRetain {
		w.T.Errorf("after %d writes the old PersistentVolume could have the volume deleted", writes)
	}
	if v.Status.Move == nil {
		return
	}
	for _, node := range []string{"n1", "n4"} {
		_, err := w.Publish(moved, node)
		csitest.Wants(w.T, err, codes.Aborted, "is moving to group g2")
	}
	csitest.Wants(w.T, w.Delete(moved), codes.Aborted, "is moving to group g2")
}

// dieAfter is mortal for a world with two groups.
func (w *world) dieAfter(writes int) (died *bool) {
	died = w.Mortal(writes)
	w.PollBoth()
	return died
}

// TestAChangeOfThePersistentVolumeIsNotLost: the resizer writes the new size while the move is under way.
func TestAChangeOfThePersistentVolumeIsNotLost(t *testing.T) {
	w := twoGroups(t)
	w.AskMove(moved, "g2")
	w.dieAfter(3) // the finalizer of the group, the record of the move, and that the replicas are removed
	w.turn()
	pv := w.pv()
	if w.Volume(moved).Status.Move == nil || pv == nil || pv.UID != "first" {
		t.Fatalf("not where it should be: %+v", w.Volume(moved).Status)
	}
	pv.Labels["later"] = "yes"
	csitest.Must(t, w.API.Update(t.Context(), pv))
	w.Cached = w.API
	w.Restart()
	w.PollBoth()
	for range 6 {
		if !w.turn() {
			break
		}
	}
	if w.pv().Labels["later"] != "yes" {
		t.Errorf("PersistentVolume %+v", w.pv())
	}
	w.isIn("g2")
}

// TestAMoveEndsWhenTheClaimIsBoundAgain: Kubernetes has seen that the PersistentVolume was gone.
func TestAMoveEndsWhenTheClaimIsBoundAgain(t *testing.T) {
	w := twoGroups(t)
	w.claimIs(corev1.ClaimLost)
	w.AskMove(moved, "g2")
	for range 5 {
		if !w.turn() {
			t.Fatal("it has ended before the claim was bound")
		}
	}
	if c := w.moving(); c.Status != metav1.ConditionTrue || !strings.Contains(c.Message, "claim shop/data is not bound") ||
		w.pv().Spec.PersistentVolumeReclaimPolicy != corev1.PersistentVolumeReclaimRetain {
		t.Errorf("it says %s: %s; the reclaim policy is %s", c.Status, c.Message, w.pv().Spec.PersistentVolumeReclaimPolicy)
	}
	w.claimIs(corev1.ClaimBound)
	w.turn()
	w.isIn("g2")
}

// TestAPersistentVolumeIsLeftIfItCannotBeMadeAnew: somebody, such as an admission webhook, does not allow it.
func TestAPersistentVolumeIsLeftIfItCannotBeMadeAnew(t *testing.T) {
	w := twoGroups(t)
	base, ok := w.API.(client.WithWatch)
	if !ok {
		t.Fatal("not a client that watches")
	}
	w.Cached = interceptor.NewClient(base, interceptor.Funcs{
		Create: func(ctx context.Context, c client.WithWatch, o client.Object, opts ...client.CreateOption) error {
			if _, is := o.(*corev1.PersistentVolume); is {
				return apierrors.NewForbidden(corev1.Resource("persistentvolumes"), o.GetName(), errors.New("a webhook says no"))
			}
			return c.Create(ctx, o, opts...)
		},
	})
	w.AskMove(moved, "g2")
	before := w.pv()
	w.turn()
	if c := w.moving(); c.Reason != v1alpha1.ReasonMoveRefused || !strings.Contains(c.Message, "a webhook says no") ||
		w.pv().ResourceVersion != before.ResourceVersion || w.Volume(moved).Status.Move != nil {
		t.Errorf("it says %s: %s; PersistentVolume %+v", c.Reason, c.Message, w.pv())
	}
}

// TestAMoveIsCalledOffIfACopyIsDirtyAfterAll: the record was set back to one of the same epoch. Nothing dirty
// is removed.
func TestAMoveIsCalledOffIfACopyIsDirtyAfterAll(t *testing.T) {
	w := twoGroups(t)
	w.AskMove(moved, "g2")
	w.dieAfter(2)
	w.turn()
	v := w.Volume(moved)
	if m := v.Status.Move; m == nil || m.Cleared {
		t.Fatalf("not where it should be: %+v", m)
	}
	csitest.Wants(t, w.Locked.PlaceMoved(t.Context(), moved), codes.FailedPrecondition, "has not left its replicas")
	w.Cached = w.API
	w.Restart()
	w.PollBoth()
	for _, node := range v.Spec.Replicas {
		csitest.Must(t, w.Host(node).Lay(escache.ReplicaRequest{VolumeRef: csitest.Ref(v), SizeBytes: csitest.GiB, CacheBytes: 64 << 20,
			Port: 7800, Minor: 100, Epoch: 1}))
		w.Host(node).Write(csitest.Ref(v), csitest.DirtyBytes)
	}
	w.turn()
	now := w.Volume(moved)
	if now.Status.Move != nil || now.Spec.Group != "g1" || w.pv().UID != "first" || w.usage("g2") != 0 ||
		!meta.IsStatusConditionTrue(now.Status.Conditions, v1alpha1.ConditionRecordBehindDisks) {
		t.Errorf("%+v, %+v", now.Spec, now.Status)
	}
	w.turn()
	if c := w.moving(); c.Reason != v1alpha1.ReasonMoveRefused || !strings.Contains(c.Message, "restore-etcd") ||
		w.Volume(moved).Status.Move != nil {
		t.Errorf("it says %s: %s", c.Reason, c.Message)
	}
	for _, node := range v.Spec.Replicas {
		if !w.Holds(node, v) {
			t.Errorf("what was dirty on %s is gone", node)
		}
	}
}

// TestAMoveIsCalledOffBeforeItHasLeft: somebody takes the request back while the controller is down.
func TestAMoveIsCalledOffBeforeItHasLeft(t *testing.T) {
	w := twoGroups(t)
	w.AskMove(moved, "g2")
	w.dieAfter(2)
	w.turn()
	if m := w.Volume(moved).Status.Move; m == nil || m.Cleared {
		t.Fatalf("not where it should be: %+v", m)
	}
	w.AskMove(moved, "")
	w.Cached = w.API
	w.Restart()
	w.PollBoth()
	w.turn()
	w.isIn("g1")
}
