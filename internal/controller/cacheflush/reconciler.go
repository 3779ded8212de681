// Package cacheflush carries out CacheFlushes. Everything that it needs is in the object's status
// and on the CacheVolumes, so another process can go on at any moment. Only the volumes' turns and
// the rate are kept in memory.
//
// It works on a CacheFlush in passes of a few seconds. In a pass, as many volumes of each node as
// the CacheFlush allows get a short flush each, one after another, and the progress is recorded. So
// a cancellation waits for one pass at most, and a volume that is stuck costs its node one slot of
// one pass.
package cacheflush

import (
	"context"
	"errors"
	"log/slog"
	"slices"
	"sync"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/tools/events"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/builder"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/controller"
	"sigs.k8s.io/controller-runtime/pkg/controller/controllerutil"
	"sigs.k8s.io/controller-runtime/pkg/event"
	"sigs.k8s.io/controller-runtime/pkg/handler"
	"sigs.k8s.io/controller-runtime/pkg/predicate"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	"github.com/escache/escache-csi/api/escache"
	"github.com/escache/escache-csi/api/v1alpha1"
	"github.com/escache/escache-csi/internal/cachevolume"
	"github.com/escache/escache-csi/internal/controller/drain"
	"github.com/escache/escache-csi/internal/controller/volumes"
	"github.com/escache/escache-csi/internal/crashpoint"
)

// Hosts reaches the escached of each node.
type Hosts interface {
	Status(ctx context.Context, node string, volume escache.VolumeRef) (escache.VolumeStatus, error)
	Flush(ctx context.Context, at cachevolume.Attachment, longest time.Duration) (*escache.FlushResponse, error)
}

// Flusher has volumes written back that no pod has, and volumes trimmed; *volumes.Locked.
type Flusher interface {
	WriteBackDetached(ctx context.Context, volume string, longest time.Duration) error
	// Trim takes a bite, and EndTrim takes the volume from the host that trims it.
	Trim(ctx context.Context, volume string, start int64, longest time.Duration) (volumes.Trimmed, error)
	EndTrim(ctx context.Context, volume string) error
}

// Config holds what a Reconciler needs.
type Config struct {
	Client  client.Client // reads from a cache
	Live    client.Reader
	Hosts   Hosts
	Flusher Flusher
	Drain   *drain.Drainer
	Events  events.EventRecorder
	Log     *slog.Logger
	Now     func() time.Time

	// Pass is how long a pass lasts, in whole seconds. Progress is written at its end.
	Pass time.Duration
	// Verify is how often a drained volume is checked.
	Verify time.Duration
	// Parallel bounds the CacheFlushes that are worked on at once, and Volumes the volumes of all
	// of them together.
	Parallel, Volumes int
}

// Reconciler carries out one CacheFlush at a time. It is safe for concurrent use.
type Reconciler struct {
	Config

	slots chan struct{}

	mu     sync.Mutex
	memory map[types.UID]*memory
}

// New returns a reconciler.
func New(config Config) *Reconciler {
	return &Reconciler{Config: config, slots: make(chan struct{}, config.Volumes), memory: map[types.UID]*memory{}}
}

// SetupWithManager makes the manager call Reconcile for every CacheFlush while this process leads.
func (r *Reconciler) SetupWithManager(m ctrl.Manager) error {
	return ctrl.NewControllerManagedBy(m).
		For(&v1alpha1.CacheFlush{}, builder.WithPredicates(predicate.GenerationChangedPredicate{})).
		Watches(&v1alpha1.CacheVolume{}, handler.EnqueueRequestsFromMapFunc(r.concerned), builder.WithPredicates(attachments())).
		WithOptions(controller.Options{MaxConcurrentReconciles: r.Parallel}).
		Complete(r)
}

// attachments passes on what begins or ends a drain: a volume was attached, detached or moved, or has other
// claims of write-through. An attachment makes one for a CacheFlush that may be gone by then.
func attachments() predicate.Predicate {
	return predicate.Funcs{
		UpdateFunc: func(e event.UpdateEvent) bool {
			before, ok := e.ObjectOld.(*v1alpha1.CacheVolume)
			now, also := e.ObjectNew.(*v1alpha1.CacheVolume)
			return ok && also && (before.Status.AttachedNode != now.Status.AttachedNode || before.Status.Epoch != now.Status.Epoch ||
				!slices.Equal(owners(before), owners(now)))
		},
		DeleteFunc: func(event.DeleteEvent) bool { return false },
	}
}

// owners are those of a volume's claims of write-through.
func owners(v *v1alpha1.CacheVolume) []string {
	var all []string
	for _, c := range v.Status.WriteThrough {
		all = append(all, c.Owner)
	}
	return all
}

