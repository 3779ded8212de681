package move_test

import (
	"context"
	"errors"
	"testing"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"

	"github.com/escache/escache-csi/api/v1alpha1"
	"github.com/escache/escache-csi/test/csitest"
)

// TestAMoveThatMayBeOnRecordKeepsItsPlace: the API server does not answer the write, or answers it with a refusal.
func TestAMoveThatMayBeOnRecordKeepsItsPlace(t *testing.T) {
	begin := func(t *testing.T, write func(put func() error) error) *world {
		t.Helper()
		w := twoGroups(t)
		w.AskMove(moved, "g2")
		api, tried := w.API.(client.WithWatch), false
		w.Cached = interceptor.NewClient(api, interceptor.Funcs{
			SubResourceUpdate: func(
				ctx context.Context, c client.Client, name string, o client.Object, options ...client.SubResourceUpdateOption,
			) error {
				put := func() error { return c.SubResource(name).Update(ctx, o, options...) }
				if v, is := o.(*v1alpha1.CacheVolume); is && v.Status.Move != nil && !tried {
					tried = true
					return write(put)
				}
				return put()
			},
		})
		w.Restart()
		w.PollBoth()
		w.turn()
		if !tried {
			t.Fatal("nobody tried to record the move")
		}
		return w
	}
	t.Run("written, and the answer is lost", func(t *testing.T) {
		w := begin(t, func(put func() error) error {
			csitest.Must(t, put())
			return context.DeadlineExceeded
		})
		m := w.Volume(moved).Status.Move
		r, err := w.Book.Reserve("pvc-2", 1<<20, "", []string{"g2"})
		csitest.Must(t, err)
		if r.Port == m.Port || r.Minor == m.Minor {
			t.Errorf("port %d and minor %d are given twice", r.Port, r.Minor)
		}
	})
	t.Run("refused", func(t *testing.T) {
		w := begin(t, func(func() error) error {
			return apierrors.NewConflict(schema.GroupResource{Resource: "cachevolumes"}, moved, errors.New("changed"))
		})
		if w.usage("g2") != 0 {
			t.Error("its place stays taken")
		}
	})
}
