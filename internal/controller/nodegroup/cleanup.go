package nodegroup

import (
	"context"
	"errors"
	"fmt"
	"slices"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/client-go/util/retry"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/escache/escache-csi/api/escache"
	"github.com/escache/escache-csi/api/v1alpha1"
)

// cleanUp removes stale replicas from hosts that answer now. The truth was in Ceph when they were
// recorded, so nothing in them is needed, however dirty they claim to be, unless their host has seen
// a later attachment than the record knew, or the image tells of later replicas.
func (r *Reconciler) cleanUp(ctx context.Context, group *v1alpha1.NodeGroup, seen []sight) error {
	var failures []error
	images := &reader{images: r.Images, patience: r.Patience, silent: map[string]error{}}
	for _, stale := range group.Status.StaleReplicas {
		answers := slices.ContainsFunc(seen, func(s sight) bool { return s.name == stale.Node && s.host != nil })
		if !answers {
			continue
		}
		err := r.remove(ctx, images, group.Name, stale)
		if behind(err) {
			r.Events.Eventf(group, nil, corev1.EventTypeWarning, v1alpha1.ConditionRecordBehindDisks, "CleanUp",
				"the replica of %s on node %s stays: %v; see docs/restore-etcd.md", stale.Volume, stale.Node, err)
		}
		if err != nil {
			failures = append(failures, fmt.Errorf("replica of %s on node %s: %w", stale.Volume, stale.Node, err))
		}
	}
	return errors.Join(failures...)
}

// remove works under the volume's lock: no replica may be laid there between the check and the
// removal.
func (r *Reconciler) remove(ctx context.Context, images *reader, group string, stale v1alpha1.StaleReplica) error {
	done, err := r.Locks.Begin(stale.Volume, "clean-up of a stale replica")
	if err != nil {
		return err
	}
	defer done()
	v := &v1alpha1.CacheVolume{}
	switch err := r.Live.Get(ctx, client.ObjectKey{Name: stale.Volume}, v); {
	case apierrors.IsNotFound(err):
		v = nil
	case err != nil:
		return err
	case beingReplaced(v, stale.Node):
		return nil
	}
	// If the volume has a replica there again, the stale one was removed before the new one was
	// created.
	if inUse := v != nil && v.Spec.Image == stale.Image && v.Spec.HasReplica(stale.Node); !inUse {
		r.Log.InfoContext(ctx, "removing stale replica", "group", group, "node", stale.Node, "volume", stale.Volume, "since", stale.Since)
		ref := escache.VolumeRef{Pool: stale.Pool, Image: stale.Image}
		err := r.Hosts.DeleteReplica(ctx, stale.Node, ref)
		if problem, answered := errors.AsType[*escache.Problem](err); answered &&
			(problem.Code == escache.CodeDirty || problem.Code == escache.CodeDirtyUnknown) {
			if err := images.needless(ctx, stale, v); err != nil {
				return err
			}
			err = r.Hosts.DiscardReplica(ctx, stale.Node, ref, stale.Epoch)
		}
		if err != nil {
			return err
		}
	}
	return r.strike(ctx, group, stale)
}

// behind reports whether this failure says that the list may be older than the disks: the host has seen a later
// attachment, or the image does not prove that the replica is needless.
func behind(err error) bool {
	problem, answered := errors.AsType[*escache.Problem](err)
	return answered && problem.Code == escache.CodeStaleEpoch || errors.Is(err, errNeeded) && !passing(err)
}

// beingReplaced reports whether the place of a node's replica is being filled by another one. The
// holder may then still be linked to the replica, which has no disk, and leaves it in its own time.
func beingReplaced(v *v1alpha1.CacheVolume, node string) bool {
	r := v.Status.Repair
	return r != nil && r.Lost == node && r.Substitute != node && v.Status.IsOutdated(r.Substitute)
}

// strike removes an entry from the list.
func (r *Reconciler) strike(ctx context.Context, group string, stale v1alpha1.StaleReplica) error {
	return retry.RetryOnConflict(retry.DefaultBackoff, func() error {
		g := &v1alpha1.NodeGroup{}
		if err := r.Live.Get(ctx, client.ObjectKey{Name: group}, g); err != nil {
			return client.IgnoreNotFound(err)
		}
		g.Status.StaleReplicas = slices.DeleteFunc(g.Status.StaleReplicas, func(other v1alpha1.StaleReplica) bool {
			return other.Node == stale.Node && other.Pool == stale.Pool && other.Image == stale.Image
		})
		return r.Client.Status().Update(ctx, g)
	})
}
