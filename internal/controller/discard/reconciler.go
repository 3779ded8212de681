package discard

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/tools/events"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/predicate"

	"github.com/escache/escache-csi/api/v1alpha1"
	"github.com/escache/escache-csi/internal/authority"
	"github.com/escache/escache-csi/internal/controller/volumes"
	"github.com/escache/escache-csi/internal/crashpoint"
)

// Volumes discards a cache; *volumes.Locked.
type Volumes interface {
	Discard(ctx context.Context, request *v1alpha1.CacheDiscard) (*v1alpha1.DiscardedCache, error)
}

// Config holds what a Reconciler needs.
type Config struct {
	Client  client.Client
	Live    client.Reader
	Volumes Volumes
	Events  events.EventRecorder
	Log     *slog.Logger
	Now     func() time.Time

	// Again is the time from a failed try to the next; Longest bounds one try.
	Again   time.Duration
	Longest time.Duration
}

// Reconciler carries out CacheDiscards. It is safe for concurrent use.
type Reconciler struct{ Config }

// New returns a reconciler.
func New(config Config) *Reconciler { return &Reconciler{config} }

// SetupWithManager makes the manager call Reconcile for every CacheDiscard while this process
// leads.
func (r *Reconciler) SetupWithManager(m ctrl.Manager) error {
	return ctrl.NewControllerManagedBy(m).
		For(&v1alpha1.CacheDiscard{}).
		WithEventFilter(predicate.GenerationChangedPredicate{}).
		Complete(r)
}

// Reconcile carries out one CacheDiscard, or records why not.
func (r *Reconciler) Reconcile(ctx context.Context, request ctrl.Request) (ctrl.Result, error) {
	ctx, cancel := context.WithTimeout(ctx, r.Longest)
	defer cancel()
	d := &v1alpha1.CacheDiscard{}
	if err := r.Live.Get(ctx, request.NamespacedName, d); err != nil {
		return ctrl.Result{}, client.IgnoreNotFound(err)
	}
	if final(d) || !d.DeletionTimestamp.IsZero() {
		return ctrl.Result{}, nil
	}
	before := d.DeepCopy()
	loss, err := r.Volumes.Discard(ctx, d)
	switch {
	case err == nil:
		crashpoint.Reach("discard/done")
		r.succeed(d, loss)
	case errors.Is(err, authority.ErrRefused), errors.Is(err, volumes.ErrNotFound):
		r.finish(d, v1alpha1.DiscardRefused, err.Error())
	default:
		d.Status.Phase, d.Status.Message = v1alpha1.DiscardPending, err.Error()
	}
	if err := r.write(ctx, before, d); err != nil {
		return ctrl.Result{}, err
	}
	if !final(d) {
		return ctrl.Result{RequeueAfter: r.Again}, nil
	}
	r.emitEvents(ctx, d)
	return ctrl.Result{}, nil
}

func final(d *v1alpha1.CacheDiscard) bool {
	return d.Status.Phase == v1alpha1.DiscardDone || d.Status.Phase == v1alpha1.DiscardRefused
}

func (r *Reconciler) succeed(d *v1alpha1.CacheDiscard, loss *v1alpha1.DiscardedCache) {
	d.Status.Nodes, d.Status.BytesAtStake = loss.Nodes, loss.BytesAtStake
	d.Status.Summary = v1alpha1.CacheDiscardSummary{
		AtStake: v1alpha1.HumanBytes(loss.BytesAtStake), Nodes: strings.Join(loss.Nodes, ","),
	}
	lost := "the last current copy was gone"
	if len(loss.Nodes) > 0 {
		lost = "the only current copy was on " + strings.Join(loss.Nodes, " and ")
	}
	r.finish(d, v1alpha1.DiscardDone, fmt.Sprintf("%s gave up the data that only the cache of volume %s had in epoch %d: "+
		"%s, %d bytes (%s) were dirty when last reported. The volume now holds what Ceph has of it; check its filesystem before use",
		loss.RequestedBy, d.Spec.Volume, loss.Epoch, lost, loss.BytesAtStake, v1alpha1.HumanBytes(loss.BytesAtStake)))
}

func (r *Reconciler) finish(d *v1alpha1.CacheDiscard, phase v1alpha1.DiscardPhase, message string) {
	now := metav1.NewTime(r.Now())
	d.Status.Phase, d.Status.Message, d.Status.CompletionTime = phase, message, &now
	meta.SetStatusCondition(&d.Status.Conditions, metav1.Condition{
		Type: v1alpha1.DiscardCondition, Status: metav1.ConditionTrue, Reason: string(phase), ObservedGeneration: d.Generation,
	})
}

// write writes the status if it has changed: a try that failed like the one before writes nothing.
func (r *Reconciler) write(ctx context.Context, before, d *v1alpha1.CacheDiscard) error {
	if before.Status.Phase == d.Status.Phase && before.Status.Message == d.Status.Message {
		return nil
	}
	if err := r.Client.Status().Update(ctx, d); client.IgnoreNotFound(err) != nil {
		return fmt.Errorf("write the status of CacheDiscard %s: %w", d.Name, err)
	}
	return nil
}

// emitEvents emits an Event on the request and on the volume once the request is Discarded or
// Refused.
func (r *Reconciler) emitEvents(ctx context.Context, d *v1alpha1.CacheDiscard) {
	kind, reason := corev1.EventTypeWarning, "CacheDiscarded"
	if d.Status.Phase == v1alpha1.DiscardRefused {
		reason = "DiscardRefused"
	}
	r.Log.WarnContext(ctx, "cache discard ended", "discard", d.Name, "volume", d.Spec.Volume, "phase", d.Status.Phase,
		"message", d.Status.Message)
	r.Events.Eventf(d, nil, kind, reason, "Discard", "%s", d.Status.Message)
	v := &v1alpha1.CacheVolume{}
	if err := r.Live.Get(ctx, client.ObjectKey{Name: d.Spec.Volume}, v); err == nil {
		r.Events.Eventf(v, d, kind, reason, "Discard", "%s", d.Status.Message)
	}
}
