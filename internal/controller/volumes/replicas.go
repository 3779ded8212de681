package volumes

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/util/retry"

	"github.com/escache/escache-csi/api/escache"
	"github.com/escache/escache-csi/api/v1alpha1"
	"github.com/escache/escache-csi/internal/authority"
	"github.com/escache/escache-csi/internal/cachevolume"
	"github.com/escache/escache-csi/internal/crashpoint"
)

// layReplicas lays every replica that is missing, on all nodes at once. It returns the failures by
// node.
func (s *Steps) layReplicas(ctx context.Context, v *v1alpha1.CacheVolume) (map[string]error, error) {
	request, err := s.replicaRequest(ctx, v)
	if err != nil {
		return nil, err
	}
	return s.putReplicas(ctx, v, v.Spec.Replicas, request), nil
}

// putReplicas sends a request to several nodes at once. It notes the identities of the hosts that
// have done it; the caller's next update of the record has them. It returns the failures by node.
func (s *Steps) putReplicas(
	ctx context.Context, v *v1alpha1.CacheVolume, nodes []string, request escache.ReplicaRequest,
) map[string]error {
	var mu sync.Mutex
	return onEach(nodes, func(node string) error {
		id, err := s.Hosts.PutReplica(ctx, node, "", request) // on a new machine of that name, too
		if err != nil {
			return fmt.Errorf("create the replica of volume %s on node %s: %w", v.Name, node, err)
		}
		mu.Lock()
		defer mu.Unlock()
		v.Status.SetHostID(node, id)
		crashpoint.Reach("publish/replica_laid")
		return nil
	})
}

// replicaRequest returns the request that lays a volume's replicas. The error names the host whose address is not to be had.
func (s *Steps) replicaRequest(ctx context.Context, v *v1alpha1.CacheVolume) (escache.ReplicaRequest, error) {
	request := escache.ReplicaRequest{
		VolumeRef: cachevolume.Ref(v), ImageID: v.Status.ImageID, SizeBytes: v.Spec.SizeBytes, CacheBytes: v.Spec.CacheBytes,
		Engine: cachevolume.Engine(v), Port: int(v.Spec.Port), Minor: int(v.Spec.Minor), Epoch: v.Status.Epoch,
	}
	// Replicas of a version without secrets keep the link that they have until one of them is laid
	// again. Otherwise one host would change and the other one, which is away, would not.
	if v.Spec.LinkGeneration > 0 {
		request.Secret = s.Links.Secret(v.Name, v.Spec.LinkGeneration)
	}
	// DRBD's configuration must be the same on both hosts, so the nodes are sorted by name and not
	// by preference.
	for _, node := range slices.Sorted(slices.Values(v.Spec.Replicas)) {
		address, err := s.Hosts.ReplicationAddress(ctx, node)
		if err != nil {
			return request, onHost(node, fmt.Errorf("find the replication address of node %s: %w", node, err))
		}
		request.Nodes = append(request.Nodes, escache.ReplicaNode{Name: node, Address: address})
	}
	return request, nil
}

func (s *Steps) stale(v *v1alpha1.CacheVolume, node string) v1alpha1.StaleReplica {
	return v1alpha1.StaleReplica{
		Node: node, Volume: v.Name, ClusterID: v.Spec.ClusterID, Pool: v.Spec.Pool, Image: v.Spec.Image,
		CacheBytes: v.Spec.CacheBytes, Port: v.Spec.Port, Minor: v.Spec.Minor, Epoch: given(v), Since: s.now(),
	}
}

// given is the newest attachment of which the record speaks when it says that a replica is not
// needed. While a node is given the volume, that is the one before.
func given(v *v1alpha1.CacheVolume) int64 {
	if v.Status.AttachedNode != "" && authority.InCeph(v) {
		return v.Status.Epoch - 1
	}
	return v.Status.Epoch
}

