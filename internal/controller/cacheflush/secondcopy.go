package cacheflush

import (
	"context"
	"fmt"
	"slices"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/escache/escache-csi/api/v1alpha1"
	"github.com/escache/escache-csi/internal/authority"
	"github.com/escache/escache-csi/internal/cachevolume"
	"github.com/escache/escache-csi/internal/redundancy"
)

// needsTwo says why a volume that was drained for its second copy on a node has to go on writing
// through: its next acknowledged writes would be on one host only. It is empty if write-back may
// return. It is pure; the holder's report may be empty if the answer does not depend on it.
//
// A volume that is attached to the node itself was drained so that it could move. It writes back again
// when somebody wants that.
func needsTwo(v *v1alpha1.CacheVolume, node string, holder authority.Report) string {
	at := v.Status.AttachedNode
	if at == "" || at == node {
		return ""
	}
	if lost := redundancy.Lost(v); lost != "" {
		return fmt.Sprintf("it writes through until the copy on node %s is current", lost)
	}
	// The record counts a copy until its loss is noticed, which a volume that writes nothing does not.
	if v.Spec.HasReplica(node) && !authority.Resynced(v, holder, node) {
		return fmt.Sprintf("it writes through until node %s is linked to %s again and the copy there is current", node, at)
	}
	return ""
}

// stillNeedsTwo is needsTwo by what is on record now and what the holder answers. It asks nobody about
// volumes that the CacheFlush has no claim on.
func (r *Reconciler) stillNeedsTwo(ctx context.Context, f *v1alpha1.CacheFlush, volume string) error {
	v := &v1alpha1.CacheVolume{}
	err := r.Live.Get(ctx, client.ObjectKey{Name: volume}, v)
	if apierrors.IsNotFound(err) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("read its record: %w", err)
	}
	at := v.Status.AttachedNode
	if !slices.Contains(authority.Claims(v), v1alpha1.FlushOwner(f.Name)) || at == f.Spec.Node {
		return nil
	}
	answer, err := r.Hosts.Status(ctx, at, cachevolume.Ref(v))
	holder := authority.Heard(v, at, answer, err)
	if _, err := holder.Status(); err != nil {
		return err
	}
	if why := needsTwo(v, f.Spec.Node, holder); why != "" {
		return fmt.Errorf("%s; if that host will not be back: kubectl escache repair %s", why, volume)
	}
	return nil
}

// left ends the work on a volume that the CacheFlush of a node is not for any more. A volume whose
// second copy was given to another host writes through until that copy is current, so long as it has not
// moved itself; over tells whether it is done.
func (r *Reconciler) left(
	ctx context.Context, v *v1alpha1.CacheVolume, owner string, now v1alpha1.FlushedVolume,
) (is v1alpha1.FlushedVolume, over bool) {
	switch {
	case !slices.Contains(authority.Claims(v), owner):
		return done(now, "it has moved to node "+v.Status.AttachedNode), true
	case redundancy.Lost(v) != "":
		return now, false
	}
	if err := r.Drain.Restore(ctx, v.Name, owner); err != nil {
		return waiting(now, err), true
	}
	return done(now, "it has its second copy on another host now, and writes back again"), true
}