// concerned returns the CacheFlushes that have a claim on the volume, even if they are gone, and
// the drains of a node that are for it.
func (r *Reconciler) concerned(ctx context.Context, o client.Object) []reconcile.Request {
	v, ok := o.(*v1alpha1.CacheVolume)
	if !ok {
		return nil
	}
	var names []string
	for _, c := range v.Status.WriteThrough {
		if name, ok := v1alpha1.FlushOfOwner(c.Owner); ok {
			names = append(names, name)
		}
	}
	all := &v1alpha1.CacheFlushList{}
	if err := r.Client.List(ctx, all); err != nil {
		r.Log.WarnContext(ctx, "a drain of the volume's node may learn of it late", "volume", v.Name, "error", err)
	}
	for i := range all.Items {
		if f := &all.Items[i]; f.Spec.Mode == v1alpha1.FlushModeDrain && f.Spec.Node != "" && f.Spec.SelectsOnNode(v) {
			names = append(names, f.Name)
		}
	}
	slices.Sort(names)
	var requests []reconcile.Request
	for _, name := range slices.Compact(names) {
		requests = append(requests, reconcile.Request{NamespacedName: types.NamespacedName{Name: name}})
	}
	return requests
}

// Reconcile works on one CacheFlush for one pass. It reads it from the API server itself, so that
// it knows what an earlier pass has written.
func (r *Reconciler) Reconcile(ctx context.Context, request ctrl.Request) (ctrl.Result, error) {
	f := &v1alpha1.CacheFlush{}
	err := r.Live.Get(ctx, request.NamespacedName, f)
	switch {
	case apierrors.IsNotFound(err):
		return r.abandoned(ctx, request.Name)
	case err != nil:
		return ctrl.Result{}, err
	case !f.DeletionTimestamp.IsZero():
		return r.cancel(ctx, f)
	case finished(f):
		return r.expire(ctx, f)
	}
	if controllerutil.AddFinalizer(f, v1alpha1.FlushFinalizer) {
		if err := r.Client.Update(ctx, f); err != nil {
			return retry(err)
		}
		crashpoint.Reach("cacheflush/finalizer")
	}
	before := f.DeepCopy()
	if f.Status.StartTime == nil {
		err = r.begin(ctx, f)
	} else if f.Spec.Mode == v1alpha1.FlushModeDrain {
		err = r.follow(ctx, f)
	}
	if err != nil {
		return retry(err)
	}
	r.takesUpMoves(f)
	// A volume is on record before it is drained, so that a cancellation finds it.
	if err := r.write(ctx, before, f); err != nil {
		return retry(err)
	}
	crashpoint.Reach("cacheflush/begun")
	before, begun := f.DeepCopy(), time.Now()
	if !finished(f) {
		r.pass(ctx, f)
		r.endTrims(ctx, f)
		r.judge(f)
	}
	if err := r.write(ctx, before, f); err != nil {
		return retry(err)
	}
	crashpoint.Reach("cacheflush/progress")
	switch {
	case finished(f):
		return r.expire(ctx, f)
	case f.Status.Phase == v1alpha1.FlushDrained:
		return ctrl.Result{RequeueAfter: r.Verify}, nil
	default:
		return ctrl.Result{RequeueAfter: max(r.Pass-time.Since(begun), time.Millisecond)}, nil
	}
}

// retry repeats a pass soon if somebody else's write came first. After other errors it backs off.
func retry(err error) (ctrl.Result, error) {
	if apierrors.IsConflict(err) {
		return ctrl.Result{RequeueAfter: 100 * time.Millisecond}, nil
	}
	return ctrl.Result{}, err
}

func (r *Reconciler) write(ctx context.Context, before, f *v1alpha1.CacheFlush) error {
	summarize(&f.Status)
	if same(before, f) {
		return nil
	}
	if err := r.Client.Status().Update(ctx, f); err != nil {
		return err
	}
	r.emitEvents(before, f)
	return nil
}

// finished reports whether nothing is left to do but to remove the object. A drain never finishes.
func finished(f *v1alpha1.CacheFlush) bool {
	return f.Status.CompletionTime != nil &&
		(f.Status.Phase == v1alpha1.FlushComplete || f.Status.Phase == v1alpha1.FlushFailed)
}

// expire removes a finished CacheFlush when its time to live is over.
func (r *Reconciler) expire(ctx context.Context, f *v1alpha1.CacheFlush) (ctrl.Result, error) {
	r.forget(f.UID)
	ttl := time.Hour
	if f.Spec.TTLSecondsAfterFinished != nil {
		ttl = time.Duration(*f.Spec.TTLSecondsAfterFinished) * time.Second
	}
	if left := f.Status.CompletionTime.Add(ttl).Sub(r.Now()); left > 0 {
		return ctrl.Result{RequeueAfter: left}, nil
	}
	err := r.Client.Delete(ctx, f, client.Preconditions{UID: &f.UID})
	return ctrl.Result{}, client.IgnoreNotFound(err)
}

// errTarget means that the target does not exist. Waiting does not help.
var errTarget = errors.New("nothing to flush")