// drop removes one replica of a volume whose truth is in Ceph. What is not known to be clean is
// discarded only if the record says that it is outdated, or not the volume's at all, and if its
// host has seen no later attachment. Otherwise the error wraps authority.ErrRecordBehind.
func (s *Steps) drop(ctx context.Context, v *v1alpha1.CacheVolume, node string) error {
	err := s.Hosts.DeleteReplica(ctx, node, cachevolume.Ref(v))
	problem, answered := errors.AsType[*escache.Problem](err)
	if !answered || problem.Code != escache.CodeDirty && problem.Code != escache.CodeDirtyUnknown {
		return err
	}
	if current := v.Spec.HasReplica(node) && !v.Status.IsOutdated(node); current {
		if problem.Code == escache.CodeDirty {
			return fmt.Errorf("node %s: %w: %w", node, authority.ErrRecordBehind, err)
		}
		return err
	}
	s.Log.InfoContext(ctx, "discarding replica", "volume", v.Name, "node", node, "reason", "everything is in Ceph", "problem", err)
	err = s.Hosts.DiscardReplica(ctx, node, cachevolume.Ref(v), given(v))
	if problem, answered := errors.AsType[*escache.Problem](err); answered && problem.Code == escache.CodeStaleEpoch {
		return fmt.Errorf("node %s: %w: %w", node, authority.ErrRecordBehind, err)
	}
	return err
}

// DropReplicas removes replicas of a volume whose truth is in Ceph. If a host does not answer, its
// replica is recorded as stale in its group and removed when the host is back. The hosts in needed
// must answer. The error names the host.
func (s *Steps) DropReplicas(ctx context.Context, v *v1alpha1.CacheVolume, nodes, needed []string) error {
	return s.dropReplicas(ctx, v, nodes, needed, func(error) bool { return false })
}

// dropReplicas is DropReplicas. Other failures of hosts that are not needed can be excused, too.
func (s *Steps) dropReplicas(ctx context.Context, v *v1alpha1.CacheVolume, nodes, needed []string, excused func(error) bool) error {
	if !authority.InCeph(v) {
		return fmt.Errorf("replicas of volume %s may be the only copy: %w", v.Name, ErrRefused)
	}
	failures := onEach(nodes, func(node string) error {
		if !slices.Contains(needed, node) && !s.Book.Ready(v.Spec.Group, node) {
			return fmt.Errorf("node %s was not ready when last asked: %w", node, ErrUnavailable)
		}
		s.Log.InfoContext(ctx, "dropping replica", "volume", v.Name, "node", node, "reason", "everything is in Ceph")
		err := s.drop(ctx, v, node)
		crashpoint.Reach("replica/dropped")
		return err
	})
	var stale []v1alpha1.StaleReplica
	for _, node := range nodes {
		err := failures[node]
		if err == nil {
			continue
		}
		if !unreachable(err) && !unreadable(err) && !excused(err) || slices.Contains(needed, node) || ctx.Err() != nil {
			return onHost(node, fmt.Errorf("remove the replica of volume %s on node %s: %w", v.Name, node, err))
		}
		s.Log.WarnContext(ctx, "a replica is removed later", "volume", v.Name, "node", node, "error", err)
		stale = append(stale, s.stale(v, node))
	}
	return s.recordStale(ctx, v.Spec.Group, stale)
}

// recordStale adds replicas to the list of what the group has to clean up.
func (s *Steps) recordStale(ctx context.Context, group string, stale []v1alpha1.StaleReplica) error {
	if len(stale) == 0 {
		return nil
	}
	err := retry.RetryOnConflict(retry.DefaultBackoff, func() error {
		g, err := s.Group(ctx, group)
		if err != nil {
			return err
		}
		for _, r := range stale {
			same := func(old v1alpha1.StaleReplica) bool {
				return old.Node == r.Node && old.Pool == r.Pool && old.Image == r.Image
			}
			// An entry from before the replica was laid there again speaks of an older attachment.
			switch at := slices.IndexFunc(g.Status.StaleReplicas, same); {
			case at < 0:
				g.Status.StaleReplicas = append(g.Status.StaleReplicas, r)
			case g.Status.StaleReplicas[at].Epoch < r.Epoch:
				g.Status.StaleReplicas[at] = r
			}
		}
		return s.Cached.Status().Update(ctx, g)
	})
	if err != nil {
		return fmt.Errorf("record in group %s that replicas have to be removed later: %w", group, err)
	}
	s.Book.HoldStale(group, stale)
	crashpoint.Reach("replica/stale_recorded")
	return nil
}

