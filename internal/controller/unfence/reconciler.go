// Package unfence lifts fences: a client that was shut out of Ceph by a forced hand-over leaves the blocklist once its map is known to
// be gone. Until then the entry stays, for lifting it would revive a writer whose volume has another holder; and another client that
// its host makes late is fenced as well.
package unfence

import (
	"context"
	"errors"
	"log/slog"
	"time"

	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/predicate"

	"github.com/escache/escache-csi/api/v1alpha1"
	"github.com/escache/escache-csi/internal/controller/volumes"
)

// Volumes is what fences and lifts; *volumes.Locked.
type Volumes interface {
	FenceLate(ctx context.Context, volume string) error
	Unfence(ctx context.Context, volume string) (left int, err error)
}

// Config is what a Reconciler is made of.
type Config struct {
	Volumes Volumes
	Log     *slog.Logger
	// Again is how long after a look the next one begins while fences are left; Longest bounds one look.
	Again   time.Duration
	Longest time.Duration
}

// Reconciler looks after volumes with fenced clients. It is safe for concurrent use.
type Reconciler struct{ Config }

// New returns a reconciler.
func New(config Config) *Reconciler { return &Reconciler{config} }

// SetupWithManager has the manager call Reconcile for every CacheVolume with fenced clients, while this process leads.
func (r *Reconciler) SetupWithManager(m ctrl.Manager) error {
	return ctrl.NewControllerManagedBy(m).Named("unfence").
		For(&v1alpha1.CacheVolume{}).
		WithEventFilter(predicate.NewPredicateFuncs(func(o client.Object) bool {
			v, ok := o.(*v1alpha1.CacheVolume)
			return ok && len(v.Status.Fenced) > 0
		})).
		Complete(r)
}

// Reconcile lifts what can be lifted now. A host that does not answer, or a volume that is busy, is looked at again later.
func (r *Reconciler) Reconcile(ctx context.Context, request ctrl.Request) (ctrl.Result, error) {
	ctx, cancel := context.WithTimeout(ctx, r.Longest)
	defer cancel()
	late := r.Volumes.FenceLate(ctx, request.Name)
	left, err := r.Volumes.Unfence(ctx, request.Name)
	if errors.Is(err, volumes.ErrNotFound) {
		return ctrl.Result{}, nil
	}
	if err = errors.Join(late, err); err != nil {
		r.Log.DebugContext(ctx, "fences are not lifted yet", "volume", request.Name, "error", err)
	}
	if err != nil || left > 0 {
		return ctrl.Result{RequeueAfter: r.Again}, nil
	}
	return ctrl.Result{}, nil
}
