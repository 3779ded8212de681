// Package modification takes a change of a volume's mode and options to the node that has the volume.
// ControllerModifyVolume has recorded the change; the next attachment begins with it anyway.
package modification

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"time"

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/tools/events"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/controller"
	"sigs.k8s.io/controller-runtime/pkg/predicate"

	"github.com/escache/escache-csi/api/v1alpha1"
	"github.com/escache/escache-csi/internal/controller/drain"
	"github.com/escache/escache-csi/internal/operation"
)

// Drainer changes running caches; *drain.Drainer.
type Drainer interface {
	Apply(ctx context.Context, volume string) error
}

// Config holds what a Reconciler needs.
type Config struct {
	Client  client.Client // writes
	Live    client.Reader
	Drainer Drainer
	Events  events.EventRecorder
	Log     *slog.Logger
	// Again is the time from a failed try to the next; Longest bounds one try.
	Again   time.Duration
	Longest time.Duration
	// Parallel is how many volumes are changed at once.
	Parallel int
}

// Reconciler applies changes. It is safe for concurrent use.
type Reconciler struct{ Config }

// New returns a reconciler.
func New(config Config) *Reconciler { return &Reconciler{config} }

// SetupWithManager makes the manager call Reconcile for every CacheVolume with a change that its node
// may not have, while this process leads.
func (r *Reconciler) SetupWithManager(m ctrl.Manager) error {
	return ctrl.NewControllerManagedBy(m).Named("modification").
		For(&v1alpha1.CacheVolume{}).
		WithEventFilter(predicate.NewPredicateFuncs(func(o client.Object) bool {
			v, ok := o.(*v1alpha1.CacheVolume)
			return ok && v.ModificationPending()
		})).
		WithOptions(controller.Options{MaxConcurrentReconciles: r.Parallel}).
		Complete(r)
}

// Reconcile applies the change of one volume. If that is not possible now it records why, and tries
// again later.
func (r *Reconciler) Reconcile(ctx context.Context, request ctrl.Request) (ctrl.Result, error) {
	ctx, cancel := context.WithTimeout(ctx, r.Longest)
	defer cancel()
	failure := r.Drainer.Apply(ctx, request.Name)
	if failure == nil {
		return ctrl.Result{}, nil
	}
	// A volume in use by another operation, or about to be there, is the usual course.
	if !errors.Is(failure, operation.ErrBusy) && !errors.Is(failure, drain.ErrAttaching) {
		if err := r.report(ctx, request, failure); err != nil {
			r.Log.DebugContext(ctx, "could not record why a volume is not changed yet", "volume", request.Name, "error", err)
		}
	}
	return ctrl.Result{RequeueAfter: r.Again}, nil
}

// report records once why a change has not reached its node. The text stays as it is until the change
// has, or another one is made: a write for each try would cost more than it tells.
func (r *Reconciler) report(ctx context.Context, request ctrl.Request, failure error) error {
	v := &v1alpha1.CacheVolume{}
	if err := r.Live.Get(ctx, request.NamespacedName, v); err != nil || !v.ModificationPending() {
		return client.IgnoreNotFound(err)
	}
	known := meta.FindStatusCondition(v.Status.Conditions, v1alpha1.ConditionModified)
	if known != nil && known.Status == metav1.ConditionFalse && known.ObservedGeneration == v.Generation {
		return nil
	}
	r.Log.WarnContext(ctx, "a change of a volume has not reached its node; trying again", "volume", v.Name,
		"node", v.Status.AttachedNode, "error", failure)
	meta.SetStatusCondition(&v.Status.Conditions, metav1.Condition{
		Type: v1alpha1.ConditionModified, Status: metav1.ConditionFalse, Reason: v1alpha1.ReasonModificationPending,
		Message:            fmt.Sprintf("node %s does not have the newest mode and options yet: %v", v.Status.AttachedNode, failure),
		ObservedGeneration: v.Generation,
	})
	return r.Client.Status().Update(ctx, v)
}
