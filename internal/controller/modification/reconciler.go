// Package modification takes a change of a volume's mode and options to the node that has the volume, and
// tells what a change of its cache's size waits for. ControllerModifyVolume has recorded the change; the
// next attachment begins with it anyway.
package modification

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"time"

	corev1 "k8s.io/api/core/v1"
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
			return ok && (v.ModificationPending() || outlived(v))
		})).
		WithOptions(controller.Options{MaxConcurrentReconciles: r.Parallel}).
		Complete(r)
}

// Reconcile applies the change of one volume. If that is not possible now it records why, and tries
// again later. What the host refuses is not tried again.
func (r *Reconciler) Reconcile(ctx context.Context, request ctrl.Request) (ctrl.Result, error) {
	ctx, cancel := context.WithTimeout(ctx, r.Longest)
	defer cancel()
	failure := r.Drainer.Apply(ctx, request.Name)
	v := &v1alpha1.CacheVolume{}
	if err := r.Live.Get(ctx, request.NamespacedName, v); err != nil {
		return ctrl.Result{}, client.IgnoreNotFound(err)
	}
	var err error
	switch {
	case failure == nil:
		err = r.forget(ctx, v)
	case errors.Is(failure, operation.ErrBusy), errors.Is(failure, drain.ErrAttaching): // the usual course
		return ctrl.Result{RequeueAfter: r.Again}, nil
	default:
		err = r.report(ctx, v, failure)
	}
	if err != nil {
		r.Log.DebugContext(ctx, "could not record what became of a change of a volume", "volume", v.Name, "error", err)
	}
	if err != nil || failure != nil && v.ModificationPending() {
		return ctrl.Result{RequeueAfter: r.Again}, nil
	}
	return ctrl.Result{}, nil
}

// report tells once why a change has not reached its node. The text stays as it is until the change
// has, or another one is made: a write for each try would cost more than it tells. A refusal is on
// record already.
func (r *Reconciler) report(ctx context.Context, v *v1alpha1.CacheVolume, failure error) error {
	known := meta.FindStatusCondition(v.Status.Conditions, v1alpha1.ConditionModified)
	switch {
	case errors.Is(failure, drain.ErrRefused) && v.ModificationRefused() && known != nil:
		r.Log.WarnContext(ctx, "a volume's host refuses a change", "volume", v.Name, "node", v.Status.AttachedNode, "error", failure)
		r.Events.Eventf(v, nil, corev1.EventTypeWarning, "ModificationRefused", "Modify", "%s", known.Message)
		return nil
	case !v.ModificationPending(), pending(known) && known.ObservedGeneration == v.Generation:
		return nil
	}
	message := fmt.Sprintf("node %s does not have the newest mode and options yet: %v", v.Status.AttachedNode, failure)
	meta.SetStatusCondition(&v.Status.Conditions, metav1.Condition{
		Type: v1alpha1.ConditionModified, Status: metav1.ConditionFalse, Reason: v1alpha1.ReasonModificationPending,
		Message: message, ObservedGeneration: v.Generation,
	})
	if err := r.Client.Status().Update(ctx, v); err != nil {
		return err
	}
	r.Log.WarnContext(ctx, "a change of a volume has not reached its node; trying again", "volume", v.Name,
		"node", v.Status.AttachedNode, "error", failure)
	r.Events.Eventf(v, nil, corev1.EventTypeWarning, "ModificationPending", "Modify", "%s", message)
	return nil
}

// forget removes the report of a failure that the next attachment does not have.
func (r *Reconciler) forget(ctx context.Context, v *v1alpha1.CacheVolume) error {
	if !outlived(v) {
		return nil
	}
	meta.RemoveStatusCondition(&v.Status.Conditions, v1alpha1.ConditionModified)
	return r.Client.Status().Update(ctx, v)
}

// outlived reports whether a failure is on record of a volume that no node has any more. Values that
// were refused will be refused again, so that stays.
func outlived(v *v1alpha1.CacheVolume) bool {
	known := meta.FindStatusCondition(v.Status.Conditions, v1alpha1.ConditionModified)
	failed := known != nil && known.Status == metav1.ConditionFalse
	return v.Status.AttachedNode == "" && failed && (pending(known) || !v.ModificationRefused())
}

func pending(c *metav1.Condition) bool {
	return c != nil && c.Status == metav1.ConditionFalse && c.Reason == v1alpha1.ReasonModificationPending
}
