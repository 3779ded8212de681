package modification

import (
	"context"
	"log/slog"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/client-go/tools/events"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/controller"
	"sigs.k8s.io/controller-runtime/pkg/predicate"

	"github.com/escache/escache-csi/api/v1alpha1"
)

// Volumes records what a change of a cache's size waits for; *volumes.Locked.
type Volumes interface {
	ReportResize(ctx context.Context, volume string) (v *v1alpha1.CacheVolume, waits bool, err error)
}

// ResizeConfig holds what a ResizeReporter needs.
type ResizeConfig struct {
	Volumes Volumes
	Events  events.EventRecorder
	Log     *slog.Logger
	// Again is the time from a failed try to the next; Longest bounds one try.
	Again   time.Duration
	Longest time.Duration
	// Parallel is how many volumes are looked at once.
	Parallel int
}

// ResizeReporter tells people what a change of a cache's size waits for, by a condition and an Event. It
// changes no cache: an attachment does. It is safe for concurrent use.
type ResizeReporter struct{ ResizeConfig }

// NewResizeReporter returns a ResizeReporter.
func NewResizeReporter(config ResizeConfig) *ResizeReporter { return &ResizeReporter{config} }

// SetupWithManager makes the manager call Reconcile for every CacheVolume whose cache is to get another
// size, or was, while this process leads. Each change of such a volume counts, because its attachment does.
func (r *ResizeReporter) SetupWithManager(m ctrl.Manager) error {
	return ctrl.NewControllerManagedBy(m).Named("resize").
		For(&v1alpha1.CacheVolume{}).
		WithEventFilter(predicate.NewPredicateFuncs(resizes)).
		WithOptions(controller.Options{MaxConcurrentReconciles: r.Parallel}).
		Complete(r)
}

func resizes(o client.Object) bool {
	v, ok := o.(*v1alpha1.CacheVolume)
	return ok && (v.Spec.CacheToResize() || meta.FindStatusCondition(v.Status.Conditions, v1alpha1.ConditionCacheResized) != nil)
}

// Reconcile records and tells what the change waits for. If it cannot, because something else is being
// done to the volume, it tries again later.
func (r *ResizeReporter) Reconcile(ctx context.Context, request ctrl.Request) (ctrl.Result, error) {
	ctx, cancel := context.WithTimeout(ctx, r.Longest)
	defer cancel()
	v, waits, err := r.Volumes.ReportResize(ctx, request.Name)
	if err != nil {
		r.Log.DebugContext(ctx, "could not record what the size of a cache waits for", "volume", request.Name, "error", err)
		return ctrl.Result{RequeueAfter: r.Again}, nil
	}
	if waits {
		c := meta.FindStatusCondition(v.Status.Conditions, v1alpha1.ConditionCacheResized)
		r.Events.Eventf(v, nil, corev1.EventTypeNormal, "CacheResizeWaits", "Resize", "%s", c.Message)
	}
	return ctrl.Result{}, nil
}
