package comparison

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"testing"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	ctrl "sigs.k8s.io/controller-runtime"

	"github.com/escache/escache-csi/api/v1alpha1"
	"github.com/escache/escache-csi/internal/controller/volumes"
)

type compare func(ctx context.Context, volume string) error

func (c compare) Compare(ctx context.Context, volume string) error { return c(ctx, volume) }

func TestANodeIsAnsweredSoonerOrLater(t *testing.T) {
	conflict := apierrors.NewConflict(schema.GroupResource{Resource: "cachevolumes"}, "v", errors.New("changed"))
	for name, tc := range map[string]struct {
		err  error
		want time.Duration
	}{
		"answered":                     {nil, 0},
		"the volume is gone":           {fmt.Errorf("volume v: %w", volumes.ErrNotFound), 0},
		"another operation runs":       {fmt.Errorf("publish: %w", volumes.ErrBusy), time.Millisecond},
		"the record has changed":       {fmt.Errorf("record: %w", conflict), time.Millisecond},
		"Ceph does not answer":         {fmt.Errorf("read the metadata: %w", volumes.ErrUnavailable), time.Second},
		"Ceph does not answer in time": {context.DeadlineExceeded, time.Second},
	} {
		t.Run(name, func(t *testing.T) {
			r := New(Config{
				Volumes: compare(func(ctx context.Context, volume string) error {
					if _, bounded := ctx.Deadline(); !bounded || volume != "v" {
						t.Errorf("asked for %q, bounded: %v", volume, bounded)
					}
					return tc.err
				}),
				Log: slog.New(slog.DiscardHandler), Soon: time.Millisecond, Again: time.Second, Longest: time.Minute,
			})
			result, err := r.Reconcile(t.Context(), ctrl.Request{NamespacedName: types.NamespacedName{Name: "v"}})
			if err != nil || result.RequeueAfter != tc.want {
				t.Errorf("%+v, %v", result, err)
			}
		})
	}
}

func TestOnlyQuestionsWithoutAnAnswerConcernIt(t *testing.T) {
	for name, tc := range map[string]struct {
		on   *v1alpha1.RecordComparison
		want bool
	}{
		"none":                       {nil, false},
		"asked":                      {&v1alpha1.RecordComparison{Question: "q"}, true},
		"asked again":                {&v1alpha1.RecordComparison{Question: "q", Answered: "p"}, true},
		"answered":                   {&v1alpha1.RecordComparison{Question: "q", Answered: "q"}, false},
		"answered: it may not do so": {&v1alpha1.RecordComparison{Question: "q", Answered: "q", Behind: "epoch 2"}, false},
	} {
		v := &v1alpha1.CacheVolume{}
		v.Status.Comparison = tc.on
		if got := asks(v); got != tc.want {
			t.Errorf("%s: %v", name, got)
		}
	}
	if asks(&v1alpha1.NodeGroup{}) {
		t.Error("a group asks")
	}
}
