// Package comparison answers the nodes that are about to connect a volume: is the record as new as the
// image's metadata? A restore of etcd may have set it back, and only csi-controller can read the metadata.
package comparison

import (
	"context"
	"errors"
	"log/slog"
	"time"

	"google.golang.org/grpc/codes"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/controller"
	"sigs.k8s.io/controller-runtime/pkg/predicate"

	"github.com/escache/escache-csi/api/v1alpha1"
	"github.com/escache/escache-csi/internal/controller/volumes"
)

// Volumes compares records; *volumes.Locked.
type Volumes interface {
	Compare(ctx context.Context, volume string) error
}

// Config holds what a Reconciler needs.
type Config struct {
	Volumes Volumes
	Log     *slog.Logger
	// Soon is the time to the next try where another operation has the volume, or has changed its record.
	// Again is that time where Ceph does not answer. Longest bounds one try.
	Soon, Again, Longest time.Duration
	// Parallel is how many volumes are compared at once.
	Parallel int
}

// Reconciler answers. It is safe for concurrent use.
type Reconciler struct{ Config }

// New returns a reconciler.
func New(config Config) *Reconciler { return &Reconciler{config} }

// SetupWithManager makes the manager call Reconcile for every CacheVolume whose node waits for an answer,
// while this process leads.
func (r *Reconciler) SetupWithManager(m ctrl.Manager) error {
	return ctrl.NewControllerManagedBy(m).Named("comparison").
		For(&v1alpha1.CacheVolume{}).
		WithEventFilter(predicate.NewPredicateFuncs(asks)).
		WithOptions(controller.Options{MaxConcurrentReconciles: r.Parallel}).
		Complete(r)
}

func asks(o client.Object) bool {
	v, ok := o.(*v1alpha1.CacheVolume)
	return ok && v.Status.Comparison.Waits()
}

// Reconcile answers one node, or tries again.
func (r *Reconciler) Reconcile(ctx context.Context, request ctrl.Request) (ctrl.Result, error) {
	ctx, cancel := context.WithTimeout(ctx, r.Longest)
	defer cancel()
	err := r.Volumes.Compare(ctx, request.Name)
	switch {
	case err == nil, errors.Is(err, volumes.ErrNotFound):
		return ctrl.Result{}, nil
	case volumes.Code(err) == codes.Aborted:
		return ctrl.Result{RequeueAfter: r.Soon}, nil
	}
	r.Log.WarnContext(ctx, "could not compare a record with its image's metadata, and a node waits for that", "volume", request.Name,
		"error", err)
	return ctrl.Result{RequeueAfter: r.Again}, nil
}
