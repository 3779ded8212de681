// Package move moves volumes whose spec.moveTo asks for another group. No data is copied: a volume
// moves while no node has it and all its data is in Ceph, and the next attachment creates empty replicas in
// the new group.
//
// A move goes through these steps. Each can be repeated, also by another leader, from the record
// (status.move), and nothing can have the volume in between.
//
//  1. Begin: the cache is written back. A place in the new group is taken, beside the one in the former
//     group; old replicas on its hosts are removed. status.move is written, if the record has not changed
//     since it was read.
//  2. Clear: the replicas in the former group are removed, or are on its list of stale ones. Until here the
//     move can be cancelled.
//  3. Exchange: the PersistentVolume is re-created, because its node affinity names the group. See exchange.
//  4. Place: group, replicas and numbers change on record, in one write.
//  5. Restore and end: the PersistentVolume gets its reclaim policy back, and status.move goes.
//
// A pod that gets a node of the former group between the last look and the end of step 3 cannot start. The
// error of its attachment says so.
package move

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
	"sigs.k8s.io/controller-runtime/pkg/controller"
	"sigs.k8s.io/controller-runtime/pkg/predicate"

	"github.com/escache/escache-csi/api/v1alpha1"
	"github.com/escache/escache-csi/internal/authority"
	"github.com/escache/escache-csi/internal/controller/volumes"
)

// Volumes makes the steps of a move on the record and on the hosts; *volumes.Locked.
type Volumes interface {
	BeginMove(ctx context.Context, volume string, movable volumes.Movable) error
	ClearMove(ctx context.Context, volume string) error
	KeepVolume(ctx context.Context, volume string, kept volumes.KeptVolume) error
	PlaceMoved(ctx context.Context, volume string) error
	EndMove(ctx context.Context, volume string) error
	ReportMove(ctx context.Context, volume, reason, message string) error
}

// Config holds what a Reconciler needs.
type Config struct {
	Client  client.Client // reads PersistentVolumes from a cache
	Live    client.Reader
	Volumes Volumes
	Events  events.EventRecorder
	Log     *slog.Logger
	// Again is the time from a failed try to the next, Soon that while Kubernetes has something to do
	// first, and Seldom that while a node has the volume. Longest bounds one try.
	Again   time.Duration
	Soon    time.Duration
	Seldom  time.Duration
	Longest time.Duration
	// Parallel is how many volumes are moved at once.
	Parallel int
}

// Reconciler moves volumes. It is safe for concurrent use.
type Reconciler struct{ Config }

// New returns a reconciler.
func New(config Config) *Reconciler { return &Reconciler{config} }

// SetupWithManager makes the manager call Reconcile for every CacheVolume that is to be moved, or no longer
// is, while this process leads. Each change of such a volume counts, because its detachment does.
func (r *Reconciler) SetupWithManager(m ctrl.Manager) error {
	return ctrl.NewControllerManagedBy(m).Named("move").
		For(&v1alpha1.CacheVolume{}).
		WithEventFilter(predicate.NewPredicateFuncs(concerns)).
		WithOptions(controller.Options{MaxConcurrentReconciles: r.Parallel}).
		Complete(r)
}

func concerns(o client.Object) bool {
	v, ok := o.(*v1alpha1.CacheVolume)
	return ok && (v.ToMove() || meta.FindStatusCondition(v.Status.Conditions, v1alpha1.ConditionMoving) != nil)
}

// Reconcile moves one volume, or records why not yet, and tries again later.
func (r *Reconciler) Reconcile(ctx context.Context, request ctrl.Request) (ctrl.Result, error) {
	ctx, cancel := context.WithTimeout(ctx, r.Longest)
	defer cancel()
	v := &v1alpha1.CacheVolume{}
	if err := r.Live.Get(ctx, request.NamespacedName, v); err != nil || !concerns(v) {
		return ctrl.Result{}, client.IgnoreNotFound(err)
	}
	from := v.Spec.Group
	moved, failure := r.move(ctx, v.Name)
	if errors.Is(failure, volumes.ErrNotFound) {
		return ctrl.Result{}, nil
	}
	if moved != nil && failure == nil {
		r.Log.InfoContext(ctx, "moved", "volume", v.Name, "from", from, "to", moved.Spec.Group, "replicas", moved.Spec.Replicas)
		r.Events.Eventf(v, nil, corev1.EventTypeNormal, "Moved", "Move",
			"it is in group %s now; its next attachment creates its replicas there", moved.Spec.Group)
		return ctrl.Result{}, nil
	}
	message := ""
	if failure != nil {
		message = failure.Error()
	}
	err := r.Volumes.ReportMove(ctx, v.Name, reasonFor(failure), message)
	if err != nil {
		r.Log.DebugContext(ctx, "could not record why a volume is not moved yet", "volume", v.Name, "error", err)
	}
	switch {
	case errors.Is(failure, errNotYet):
		return ctrl.Result{RequeueAfter: r.Soon}, nil
	case failure == nil && err == nil:
		return ctrl.Result{}, nil // nobody wants it moved any more
	case errors.Is(failure, authority.ErrAttached) && v.Status.AttachedNode != "":
		return ctrl.Result{RequeueAfter: r.Seldom}, nil // its detachment is a change, for which the manager calls again
	default:
		return ctrl.Result{RequeueAfter: r.Again}, nil
	}
}

// reasonFor is the condition's reason while a move has not begun.
func reasonFor(failure error) string {
	switch {
	case errors.Is(failure, authority.ErrAttached):
		return v1alpha1.ReasonMoveAttached
	case errors.Is(failure, volumes.ErrRefused), errors.Is(failure, authority.ErrRefused):
		return v1alpha1.ReasonMoveRefused
	default:
		return v1alpha1.ReasonMoveWaiting
	}
}

// move makes all steps that are left. It returns the volume if it was moved, nil if there is nothing to do.
func (r *Reconciler) move(ctx context.Context, id string) (*v1alpha1.CacheVolume, error) {
	if err := r.Volumes.BeginMove(ctx, id, r.movable); err != nil {
		return nil, err
	}
	if err := r.Volumes.ClearMove(ctx, id); err != nil {
		return nil, err
	}
	v := &v1alpha1.CacheVolume{}
	if err := r.Live.Get(ctx, client.ObjectKey{Name: id}, v); err != nil || v.Status.Move == nil {
		return nil, client.IgnoreNotFound(err)
	}
	if v.Spec.Group != v.Status.Move.Group {
		if err := r.exchange(ctx, v); err != nil {
			return nil, err
		}
		if err := r.Volumes.PlaceMoved(ctx, id); err != nil {
			return nil, err
		}
	}
	if err := r.restore(ctx, v); err != nil {
		return nil, err
	}
	if err := r.Volumes.EndMove(ctx, id); err != nil {
		return nil, err
	}
	err := r.Live.Get(ctx, client.ObjectKey{Name: id}, v)
	return v, client.IgnoreNotFound(err)
}