// Reports asks these nodes about a volume, all at once.
func (s *Steps) Reports(ctx context.Context, v *v1alpha1.CacheVolume, nodes []string) map[string]authority.Report {
	var mu sync.Mutex
	out := map[string]authority.Report{}
	onEach(nodes, func(node string) error {
		status, err := s.Hosts.Status(ctx, node, cachevolume.Ref(v))
		mu.Lock()
		defer mu.Unlock()
		out[node] = authority.Heard(v, node, status, err)
		return nil
	})
	return out
}

// onEach runs a call for every node at once and returns the failures by node.
func onEach(nodes []string, call func(node string) error) map[string]error {
	var (
		wait     sync.WaitGroup
		mu       sync.Mutex
		failures = map[string]error{}
	)
	for _, node := range nodes {
		wait.Go(func() {
			if err := call(node); err != nil {
				mu.Lock()
				defer mu.Unlock()
				failures[node] = err
			}
		})
	}
	wait.Wait()
	return failures
}

// hostError is a failure of a host.
type hostError struct {
	host string
	err  error
}

func (e *hostError) Error() string { return e.err.Error() }
func (e *hostError) Unwrap() error { return e.err }

func onHost(host string, err error) *hostError { return &hostError{host, err} }

// firstOf returns err, or one of the failures of hosts: the node's own, if there is one.
func firstOf(node string, failures map[string]error, err error) error {
	if err != nil {
		return err
	}
	if failure := failures[node]; failure != nil {
		return onHost(node, failure)
	}
	for host, failure := range failures {
		return onHost(host, failure)
	}
	return nil
}

// unable reports whether the host answered that it cannot do it, for a reason that says nothing about the
// volume's data: it cannot create a replica, or cannot read what the one that it has holds.
func unable(err error) bool {
	problem, answered := errors.AsType[*escache.Problem](err)
	return answered && slices.Contains([]escache.Code{
		escache.CodeInternal, escache.CodeStuck, escache.CodeTimeout, escache.CodeCacheError, escache.CodePortInUse, escache.CodeNoRoom,
		escache.CodeDirtyUnknown,
	}, problem.Code)
}

// Failed returns the host whose answer is the error, and whether it refused what was asked of it: a refusal may be
// about the volume's data, any other failure is not. It returns "" for other errors.
func Failed(err error) (host string, refused bool) {
	failure, ofHost := errors.AsType[*hostError](err)
	if _, answered := errors.AsType[*escache.Problem](err); !ofHost || !answered {
		return "", false
	}
	return failure.host, !unable(err)
}

// unreadable reports whether the host cannot tell what its replica holds, for example because its
// disk has failed.
func unreadable(err error) bool {
	problem, answered := errors.AsType[*escache.Problem](err)
	return answered && problem.Code == escache.CodeDirtyUnknown
}

// unreachable reports whether the host did not answer, so that nothing is known about it.
func unreachable(err error) bool {
	if _, answered := errors.AsType[*escache.Problem](err); answered {
		return false
	}
	return errors.Is(err, ErrUnavailable) || errors.Is(err, ErrNotFound) || errors.Is(err, context.DeadlineExceeded)
}

func (s *Steps) now() metav1.Time { return metav1.NewTime(s.Now()) }

// LastSeen returns a function that says when a member of the group last answered, by the record.
func (s *Steps) LastSeen(ctx context.Context, group string) func(node string) time.Time {
	return func(node string) time.Time {
		g, err := s.Group(ctx, group)
		if err != nil {
			return time.Time{}
		}
		for _, m := range g.Status.Members {
			if m.Name == node && m.LastSeen != nil {
				return m.LastSeen.Time
			}
		}
		return time.Time{}
	}
}
