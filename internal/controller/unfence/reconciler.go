// Package unfence lifts the fences of Ceph clients: it takes them off the blocklist. They were fenced
// when a volume was taken from a node by force. Until then it keeps them there.
//
// A client stays fenced until its map is known to be gone: lifting the fence earlier would revive a
// writer while another node has the volume. If the old host opens the image late with another
// client, that one is fenced as well.
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

// Volumes fences and unfences; *volumes.Locked.
type Volumes interface {
	FenceLate(ctx context.Context, volume string) error
	Unfence(ctx context.Context, volume string) (left int, err error)
}

// Config holds what a Reconciler needs.
type Config struct {
	Volumes Volumes
	Log     *slog.Logger
	// Again is the time to the next try while fences are left; Longest bounds one try.
	Again   time.Duration
	Longest time.Duration
}

// Reconciler lifts the fences of volumes. It is safe for concurrent use.
type Reconciler struct{ Config }

// New returns a reconciler.
func New(config Config) *Reconciler { return &Reconciler{config} }

// SetupWithManager makes the manager call Reconcile for every CacheVolume with fenced clients,
// while this process leads.
func (r *Reconciler) SetupWithManager(m ctrl.Manager) error {
	return ctrl.NewControllerManagedBy(m).Named("unfence").
		For(&v1alpha1.CacheVolume{}).
		WithEventFilter(predicate.NewPredicateFuncs(func(o client.Object) bool {
			v, ok := o.(*v1alpha1.CacheVolume)
			return ok && len(v.Status.Fenced) > 0
		})).
		Complete(r)
}

// Reconcile lifts the fences that can be lifted now. If a host does not answer or the volume is
// busy, it tries again later.
func (r *Reconciler) Reconcile(ctx context.Context, request ctrl.Request) (ctrl.Result, error) {
	ctx, cancel := context.WithTimeout(ctx, r.Longest)
	defer cancel()
	late := r.Volumes.FenceLate(ctx, request.Name)
	left, err := r.Volumes.Unfence(ctx, request.Name)
	if errors.Is(err, volumes.ErrNotFound) {
		return ctrl.Result{}, nil
	}
	if err = errors.Join(late, err); err != nil {
		r.Log.DebugContext(ctx, "could not lift fences yet", "volume", request.Name, "error", err)
	}
	if err != nil || left > 0 {
		return ctrl.Result{RequeueAfter: r.Again}, nil
	}
	return ctrl.Result{}, nil
}
