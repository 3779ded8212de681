// Package release gives up volumes whose spec.release asks for it. The image stays in Ceph, complete;
// the replicas and the record are removed.
package release

import (
	"context"
	"errors"
	"log/slog"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/client-go/tools/events"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/predicate"

	"github.com/escache/escache-csi/api/v1alpha1"
	"github.com/escache/escache-csi/internal/authority"
	"github.com/escache/escache-csi/internal/controller/volumes"
)

// Volumes releases volumes; *volumes.Locked.
type Volumes interface {
	Release(ctx context.Context, volume string) error
	ReportRelease(ctx context.Context, volume, reason, message string) error
}

// Config holds what a Reconciler needs.
type Config struct {
	Live    client.Reader
	Volumes Volumes
	Events  events.EventRecorder
	Log     *slog.Logger
	// Again is the time from a failed try to the next; Longest bounds one try.
	Again   time.Duration
	Longest time.Duration
}

// Reconciler releases volumes. It is safe for concurrent use.
type Reconciler struct{ Config }

// New returns a reconciler.
func New(config Config) *Reconciler { return &Reconciler{config} }

// SetupWithManager makes the manager call Reconcile for every CacheVolume that is to be released, or
// no longer is, while this process leads.
func (r *Reconciler) SetupWithManager(m ctrl.Manager) error {
	return ctrl.NewControllerManagedBy(m).Named("release").
		For(&v1alpha1.CacheVolume{}).
		WithEventFilter(predicate.And(predicate.GenerationChangedPredicate{}, predicate.NewPredicateFuncs(concerns))).
		Complete(r)
}

func concerns(o client.Object) bool {
	v, ok := o.(*v1alpha1.CacheVolume)
	return ok && (v.BeingReleased() || meta.FindStatusCondition(v.Status.Conditions, v1alpha1.ConditionReleased) != nil)
}

// Reconcile releases one volume, or records why not yet, and tries again later.
func (r *Reconciler) Reconcile(ctx context.Context, request ctrl.Request) (ctrl.Result, error) {
	ctx, cancel := context.WithTimeout(ctx, r.Longest)
	defer cancel()
	v := &v1alpha1.CacheVolume{}
	if err := r.Live.Get(ctx, request.NamespacedName, v); err != nil || !concerns(v) {
		return ctrl.Result{}, client.IgnoreNotFound(err)
	}
	failure := r.Volumes.Release(ctx, v.Name)
	switch {
	case errors.Is(failure, volumes.ErrNotFound):
		return ctrl.Result{}, nil
	case failure == nil && v.BeingReleased():
		r.Events.Eventf(v, nil, corev1.EventTypeNormal, "Released", "Release",
			"image %s is left, complete, in pool %s", v.Spec.Image, v.Spec.Pool)
		return ctrl.Result{}, nil
	}
	reason, message := v1alpha1.ReasonReleasePending, ""
	if failure != nil {
		message = failure.Error()
	}
	if v.Status.Phase != v1alpha1.VolumeReleasing && (errors.Is(failure, volumes.ErrRefused) || errors.Is(failure, authority.ErrRefused)) {
		reason = v1alpha1.ReasonReleaseRefused
	}
	err := r.Volumes.ReportRelease(ctx, v.Name, reason, message)
	if errors.Is(err, volumes.ErrNotFound) {
		return ctrl.Result{}, nil
	}
	if err != nil {
		r.Log.DebugContext(ctx, "could not record why a volume is not released yet", "volume", v.Name, "error", err)
	}
	if failure == nil && err == nil {
		return ctrl.Result{}, nil // nobody wants it released any more
	}
	return ctrl.Result{RequeueAfter: r.Again}, nil
}
