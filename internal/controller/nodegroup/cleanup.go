package nodegroup

import (
	"context"
	"errors"
	"fmt"
	"slices"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/client-go/util/retry"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/escache/escache-csi/api/escache"
	"github.com/escache/escache-csi/api/v1alpha1"
)

// CleanUp removes the stale replicas of one group. It is a controller of its own, because a host may take long for each of
// many replicas, and meanwhile the group has to be polled.
func (r *Reconciler) CleanUp(ctx context.Context, request ctrl.Request) (ctrl.Result, error) {
	again := ctrl.Result{RequeueAfter: r.Poll}
	group := &v1alpha1.NodeGroup{}
	if err := r.Client.Get(ctx, request.NamespacedName, group); err != nil {
		if client.IgnoreNotFound(err) != nil {
			return again, err
		}
		return ctrl.Result{}, nil
	}
	if ended(group) {
		return ctrl.Result{}, nil
	}
	if err := r.cleanUp(ctx, group); err != nil {
		r.Log.WarnContext(ctx, "stale replicas left", "group", group.Name, "error", err)
	}
	return again, nil
}

// cleanUp removes stale replicas from hosts that answered when they were last polled. Hosts that have
// left the group are not polled, so it asks them itself. The truth was in Ceph when the replicas were
// recorded, so nothing in them is needed, however dirty they claim to be, unless their host has seen
// a later attachment than the record knew, or the image tells of later replicas.
//
// It forgets those on a host that is in no group, and that Kubernetes does not know any more.
func (r *Reconciler) cleanUp(ctx context.Context, group *v1alpha1.NodeGroup) error {
	owners, err := r.owners(ctx)
	if err != nil {
		return err
	}
	var failures []error
	former := map[string]sight{}
	images := &reader{images: r.Images, patience: r.Patience, silent: map[string]error{}}
	for _, stale := range group.Status.StaleReplicas {
		host := r.lastSight(group.Name, stale.Node)
		if !slices.Contains(group.Spec.Nodes, stale.Node) {
			host = r.askFormer(ctx, former, group.Name, stale.Node)
		}
		switch {
		case host.deleted && owners[stale.Node] == "":
			r.Log.InfoContext(ctx, "forgetting stale replica", "group", group.Name, "node", stale.Node, "volume", stale.Volume,
				"since", stale.Since, "reason", "the node has left the group and Kubernetes")
			err = r.strike(ctx, group.Name, stale)
		case host.host == nil:
			continue
		default:
			err = r.remove(ctx, images, group.Name, stale)
		}
		if behind(err) {
			r.Events.Eventf(group, nil, corev1.EventTypeWarning, v1alpha1.ConditionRecordBehindDisks, "CleanUp",
				"the replica of %s on node %s stays: %v; see docs/restore-etcd.md", stale.Volume, stale.Node, err)
		}
		if err != nil {
			delete(former, stale.Node) // perhaps it has fallen silent
			failures = append(failures, fmt.Errorf("replica of %s on node %s: %w", stale.Volume, stale.Node, err))
		}
	}
	return errors.Join(failures...)
}

// askFormer asks a host that has left the group, unless it is among those that were asked.
func (r *Reconciler) askFormer(ctx context.Context, asked map[string]sight, group, node string) sight {
	s, was := asked[node]
	if !was {
		s = r.pollMember(ctx, group, node, group)
		asked[node] = s
	}
	return s
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
	case beingReplaced(v, stale.Node), beingMoved(v):
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

// beingMoved reports whether the volume has given up its replicas, and the record of it still names their hosts.
func beingMoved(v *v1alpha1.CacheVolume) bool {
	m := v.Status.Move
	return m != nil && m.Cleared && m.Group != v.Spec.Group
}

// strike removes an entry from the list.
func (r *Reconciler) strike(ctx context.Context, group string, stale v1alpha1.StaleReplica) error {
	err := retry.RetryOnConflict(retry.DefaultBackoff, func() error {
		g := &v1alpha1.NodeGroup{}
		if err := r.Live.Get(ctx, client.ObjectKey{Name: group}, g); err != nil {
			return client.IgnoreNotFound(err)
		}
		g.Status.StaleReplicas = slices.DeleteFunc(g.Status.StaleReplicas, func(other v1alpha1.StaleReplica) bool {
			return other.Node == stale.Node && other.Pool == stale.Pool && other.Image == stale.Image
		})
		return r.Client.Status().Update(ctx, g)
	})
	if err == nil {
		r.Book.ReleaseStale(group, stale)
	}
	return err
}
