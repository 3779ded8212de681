package cacheflush

import (
	"context"
	"errors"
	"fmt"
	"time"

	"google.golang.org/grpc/codes"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"

	"github.com/escache/escache-csi/api/v1alpha1"
	"github.com/escache/escache-csi/internal/controller/volumes"
)

// trimBite is how long a bite takes. For each the host mounts the filesystem, so it is longer than a pass.
const trimBite = 10 * time.Second

// trim takes a bite of the trim of a volume. How far it is, is what is left of its size.
func (r *Reconciler) trim(
	ctx context.Context, v *v1alpha1.CacheVolume, now v1alpha1.FlushedVolume, longest time.Duration,
) v1alpha1.FlushedVolume {
	now.Phase = v1alpha1.FlushRunning
	if now.LeftBytes == 0 && now.TrimmedBytes != nil { // only the host that trims it has to give it back
		if err := r.Flusher.EndTrim(ctx, now.Name); err != nil {
			return waiting(now, err)
		}
		return r.trimmed(v, now)
	}
	bite, err := r.Flusher.Trim(ctx, now.Name, now.TotalBytes-now.LeftBytes, max(longest, trimBite))
	if bite.Node != "" {
		now.Node = bite.Node
		total := bite.Bytes
		if now.TrimmedBytes != nil {
			total += *now.TrimmedBytes
		}
		now.TrimmedBytes, now.LeftBytes = &total, max(now.TotalBytes-bite.Next, 0)
	}
	unfinished, writesBack := errors.AsType[*volumes.UnfinishedError](err)
	switch {
	case writesBack:
		now.Node, now.Message = unfinished.Node, v1alpha1.HumanBytes(unfinished.LeftBytes)+" dirty are written back first"
		return now
	case err != nil && hopeless(err):
		// Nobody would take it from the host that trims it once this is over.
		if kept := r.Flusher.EndTrim(ctx, now.Name); kept != nil {
			return waiting(now, errors.Join(err, kept))
		}
		now.Phase, now.Message = v1alpha1.FlushFailed, err.Error()
		return now
	case err != nil:
		return waiting(now, err)
	case bite.Done:
		return r.trimmed(v, now)
	}
	if now.LeftBytes == 0 { // the filesystem has grown
		now.TotalBytes, now.LeftBytes = v.Spec.SizeBytes, max(v.Spec.SizeBytes-bite.Next, 1)
	}
	return now
}

// hopeless reports whether an error of a trim stays if it is only tried again.
func hopeless(err error) bool {
	if errors.Is(err, volumes.ErrBusy) || apierrors.IsConflict(err) {
		return false
	}
	switch volumes.Code(err) { //nolint:exhaustive // the rest may pass
	case codes.FailedPrecondition, codes.InvalidArgument, codes.NotFound:
		return true
	}
	return false
}

// trimmed says so of a volume, to those too who look at the volume only.
func (r *Reconciler) trimmed(v *v1alpha1.CacheVolume, now v1alpha1.FlushedVolume) v1alpha1.FlushedVolume {
	what := "its filesystem has discarded " + v1alpha1.HumanBytes(*now.TrimmedBytes) + " of free space, on node " + now.Node
	r.Events.Eventf(v, nil, corev1.EventTypeNormal, "Trimmed", "Trim", "%s", what)
	return done(now, what)
}

// uncached is for a volume without a cache, where nothing is to be written back. A drain takes it from a host that trims
// it: who drains a host may be about to restart it, and the host could not give the volume back to a pod meanwhile.
func (r *Reconciler) uncached(
	ctx context.Context, mode v1alpha1.FlushMode, v *v1alpha1.CacheVolume, now v1alpha1.FlushedVolume,
) v1alpha1.FlushedVolume {
	if !v.Status.TrimAttached() || mode != v1alpha1.FlushModeDrain {
		return done(now, "it is attached without a cache, and everything is in Ceph")
	}
	at := v.Status.AttachedNode
	now.Node = at
	if err := r.Flusher.EndTrim(ctx, now.Name); err != nil {
		return waiting(now, fmt.Errorf("node %s trims it, and has to give it back: %w", at, err))
	}
	return done(now, "node "+at+" was trimming it and has given it back, and everything is in Ceph")
}

// endTrims gives volumes up whose time is over, and takes them from the hosts that trim them. A volume that its host
// does not give back stays open.
func (r *Reconciler) endTrims(ctx context.Context, f *v1alpha1.CacheFlush) {
	if f.Spec.Mode != v1alpha1.FlushModeTrim || !r.timeUp(f) {
		return
	}
	for i := range f.Status.Volumes {
		v := &f.Status.Volumes[i]
		if ended(v.Phase) {
			continue
		}
		if err := r.Flusher.EndTrim(ctx, v.Name); err != nil {
			v.Message = fmt.Sprintf("its time is up, and node %s has to give it back first: %v", v.Node, err)
			continue
		}
		giveUp(v, f.Spec)
	}
}

// cancelTrims takes the volumes of a Trim that is deleted from the hosts that trim them.
func (r *Reconciler) cancelTrims(ctx context.Context, f *v1alpha1.CacheFlush) (failures []string) {
	if f.Spec.Mode != v1alpha1.FlushModeTrim {
		return nil
	}
	for _, v := range f.Status.Volumes {
		if err := r.Flusher.EndTrim(ctx, v.Name); err != nil {
			failures = append(failures, fmt.Sprintf("%s: %v", v.Name, err))
		}
	}
	return failures
}
