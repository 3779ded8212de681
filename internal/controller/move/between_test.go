package move_test

import (
	"context"
	"testing"

	"google.golang.org/grpc/codes"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/escache/escache-csi/api/v1alpha1"
	"github.com/escache/escache-csi/internal/controller/volumes"
	"github.com/escache/escache-csi/test/csitest"
)

// begun begins the move to g2.
func (w *world) begun() {
	w.T.Helper()
	w.AskMove(moved, "g2")
	csitest.Must(w.T, w.Locked.BeginMove(w.T.Context(), moved,
		func(context.Context, *v1alpha1.CacheVolume, string) (volumes.KeptVolume, error) {
			return volumes.KeptVolume{}, nil
		}))
}

// TestAReplicaThatAMoveLeavesStaysOnTheList: its host was cordoned when the move left it. Until the new place is on record, the
// record still names the host.
func TestAReplicaThatAMoveLeavesStaysOnTheList(t *testing.T) {
	w := twoGroups(t)
	v := w.Volume(moved)
	left := v.Spec.Replicas[0]
	group := &v1alpha1.NodeGroup{}
	csitest.Must(t, w.API.Get(t.Context(), client.ObjectKey{Name: "g1"}, group))
	group.Spec.CordonedNodes = []string{left}
	csitest.Must(t, w.API.Update(t.Context(), group))
	w.PollBoth()
	w.begun()
	csitest.Must(t, w.Locked.ClearMove(t.Context(), moved))
	if !w.Host(left).Has(csitest.Ref(v)) {
		t.Fatal("the cordoned host was asked")
	}
	w.PollBoth()
	csitest.Must(t, w.Locked.PlaceMoved(t.Context(), moved))
	csitest.Must(t, w.Locked.EndMove(t.Context(), moved))
	w.PollBoth()
	if w.Host(left).Has(csitest.Ref(v)) {
		t.Error("the replica stays on its host, and is on no list")
	}
}

// TestAMoveThatIsOnRecordAgainGoesNoFurther: etcd was restored to the middle of a move, after which the volume was in use. Its
// image knows that.
func TestAMoveThatIsOnRecordAgainGoesNoFurther(t *testing.T) {
	for name, step := range map[string]func(w *world) error{
		"begun":   func(w *world) error { return w.Locked.ClearMove(w.T.Context(), moved) },
		"cleared": func(w *world) error { return w.Locked.PlaceMoved(w.T.Context(), moved) },
		"placed":  func(w *world) error { return w.Locked.EndMove(w.T.Context(), moved) },
	} {
		t.Run(name, func(t *testing.T) {
			w := twoGroups(t)
			w.begun()
			if name != "begun" {
				csitest.Must(t, w.Locked.ClearMove(t.Context(), moved))
			}
			if name == "placed" {
				csitest.Must(t, w.Locked.PlaceMoved(t.Context(), moved))
			}
			before := w.Volume(moved)
			image := volumes.ImageOf(before)
			note := w.Images.Notes[image]
			note.Epoch++
			w.Images.Notes[image] = note
			if err := step(w); volumes.Code(err) != codes.FailedPrecondition {
				t.Errorf("it goes on: %v", err)
			}
			now := w.Volume(moved)
			if w.Images.Notes[image].Epoch != note.Epoch || now.Spec.Group != before.Spec.Group || now.Status.Move == nil ||
				now.Status.Move.Cleared != before.Status.Move.Cleared {
				t.Errorf("it was changed: %+v, %+v, note %+v", now.Spec, now.Status, w.Images.Notes[image])
			}
		})
	}
}
