package cacheflush

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"sync"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/controller/controllerutil"

	"github.com/escache/escache-csi/api/v1alpha1"
	"github.com/escache/escache-csi/internal/crashpoint"
)

// cancel restores write-back on every volume that was drained, takes those from their hosts that are being trimmed, and
// then lets Kubernetes remove the object. A host that does not answer delays that, because its volumes would write through for
// ever, and so does a second copy that is not current yet.
func (r *Reconciler) cancel(ctx context.Context, f *v1alpha1.CacheFlush) (ctrl.Result, error) {
	if !controllerutil.ContainsFinalizer(f, v1alpha1.FlushFinalizer) {
		r.forget(f.UID)
		return ctrl.Result{}, nil
	}
	var names []string
	if f.Spec.Mode == v1alpha1.FlushModeDrain {
		for _, v := range f.Status.Volumes {
			names = append(names, v.Name)
		}
	}
	var may func(ctx context.Context, volume string) error
	if f.Spec.SecondCopies {
		may = func(ctx context.Context, volume string) error { return r.stillNeedsTwo(ctx, f, volume) }
	}
	failures := append(r.restore(ctx, f.Name, names, may), r.cancelTrims(ctx, f)...)
	if len(failures) > 0 {
		before := f.DeepCopy()
		what := "write-back is being restored"
		if f.Spec.Mode == v1alpha1.FlushModeTrim {
			what = "the host that trims it is to give it back"
		}
		r.condition(f, metav1.ConditionFalse, "Restoring", text(append([]string{what}, failures...)))
		if err := r.write(ctx, before, f); err != nil {
			return retry(err)
		}
		return ctrl.Result{RequeueAfter: r.Pass}, nil
	}
	crashpoint.Reach("cacheflush/restored")
	controllerutil.RemoveFinalizer(f, v1alpha1.FlushFinalizer)
	if err := r.Client.Update(ctx, f); client.IgnoreNotFound(err) != nil {
		return retry(err)
	}
	r.forget(f.UID)
	return ctrl.Result{}, nil
}

// abandoned ends the claims of a CacheFlush that was removed without its finalizer.
func (r *Reconciler) abandoned(ctx context.Context, name string) (ctrl.Result, error) {
	if failures := r.restore(ctx, name, nil, nil); len(failures) > 0 {
		r.Log.WarnContext(ctx, "write-back is not restored yet", "cacheflush", name, "failures", strings.Join(failures, "; "))
		return ctrl.Result{RequeueAfter: r.Pass}, nil
	}
	return ctrl.Result{}, nil
}

// restore ends the claims of a CacheFlush on the named volumes, and on those that the cache of
// objects knows, except where may returns an error. No may: everywhere.
func (r *Reconciler) restore(
	ctx context.Context, flush string, names []string, may func(ctx context.Context, volume string) error,
) (failures []string) {
	owner := v1alpha1.FlushOwner(flush)
	claimed, err := all(ctx, r.Client, false, func(v *v1alpha1.CacheVolume) bool {
		return slices.ContainsFunc(v.Status.WriteThrough, func(c v1alpha1.WriteThroughClaim) bool { return c.Owner == owner })
	})
	if err != nil {
		return []string{err.Error()}
	}
	for _, v := range claimed {
		names = append(names, v.Name)
	}
	slices.Sort(names)
	names = slices.Compact(names)
	var mu sync.Mutex
	each(len(names), cap(r.slots), func(i int) {
		var err error
		if may != nil {
			err = may(ctx, names[i])
		}
		if err == nil {
			err = r.Drain.Restore(ctx, names[i], owner)
		}
		if err != nil {
			mu.Lock()
			defer mu.Unlock()
			failures = append(failures, fmt.Sprintf("%s: %v", names[i], err))
		}
	})
	slices.Sort(failures)
	return failures
}
