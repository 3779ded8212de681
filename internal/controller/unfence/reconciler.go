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
	"sigs.k8s.io/controller-runtime/pkg/controller"
	"sigs.k8s.io/controller-runtime/pkg/predicate"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	"github.com/escache/escache-csi/api/v1alpha1"
	"github.com/escache/escache-csi/internal/authority"
	"github.com/escache/escache-csi/internal/controller/volumes"
)

// Volumes fences and unfences; *volumes.Locked.
type Volumes interface {
	FenceLate(ctx context.Context, volume string) error
	Unfence(ctx context.Context, volume string) (left int, err error)
}

// Config holds what a Reconciler needs.
type Config struct {
	Client  client.Reader // reads from a cache
	Volumes Volumes
	Log     *slog.Logger
	// Again is the time to the next try while fences are left; Longest bounds one try.
	Again   time.Duration
	Longest time.Duration
	// Parallel is how many volumes are looked at at once, for late clients and to lift fences.
	Parallel int
}

// Reconciler fences late clients and lifts the fences of volumes. It is safe for concurrent use.
type Reconciler struct{ Config }

// New returns a reconciler.
func New(config Config) *Reconciler { return &Reconciler{config} }

// SetupWithManager makes the manager call FenceLate and Reconcile for every CacheVolume with fenced
// clients, while this process leads. Each is a controller of its own: Reconcile waits for hosts that
// do not answer.
func (r *Reconciler) SetupWithManager(m ctrl.Manager) error {
	for name, do := range map[string]reconcile.Reconciler{"unfence": r, "fence-late": reconcile.Func(r.FenceLate)} {
		err := ctrl.NewControllerManagedBy(m).Named(name).
			For(&v1alpha1.CacheVolume{}).
			WithEventFilter(predicate.NewPredicateFuncs(func(o client.Object) bool {
				v, ok := o.(*v1alpha1.CacheVolume)
				return ok && len(v.Status.Fenced) > 0
			})).
			WithOptions(controller.Options{MaxConcurrentReconciles: r.Parallel}).
			Complete(do)
		if err != nil {
			return err
		}
	}
	return nil
}

// FenceLate looks for late clients as long as there may be some. It asks no host.
func (r *Reconciler) FenceLate(ctx context.Context, request ctrl.Request) (ctrl.Result, error) {
	ctx, cancel := context.WithTimeout(ctx, r.Longest)
	defer cancel()
	v := &v1alpha1.CacheVolume{}
	if err := r.Client.Get(ctx, request.NamespacedName, v); err != nil {
		return ctrl.Result{}, client.IgnoreNotFound(err)
	}
	if !authority.MayBeLate(v) {
		return ctrl.Result{}, nil // a change of the record is reported
	}
	if err := r.Volumes.FenceLate(ctx, v.Name); err != nil {
		r.Log.DebugContext(ctx, "could not look for late clients", "volume", v.Name, "error", err)
	}
	return ctrl.Result{RequeueAfter: r.Again}, nil
}

// Reconcile lifts the fences that can be lifted now. If a host does not answer or the volume is
// busy, it tries again later.
func (r *Reconciler) Reconcile(ctx context.Context, request ctrl.Request) (ctrl.Result, error) {
	ctx, cancel := context.WithTimeout(ctx, r.Longest)
	defer cancel()
	left, err := r.Volumes.Unfence(ctx, request.Name)
	if errors.Is(err, volumes.ErrNotFound) {
		return ctrl.Result{}, nil
	}
	if err != nil {
		r.Log.DebugContext(ctx, "could not lift fences yet", "volume", request.Name, "error", err)
	}
	if err != nil || left > 0 {
		return ctrl.Result{RequeueAfter: r.Again}, nil
	}
	return ctrl.Result{}, nil
}
